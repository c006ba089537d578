"""The motion of a frame as a picture of a video: colors, arrows, or the frame beside its motion."""

from typing import Any

import cv2
import numpy as np
from torch import Tensor

from protoformer.flow.result import FlowResult
from protoformer.flow.video import FlowFrame
from protoformer.viz.colormaps import flow_to_color
from protoformer.viz.html import MOST_CELLS, cell_step, confidence_text, jpeg_data_uri, png_data_uri, to_base64
from protoformer.viz.images import Pixels, frame_pixels

BAND = 128
"""Rows that are painted at a time: painting takes many times the memory of the picture."""
ARROWS_ACROSS = 24
"""Arrows along the longer side of a frame."""
LEAST_DISTANCE = 16
"""Pixels from an arrow to the next, on small frames, too."""
USUAL_LENGTH = 1.5
"""Of the distance between arrows: the length of one whose motion is the clip's scale, if it is not longer by itself."""
MOST_LENGTH = 3.0
"""Of that distance: arrows are lengthened to no more, so that one fast thing does not cover all of a still clip."""
LEAST_LENGTH, LEAST_SHARE = 3.0, 0.25
"""Pixels, and share of that distance: an arrow that would be shorter than either is a dot, and not drawn."""
HEAD = 0.4
"""Of that distance: the sides of an arrow's head, if three tenths of the arrow are not shorter."""
ARROW_COLOR, ARROW_EDGE = (255, 220, 0), (0, 0, 0)


def draw_flow_frame(step: FlowFrame, scale: float, side_by_side: bool = False, arrows: bool = False) -> Pixels:
    """A step's motion in colors, full at `scale` pixels: uint8 H x W x 3; or, with `arrows`, its frame with arrows.

    Arrows are longer than the motion by `arrow_factor`, so that slow motion is seen, too.
    side_by_side: the frame, with its arrows if they are asked for, to the left of the colors, H x 2W x 3.
    """
    if not (side_by_side or arrows):
        return colorize_flow(step.flow, scale)
    frame = frame_pixels(step.image)
    if arrows:
        draw_arrows(frame, step.flow, arrow_factor(frame.shape[:2], scale))
    return np.concatenate((frame, colorize_flow(step.flow, scale)), axis=1) if side_by_side else frame


def colorize_flow(flow: Tensor, scale: float) -> Pixels:
    """A flow, 2 x H x W, in colors that are full at `scale` pixels: uint8 H x W x 3."""
    colors = np.empty((*flow.shape[1:], 3), np.uint8)
    for top in range(0, flow.shape[1], BAND):
        band = flow[:, top : top + BAND].permute(1, 2, 0).numpy()
        colors[top : top + BAND] = flow_to_color(band, scale)
    return colors


def arrow_factor(size: tuple[int, ...], scale: float) -> int:
    """How many times as long as the motion arrows are, on frames of (H, W) pixels, in a clip of this scale, pixels."""
    return max(1, round(USUAL_LENGTH * _distance(size) / scale))


def draw_arrows(frame: Pixels, flow: Tensor, factor: int = 1) -> None:
    """Draw, onto a frame of H x W x 3, where pixels of a regular grid go by a flow, 2 x H x W, up to `factor` times."""
    height, width = frame.shape[:2]
    step = _distance((height, width))
    thick = max(1, step // 16)
    least = max(LEAST_LENGTH, LEAST_SHARE * step)
    for y in range(step // 2, height, step):
        for x in range(step // 2, width, step):
            u, v = (float(part) for part in flow[:, y, x])
            length = np.hypot(u, v)
            if not least / factor <= length < 2 * max(height, width):
                continue
            reach = max(1.0, min(factor, MOST_LENGTH * step / length))
            tip, head = (round(x + reach * u), round(y + reach * v)), min(0.3, HEAD * step / (reach * length))
            for color, pixels in ((ARROW_EDGE, thick + 2), (ARROW_COLOR, thick)):
                cv2.arrowedLine(frame, (x, y), tip, color, pixels, cv2.LINE_AA, tipLength=head)


def _distance(size: tuple[int, ...]) -> int:
    """Pixels from an arrow to the next."""
    return max(LEAST_DISTANCE, max(size) // ARROWS_ACROSS)


_LEVELS = 2**15 - 1


def flow_viewer_data(result: FlowResult, image: Pixels, scale: float, most_cells: int = MOST_CELLS) -> dict[str, Any]:
    """What a page needs, of plain numbers and texts. image: the first one, uint8 H x W x 3. scale: of full colors, px.

    image, flow: pictures as data addresses. width, height: pixels. step: a vector stands for every so many pixels,
    each way; columns, rows: how many there are. unit: pixels that 1 in `vectors` means, which is base64 of int16, all
    rows of u and then those of v; confidence: base64 of uint8, 255 is 1. scale: as given.
    """
    height, width = result.flow.shape[1:]
    step = cell_step(height, width, most_cells)
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
