"""The depth of a frame as a picture of a video: colors, or the frame beside them."""

from typing import Any

import numpy as np
from torch import Tensor

from protoformer.depth.result import DepthResult
from protoformer.depth.video import DepthFrame
from protoformer.viz.colormaps import depth_to_color
from protoformer.viz.html import MOST_CELLS, cell_step, confidence_text, jpeg_data_uri, png_data_uri, to_base64
from protoformer.viz.images import Pixels, frame_pixels


def draw_depth_frame(step: DepthFrame, colors: tuple[float, float], side_by_side: bool = False) -> Pixels:
    """A step's depth in colors: uint8 H x W x 3. colors: meters of the first and of the last one.

    side_by_side: the frame to the left of the colors, H x 2W x 3.
    """
    painted = colorize_depth(step.depth, colors)
    return np.concatenate((frame_pixels(step.image), painted), axis=1) if side_by_side else painted


def colorize_depth(depth: Tensor, colors: tuple[float, float]) -> Pixels:
    """A depth, 1 x H x W in meters, in colors from near to far, meters: uint8 H x W x 3."""
    return depth_to_color(depth[0].numpy(), *colors)


_LEVELS = 2**16 - 1


def depth_viewer_data(
    result: DepthResult, image: Pixels, colors: tuple[float, float], most_cells: int = MOST_CELLS
) -> dict[str, Any]:
    """What a page needs, of plain numbers and texts. image: uint8 H x W x 3. colors: meters of the first and the last.

    image, depth: pictures as data addresses. width, height: pixels. step: a depth stands for every so many pixels, each
    way; columns, rows: how many there are. depths: base64 of uint16, 0 is `low` and 65535 `high`, in the logarithm of
    meters. confidence: base64 of uint8, 255 is 1. near, far: of the colors.
    """
    _, height, width = result.depth.shape
    step = cell_step(height, width, most_cells)
    logs = result.depth[0, ::step, ::step].float().cpu().log().numpy()
    low, high = float(logs.min()), float(logs.max())
    levels = (logs - low) / max(high - low, 1e-9) * _LEVELS
    return {
        "image": jpeg_data_uri(image),
        "depth": png_data_uri(colorize_depth(result.depth.cpu(), colors)),
        "width": width,
        "height": height,
        "step": step,
        "columns": logs.shape[1],
        "rows": logs.shape[0],
        "low": low,
        "high": high,
        "depths": to_base64(levels.round().astype("<u2").tobytes()),
        "confidence": confidence_text(result.confidence, step),
        "near": colors[0],
        "far": colors[1],
    }
