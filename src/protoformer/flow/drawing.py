"""Visualization of optical flow: color maps, arrows and side-by-side frames."""

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from torch import Tensor

from protoformer.errors import InputError
from protoformer.flow.result import FlowResult
from protoformer.viz.colormaps import FLOW_PERCENTILE, Pixels, flow_to_color, frame_pixels
from protoformer.viz.report import MAX_CELLS, cell_step, confidence_text, jpeg_data_uri, png_data_uri, to_base64

if TYPE_CHECKING:
    from protoformer.flow.video import FlowFrame

SAMPLED_VECTORS = 20_000
"""Flow vectors that are used of each sampled pair."""
SCALE_QUANTILE = FLOW_PERCENTILE / 100
"""Quantile of the vector lengths that defines the color scale."""
MIN_SCALE = 1.0
"""Smallest color scale, pixels, so that noise of a static video is not drawn in full colors."""
ROWS_PER_BAND = 128
"""Rows that are colorized at a time: colorizing takes many times the memory of the image."""
ARROWS_ACROSS = 24
"""Arrows along the longer side of a frame."""
MIN_SPACING = 16
"""Smallest distance between neighboring arrows, pixels."""
TYPICAL_LENGTH = 1.5
"""Length of an arrow whose motion equals the color scale, as a fraction of the spacing."""
MAX_LENGTH = 3.0
"""Limit of lengthened arrows, as a fraction of the spacing, so that one fast object does not cover the frame."""
MIN_LENGTH, MIN_LENGTH_FRACTION = 3.0, 0.25
"""Arrows shorter than this, in pixels or as a fraction of the spacing, are not drawn."""
HEAD_LENGTH = 0.4
"""Largest length of an arrow head, as a fraction of the spacing; short arrows have a head of 0.3 of their length."""
ARROW_COLOR, ARROW_EDGE = (255, 220, 0), (0, 0, 0)


def frame_scale(lengths: Tensor) -> float:
    """Return the color scale for vectors of given lengths, pixels: 0.1 % of them at most are longer, unless it is 1."""
    return max(MIN_SCALE, float(lengths.quantile(SCALE_QUANTILE, interpolation="higher")))


def draw_flow_frame(result: "FlowFrame", scale: float, side_by_side: bool = False, arrows: bool = False) -> Pixels:
    """Draw the flow of one video frame in colors, or as arrows over the frame.

    Arrows are longer than the motion by `arrow_factor`, so that slow motion is visible.

    Args:
        result: flow of the frame.
        scale: motion of fully saturated colors, pixels.
        side_by_side: put the frame (with arrows if requested) to the left of the colors.
        arrows: draw arrows over the frame.

    Returns:
        uint8 H x W x 3, or H x 2W x 3 if `side_by_side`.
    """
    if not (side_by_side or arrows):
        return colorize_flow(result.flow, scale)
    frame = frame_pixels(result.frame)
    if arrows:
        draw_arrows(frame, result.flow, arrow_factor(frame.shape[:2], scale))
    return np.concatenate((frame, colorize_flow(result.flow, scale)), axis=1) if side_by_side else frame


