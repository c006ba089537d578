"""The depth of a frame as a picture of a video: colours, or the frame beside them."""

import numpy as np
from torch import Tensor

from protoformer.files import depth_to_color
from protoformer.inference import DepthStep
from protoformer.show.flow_frames import frame_pixels
from protoformer.show.prototypes import Pixels


def depth_frame(step: DepthStep, colours: tuple[float, float], side_by_side: bool = False) -> Pixels:
    """A step's depth in colours: uint8 H x W x 3. colours: metres of the first and of the last one.

    side_by_side: the frame to the left of the colours, H x 2W x 3.
    """
    painted = painted_depth(step.depth, colours)
    return np.concatenate((frame_pixels(step.image), painted), axis=1) if side_by_side else painted


def painted_depth(depth: Tensor, colours: tuple[float, float]) -> Pixels:
    """A depth, 1 x H x W in metres, in colours from near to far, metres: uint8 H x W x 3."""
    return depth_to_color(depth[0].numpy(), *colours)
