"""Boxes drawn onto the frames of a clip: a color for every target, and broken lines around one that is lost."""

import math
from collections.abc import Sequence

import cv2
import numpy as np
from torch import Tensor

from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking.result import Box, TrackedBox
from protoformer.viz.images import Pixels, distinct_colors, to_uint8

_BITS = 4
"""Binary places of a coordinate: boxes move smoothly, and not from pixel to pixel."""
_DASH = 7
"""Length of a dash, and of the gap after it, in widths of the line."""
_LINE_OF_FRAME = 1 / 360
_LETTERS_OF_FRAME = 1 / 1300
_DIM = 0.55
_FONT = cv2.FONT_HERSHEY_SIMPLEX

Color = tuple[int, int, int]


def target_color(index: int) -> Color:
    """The color of a target, the same in every frame, picture and page: RGB, 0 to 255."""
    red, green, blue = (round(255 * float(part)) for part in distinct_colors(index + 1)[index])
    return red, green, blue


def draw_targets(frame: Pixels, targets: Sequence[TrackedBox]) -> Pixels:
    """Draw every target's box, number from 1 and score onto a frame, uint8 H x W x 3, which is changed and returned.

    A lost target is where it was last seen, in broken, dim lines, and its label says so.
    """
    for index, target in enumerate(targets):
        color = target_color(index)
        if target.lost:
            color = (round(color[0] * _DIM), round(color[1] * _DIM), round(color[2] * _DIM))
        corners = _outline(frame, target.box, color, target.lost)
        text = f"{index + 1}  lost" if target.lost else f"{index + 1}  {target.score:.2f}"
        _label(frame, text, (corners[0][0], corners[0][1], corners[2][1]), color)
    return frame


def _outline(frame: Pixels, box: Box, color: Color, broken: bool) -> tuple[tuple[float, float], ...]:
    """Draw a box, set off from any background; returns its corners."""
    line = max(2, round(max(frame.shape[:2]) * _LINE_OF_FRAME))
    corners = _corners(box, frame)
    for paint, width in ((_against(color), line + 2), (color, line)):
        for first, second in zip(corners, (*corners[1:], corners[0]), strict=True):
            _side(frame, first, second, paint, width, _DASH * line if broken else None)
    return corners


def _corners(box: Box, frame: Pixels) -> tuple[tuple[float, float], ...]:
    """The centers of a box's corner pixels, around; a box far outside the frame is cut off well beyond its border."""
    x, y, width, height = box
    far = 2.0 * max(frame.shape[:2])
    left, top = (min(max(-far, place), 2 * far) for place in (x, y))
    right, bottom = (min(max(-far, place), 2 * far) for place in (x + max(1.0, width) - 1, y + max(1.0, height) - 1))
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _side(
    frame: Pixels,
    first: tuple[float, float],
    second: tuple[float, float],
    color: Color,
    width: int,
    dash: float | None,
) -> None:
    """A line, or, with a length of dashes in pixels, a broken one that begins and ends with a dash."""
    pieces = 1 if dash is None else max(1, 2 * math.ceil(math.dist(first, second) / dash / 2) - 1)

    def end(place: int) -> tuple[int, int]:
        x, y = (round((a + (b - a) * place / pieces) * 2**_BITS) for a, b in zip(first, second, strict=True))
        return x, y

    for piece in range(0, pieces, 2):
        cv2.line(frame, end(piece), end(piece + 1), color, width, cv2.LINE_AA, _BITS)


def _label(frame: Pixels, text: str, place: tuple[float, float, float], color: Color) -> None:
    """A tag on the box's upper side; below the box, or inside the frame, where there is no room. place: left, top,
    bottom of the box.
    """
    height, width = frame.shape[:2]
    size = max(0.35, max(height, width) * _LETTERS_OF_FRAME)
    thick = max(1, round(size * 1.6))
    (wide, high), base = cv2.getTextSize(text, _FONT, size, thick)
    margin = max(2, high // 3)
    left, top, bottom = place
    tall = high + base + margin
    above = top - tall >= 0
    x = round(min(max(0.0, left), max(0.0, width - wide - 2 * margin)))
    y = round(min(max(0.0, top - tall if above else bottom + 1), max(0.0, height - tall)))
    cv2.rectangle(frame, (x, y), (x + wide + 2 * margin, y + tall), color, cv2.FILLED)
    ink = _against(color)
    cv2.putText(frame, text, (x + margin, y + high + margin // 2 + 1), _FONT, size, ink, thick, cv2.LINE_AA)


def _against(color: Color) -> Color:
    """Black or white, whichever can be told from a color; around lines it sets them off from any background."""
    light = float(np.dot(color, (0.299, 0.587, 0.114))) > 128
    return (0, 0, 0) if light else (255, 255, 255)


GIVEN, TRUE, FOUND = (255, 255, 255), (60, 220, 60), (255, 60, 60)
"""Colors of the target's box where it is known, where it is, and where it was found."""


def draw_pair(pairs: TrackPairs, found: Tensor) -> Pixels:
    """Reference and search side by side, uint8 S x (R + S) x 3; found: 5, box in search pixels and score in [0, 1].

    The true box is drawn where there is one. Below the reference a bar as long as the score: full is sure.
    """
    reference, search = to_uint8(pairs.reference[0]), to_uint8(pairs.search[0])
    _frame(reference, pairs.reference_boxes[0], GIVEN)
    if bool(pairs.located[0]):
        _frame(search, pairs.boxes[0], TRUE)
    _frame(search, found[:4], FOUND)
    height, wide = max(len(reference), len(search)), reference.shape[1]
    sheet = np.zeros((height, wide + search.shape[1], 3), dtype=np.uint8)
    sheet[: len(reference), :wide] = reference
    sheet[: len(search), wide:] = search
    sheet[-3:, : round(wide * float(found[4].clamp(0, 1)))] = FOUND
    return sheet


def _frame(pixels: Pixels, box: Tensor, color: tuple[int, int, int]) -> None:
    """Draw the outline of a box (x, y, w, h), one pixel wide, as far as it lies on the picture."""
    height, width = pixels.shape[:2]
    x, y, across, down = box.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).tolist()
    left, right = (round(min(max(place, 0), width - 1)) for place in (x, x + across - 1))
    top, bottom = (round(min(max(place, 0), height - 1)) for place in (y, y + down - 1))
    pixels[top : bottom + 1, (left, right)] = color
    pixels[(top, bottom), left : right + 1] = color