class FlowPainter:
    """Draws the frames of a video, in order, with one color scale; arguments as of `draw_flow_frame`.

    Attributes:
        scale: motion of fully saturated colors, pixels. If none is given, it grows with the motion: it is the largest
            99.9th percentile of all frames so far, as suits a live source.
    """

    def __init__(self, scale: float | None = None, side_by_side: bool = False, arrows: bool = False) -> None:
        if scale is not None and not 0 < scale < float("inf"):
            raise InputError(f"colors cannot be saturated at {scale:g} pixels; give a scale over 0.")
        self.scale = MIN_SCALE if scale is None else scale
        self._grows = scale is None
        self._side_by_side, self._arrows = side_by_side, arrows

    def __call__(self, result: "FlowFrame") -> Pixels:
        """Draw a frame, uint8 H x W x 3, or H x 2W x 3 if side by side."""
        if self._grows:
            lengths = result.flow.norm(dim=0).flatten()
            self.scale = max(self.scale, frame_scale(lengths[:: max(1, lengths.numel() // SAMPLED_VECTORS)]))
        return draw_flow_frame(result, self.scale, self._side_by_side, self._arrows)


def colorize_flow(flow: Tensor, scale: float) -> Pixels:
    """Convert flow to colors.

    Args:
        flow: 2 x H x W, pixels.
        scale: motion of fully saturated colors, pixels.

    Returns:
        uint8 H x W x 3.
    """
    colors = np.empty((*flow.shape[1:], 3), np.uint8)
    for top in range(0, flow.shape[1], ROWS_PER_BAND):
        band = flow[:, top : top + ROWS_PER_BAND].permute(1, 2, 0).numpy()
        colors[top : top + ROWS_PER_BAND] = flow_to_color(band, scale)
    return colors


def arrow_factor(size: tuple[int, ...], scale: float) -> int:
    """Return how many times longer than the motion arrows are drawn.

    Args:
        size: (H, W) of the frame, pixels.
        scale: motion of fully saturated colors, pixels.
    """
    return max(1, round(TYPICAL_LENGTH * _arrow_spacing(size) / scale))


def draw_arrows(frame: Pixels, flow: Tensor, factor: int = 1) -> None:
    """Draw flow vectors on a regular grid onto a frame, in place.

    Args:
        frame: uint8 H x W x 3, modified.
        flow: 2 x H x W, pixels.
        factor: largest factor by which vectors are lengthened.
    """
    height, width = frame.shape[:2]
    spacing = _arrow_spacing((height, width))
    thickness = max(1, spacing // 16)
    min_length = max(MIN_LENGTH, MIN_LENGTH_FRACTION * spacing)
    for y in range(spacing // 2, height, spacing):
        for x in range(spacing // 2, width, spacing):
            u, v = (float(part) for part in flow[:, y, x])
            length = np.hypot(u, v)
            if not min_length / factor <= length < 2 * max(height, width):
                continue
            gain = max(1.0, min(factor, MAX_LENGTH * spacing / length))
            tip, head = (round(x + gain * u), round(y + gain * v)), min(0.3, HEAD_LENGTH * spacing / (gain * length))
            for color, pixels in ((ARROW_EDGE, thickness + 2), (ARROW_COLOR, thickness)):
                cv2.arrowedLine(frame, (x, y), tip, color, pixels, cv2.LINE_AA, tipLength=head)


def _arrow_spacing(size: tuple[int, ...]) -> int:
    """Distance between neighboring arrows, pixels."""
    return max(MIN_SPACING, max(size) // ARROWS_ACROSS)


_LEVELS = 2**15 - 1


def flow_viewer_data(result: FlowResult, image: Pixels, scale: float, max_cells: int = MAX_CELLS) -> dict[str, Any]:
    """Serialize a flow result for the interactive viewer.

    Args:
        result: flow to show.
        image: first image, uint8 H x W x 3.
        scale: motion of fully saturated colors, pixels.
        max_cells: largest number of vectors to include.

    Returns:
        A JSON-serializable dict. `image`, `flow`: images as data URIs. `width`, `height`: pixels. `step`: sampling
        stride of the vectors, pixels; `columns`, `rows`: their grid size. `vectors`: base64 of int16, all rows of u,
        then all rows of v, in multiples of `unit` pixels. `confidence`: base64 of uint8, 255 is 1. `scale`: as given.
    """
    height, width = result.flow.shape[1:]
    step = cell_step(height, width, max_cells)
    vectors = result.flow[:, ::step, ::step].float().cpu().numpy()
    unit = float(np.abs(vectors).max()) / _LEVELS or 1.0
    return {
        "image": jpeg_data_uri(image),
        "flow": png_data_uri(colorize_flow(result.flow.cpu(), scale)),
        "width": width,
        "height": height,
        "step": step,
        "columns": vectors.shape[2],
        "rows": vectors.shape[1],
        "unit": unit,
        "vectors": to_base64((vectors / unit).round().astype("<i2").tobytes()),
        "confidence": confidence_text(result.confidence, step),
        "scale": scale,
    }
