"""What a network made of a shaky frame, drawn."""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry import warp_back
from protoformer.geometry.trails import CELL
from protoformer.show.prototypes import Pixels, picture
from protoformer.world import StabilityWindows


def window_picture(windows: StabilityWindows, found: Tensor) -> Pixels:
    """The first frame of a window: shaky and steady above, moved by the warp and off by how much below.

    found: 2 x 2 x h x w, pixels, the warps of both frames. Returns uint8 2H x 2W x 3; white is off by a third.
    """
    shaky, steady = windows.unstable[:1, 0], windows.stable[:1]
    warp = F.interpolate(found[:1], scale_factor=CELL, mode="bilinear")
    moved = warp_back(shaky, warp)
    off = 3 * (moved - steady).abs()
    rows = [np.concatenate([picture(each[0]) for each in row], axis=1) for row in ((shaky, steady), (moved, off))]
    return np.concatenate(rows)
