"""Boxes drawn onto the frames of a clip: a colour for every target, and broken lines around one that is lost."""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from protoformer.inference.track_boxes import Box
from protoformer.inference.track_results import TrackedBox
from protoformer.show.prototypes import Pixels, distinct_colours

_BITS = 4
"""Binary places of a coordinate: boxes move smoothly, and not from pixel to pixel."""
_DASH = 7
"""Length of a dash, and of the gap after it, in widths of the line."""
_LINE_OF_FRAME = 1 / 360
_LETTERS_OF_FRAME = 1 / 1300
_DIM = 0.55
_FONT = cv2.FONT_HERSHEY_SIMPLEX

Colour = tuple[int, int, int]


def target_colour(index: int) -> Colour:
    """The colour of a target, the same in every frame, picture and page: RGB, 0 to 255."""
    red, green, blue = (round(255 * float(part)) for part in distinct_colours(index + 1)[index])
    return red, green, blue


def draw_targets(frame: Pixels, targets: Sequence[TrackedBox]) -> Pixels:
    """Draw every target's box, number from 1 and score onto a frame, uint8 H x W x 3, which is changed and returned.

    A lost target is where it was last seen, in broken, dim lines, and its label says so.
    """
    for index, target in enumerate(targets):
        colour = target_colour(index)
        if target.lost:
            colour = (round(colour[0] * _DIM), round(colour[1] * _DIM), round(colour[2] * _DIM))
        corners = _outline(frame, target.box, colour, target.lost)
        text = f"{index + 1}  lost" if target.lost else f"{index + 1}  {target.score:.2f}"
        _label(frame, text, (corners[0][0], corners[0][1], corners[2][1]), colour)
    return frame


def _outline(frame: Pixels, box: Box, colour: Colour, broken: bool) -> tuple[tuple[float, float], ...]:
    """Draw a box, set off from any background; returns its corners."""
    line = max(2, round(max(frame.shape[:2]) * _LINE_OF_FRAME))
    corners = _corners(box, frame)
    for paint, width in ((_against(colour), line + 2), (colour, line)):
        for first, second in zip(corners, (*corners[1:], corners[0]), strict=True):
            _side(frame, first, second, paint, width, _DASH * line if broken else None)
    return corners


def _corners(box: Box, frame: Pixels) -> tuple[tuple[float, float], ...]:
    """The centres of a box's corner pixels, around; a box far outside the frame is cut off well beyond its border."""
    x, y, width, height = box
    far = 2.0 * max(frame.shape[:2])
    left, top = (min(max(-far, place), 2 * far) for place in (x, y))
    right, bottom = (min(max(-far, place), 2 * far) for place in (x + max(1.0, width) - 1, y + max(1.0, height) - 1))
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _side(
    frame: Pixels,
    first: tuple[float, float],
    second: tuple[float, float],
    colour: Colour,
    width: int,
    dash: float | None,
) -> None:
    """A line, or, with a length of dashes in pixels, a broken one that begins and ends with a dash."""
    pieces = 1 if dash is None else max(1, 2 * math.ceil(math.dist(first, second) / dash / 2) - 1)

    def end(place: int) -> tuple[int, int]:
        x, y = (round((a + (b - a) * place / pieces) * 2**_BITS) for a, b in zip(first, second, strict=True))
        return x, y

    for piece in range(0, pieces, 2):
        cv2.line(frame, end(piece), end(piece + 1), colour, width, cv2.LINE_AA, _BITS)


def _label(frame: Pixels, text: str, place: tuple[float, float, float], colour: Colour) -> None:
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
    cv2.rectangle(frame, (x, y), (x + wide + 2 * margin, y + tall), colour, cv2.FILLED)
    ink = _against(colour)
    cv2.putText(frame, text, (x + margin, y + high + margin // 2 + 1), _FONT, size, ink, thick, cv2.LINE_AA)


def _against(colour: Colour) -> Colour:
    """Black or white, whichever can be told from a colour; around lines it sets them off from any background."""
    light = float(np.dot(colour, (0.299, 0.587, 0.114))) > 128
    return (0, 0, 0) if light else (255, 255, 255)
