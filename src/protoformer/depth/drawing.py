"""Visualization of depth: color maps and side-by-side frames."""

from typing import Any

import numpy as np
from torch import Tensor

from protoformer.depth.result import DepthResult
from protoformer.depth.video import DepthFrame
from protoformer.viz.colormaps import Pixels, depth_to_color, frame_pixels
from protoformer.viz.report import MAX_CELLS, cell_step, confidence_text, jpeg_data_uri, png_data_uri, to_base64


def draw_depth_frame(result: DepthFrame, colors: tuple[float, float], side_by_side: bool = False) -> Pixels:
    """Draw the depth of one video frame in colors.

    Args:
        result: depth of the frame.
        colors: depths of the first and the last color, meters.
        side_by_side: put the frame to the left of the colors.

    Returns:
        uint8 H x W x 3, or H x 2W x 3 if `side_by_side`.
    """
    image = colorize_depth(result.depth, colors)
    return np.concatenate((frame_pixels(result.frame), image), axis=1) if side_by_side else image


def colorize_depth(depth: Tensor, colors: tuple[float, float]) -> Pixels:
    """Convert depth to colors.

    Args:
        depth: 1 x H x W, meters.
        colors: depths of the first and the last color, meters.

    Returns:
        uint8 H x W x 3.
    """
    return depth_to_color(depth[0].numpy(), *colors)


_LEVELS = 2**16 - 1


def depth_viewer_data(
    result: DepthResult, image: Pixels, colors: tuple[float, float], max_cells: int = MAX_CELLS
) -> dict[str, Any]:
    """Serialize a depth result for the interactive viewer.

    Args:
        result: depth to show.
        image: uint8 H x W x 3.
        colors: depths of the first and the last color, meters.
        max_cells: largest number of depths to include.

    Returns:
        A JSON-serializable dict. `image`, `depth`: images as data URIs. `width`, `height`: pixels. `step`: sampling
        stride of the depths, pixels; `columns`, `rows`: their grid size. `depths`: base64 of uint16, log meters scaled
        from `low` (0) to `high` (65535). `confidence`: base64 of uint8, 255 is 1. `near`, `far`: the colors' depths.
    """
    _, height, width = result.depth.shape
    step = cell_step(height, width, max_cells)
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
