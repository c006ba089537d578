"""Drawing of depth: frames of a video in the colors of `viz.depth_colors`, and data for viewers."""

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from protoformer.depth.result import DepthResult
from protoformer.viz.colormaps import Pixels, frame_pixels
from protoformer.viz.depth_colors import default_depth_range, depth_to_color
from protoformer.viz.report import MAX_CELLS, cell_step, confidence_text, jpeg_data_uri, png_data_uri, to_base64

if TYPE_CHECKING:
    from protoformer.depth.video import DepthFrame


def draw_depth_frame(result: "DepthFrame", colors: tuple[float, float], side_by_side: bool = False) -> Pixels:
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


class DepthPainter:
    """Draws the frames of a video, in order, with one color range; arguments as of `draw_depth_frame`.

    Attributes:
        colors: depths of the first and the last color, meters. If none are given, they grow with the depth: they span
            the ranges by `default_depth_range` of all frames so far, as suits a live source.
    """

    def __init__(self, colors: tuple[float, float] | None = None, side_by_side: bool = False) -> None:
        self.colors, self._grows, self._side_by_side = colors, colors is None, side_by_side

    def __call__(self, result: "DepthFrame") -> Pixels:
        """Draw a frame, uint8 H x W x 3, or H x 2W x 3 if side by side."""
        if self._grows or self.colors is None:
            near, far = default_depth_range(result.numpy())
            self.colors = (min(near, (self.colors or (near, far))[0]), max(far, (self.colors or (near, far))[1]))
        return draw_depth_frame(result, self.colors, self._side_by_side)


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
