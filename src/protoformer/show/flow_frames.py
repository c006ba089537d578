"""The motion of a frame as a picture of a video: colours, arrows, or the frame beside its motion."""

import cv2
import numpy as np
from torch import Tensor

from protoformer.files import flow_to_color
from protoformer.inference import FlowStep
from protoformer.show.prototypes import Pixels, picture

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
ARROW_COLOUR, ARROW_EDGE = (255, 220, 0), (0, 0, 0)


def flow_frame(step: FlowStep, scale: float, side_by_side: bool = False, arrows: bool = False) -> Pixels:
    """A step's motion in colours, full at `scale` pixels: uint8 H x W x 3; or, with `arrows`, its frame with arrows.

    Arrows are longer than the motion by `arrow_factor`, so that slow motion is seen, too.
    side_by_side: the frame, with its arrows if they are asked for, to the left of the colours, H x 2W x 3.
    """
    if not (side_by_side or arrows):
        return painted(step.flow, scale)
    frame = frame_pixels(step.image)
    if arrows:
        draw_arrows(frame, step.flow, arrow_factor(frame.shape[:2], scale))
    return np.concatenate((frame, painted(step.flow, scale)), axis=1) if side_by_side else frame


def painted(flow: Tensor, scale: float) -> Pixels:
    """A flow, 2 x H x W, in colours that are full at `scale` pixels: uint8 H x W x 3."""
    colours = np.empty((*flow.shape[1:], 3), np.uint8)
    for top in range(0, flow.shape[1], BAND):
        band = flow[:, top : top + BAND].permute(1, 2, 0).numpy()
        colours[top : top + BAND] = flow_to_color(band, scale)
    return colours


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
            for colour, pixels in ((ARROW_EDGE, thick + 2), (ARROW_COLOUR, thick)):
                cv2.arrowedLine(frame, (x, y), tip, colour, pixels, cv2.LINE_AA, tipLength=head)


def _distance(size: tuple[int, ...]) -> int:
    """Pixels from an arrow to the next."""
    return max(LEAST_DISTANCE, max(size) // ARROWS_ACROSS)


def frame_pixels(image: Tensor | None) -> Pixels:
    """The frame of a step, 3 x H x W, as uint8 H x W x 3 to draw on."""
    if image is None:
        raise ValueError("the step comes without its frame")
    if image.is_floating_point():
        return np.ascontiguousarray(picture(image))
    return np.array(image.permute(1, 2, 0).numpy(), order="C", copy=True)
