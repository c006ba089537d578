"""Drawing of tracked boxes: one color per target, dashed lines for lost targets."""

import math
from collections.abc import Sequence

import cv2
import numpy as np
from torch import Tensor

from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking.result import Box, TrackedBox
from protoformer.viz.colormaps import Pixels, distinct_colors, to_uint8

_SUBPIXEL_BITS = 4
"""Fractional bits of OpenCV coordinates, so that boxes move with subpixel steps."""
_DASH = 7
"""Length of a dash, and of the gap after it, in line widths."""
_LINE_WIDTH = 1 / 360
_FONT_SCALE = 1 / 1300
"""Line width and font scale, relative to the longer side of the frame."""
_DIM = 0.55
_FONT = cv2.FONT_HERSHEY_SIMPLEX

Color = tuple[int, int, int]


def target_color(index: int) -> Color:
    """Return the color of a target, the same in every frame, image and page: RGB, 0 to 255."""
    red, green, blue = (round(255 * float(part)) for part in distinct_colors(index + 1)[index])
    return red, green, blue


def draw_targets(frame: Pixels, targets: Sequence[TrackedBox]) -> Pixels:
    """Draw the box, number (from 1) and score of every target onto a frame.

    A lost target is drawn at its last visible position, in dim, dashed lines, with the label "lost".

    Args:
        frame: uint8 H x W x 3, modified in place.
        targets: Targets in the frame.

    Returns:
        The frame.
    """
    for index, target in enumerate(targets):
        color = target_color(index)
        if target.lost:
            color = (round(color[0] * _DIM), round(color[1] * _DIM), round(color[2] * _DIM))
        corners = _draw_outline(frame, target.box, color, target.lost)
        text = f"{index + 1}  lost" if target.lost else f"{index + 1}  {target.score:.2f}"
        _draw_label(frame, text, (corners[0][0], corners[0][1], corners[2][1]), color)
    return frame


def _draw_outline(frame: Pixels, box: Box, color: Color, dashed: bool) -> tuple[tuple[float, float], ...]:
    """Draw a box with a contrasting border and return its corners."""
    line = max(2, round(max(frame.shape[:2]) * _LINE_WIDTH))
    corners = _corner_pixels(box, frame)
    for line_color, width in ((_contrast_color(color), line + 2), (color, line)):
        for first, second in zip(corners, (*corners[1:], corners[0]), strict=True):
            _draw_side(frame, first, second, line_color, width, _DASH * line if dashed else None)
    return corners


def _corner_pixels(box: Box, frame: Pixels) -> tuple[tuple[float, float], ...]:
    """Return the centers of the corner pixels of a box, clockwise; far outside the frame they are clamped."""
    x, y, width, height = box
    limit = 2.0 * max(frame.shape[:2])
    left, top = (min(max(-limit, value), 2 * limit) for value in (x, y))
    right, bottom = (
        min(max(-limit, value), 2 * limit) for value in (x + max(1.0, width) - 1, y + max(1.0, height) - 1)
    )
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _draw_side(
    frame: Pixels,
    first: tuple[float, float],
    second: tuple[float, float],
    color: Color,
    width: int,
    dash: float | None,
) -> None:
    """Draw a line; with a dash length in pixels, a dashed one that begins and ends with a dash."""
    num_segments = 1 if dash is None else max(1, 2 * math.ceil(math.dist(first, second) / dash / 2) - 1)

    def point(index: int) -> tuple[int, int]:
        x, y = (
            round((a + (b - a) * index / num_segments) * 2**_SUBPIXEL_BITS) for a, b in zip(first, second, strict=True)
        )
        return x, y

    for segment in range(0, num_segments, 2):
        cv2.line(frame, point(segment), point(segment + 1), color, width, cv2.LINE_AA, _SUBPIXEL_BITS)


def _draw_label(frame: Pixels, text: str, position: tuple[float, float, float], color: Color) -> None:
    """Draw a label above the box; if there is no room, below it or inside the frame.

    Args:
        frame: uint8 H x W x 3, modified in place.
        text: Text of the label.
        position: Left, top and bottom of the box, pixels.
        color: Background color.
    """
    height, width = frame.shape[:2]
    font_scale = max(0.35, max(height, width) * _FONT_SCALE)
    thickness = max(1, round(font_scale * 1.6))
    (text_width, text_height), baseline = cv2.getTextSize(text, _FONT, font_scale, thickness)
    margin = max(2, text_height // 3)
    left, top, bottom = position
    label_height = text_height + baseline + margin
    above = top - label_height >= 0
    x = round(min(max(0.0, left), max(0.0, width - text_width - 2 * margin)))
    y = round(min(max(0.0, top - label_height if above else bottom + 1), max(0.0, height - label_height)))
    cv2.rectangle(frame, (x, y), (x + text_width + 2 * margin, y + label_height), color, cv2.FILLED)
    text_color = _contrast_color(color)
    cv2.putText(
        frame,
        text,
        (x + margin, y + text_height + margin // 2 + 1),
        _FONT,
        font_scale,
        text_color,
        thickness,
        cv2.LINE_AA,
    )


def _contrast_color(color: Color) -> Color:
    """Return black or white, whichever contrasts with a color."""
    light = float(np.dot(color, (0.299, 0.587, 0.114))) > 128
    return (0, 0, 0) if light else (255, 255, 255)


REFERENCE_COLOR, TRUTH_COLOR, PREDICTION_COLOR = (255, 255, 255), (60, 220, 60), (255, 60, 60)
"""Colors of the reference box, the true box and the predicted box."""


def draw_pair(pairs: TrackPairs, predicted: Tensor) -> Pixels:
    """Draw the reference and the search crop of a pair side by side.

    The true box is drawn if the target is located. The length of the bar below the reference shows the score.

    Args:
        pairs: A single pair, N = 1.
        predicted: 5, box in pixels of the search crop and score in [0, 1].

    Returns:
        uint8 S x (R + S) x 3.
    """
    reference, search = to_uint8(pairs.reference[0]), to_uint8(pairs.search[0])
    _draw_box(reference, pairs.reference_boxes[0], REFERENCE_COLOR)
    if bool(pairs.located[0]):
        _draw_box(search, pairs.boxes[0], TRUTH_COLOR)
    _draw_box(search, predicted[:4], PREDICTION_COLOR)
    height, width = max(len(reference), len(search)), reference.shape[1]
    canvas = np.zeros((height, width + search.shape[1], 3), dtype=np.uint8)
    canvas[: len(reference), :width] = reference
    canvas[: len(search), width:] = search
    canvas[-3:, : round(width * float(predicted[4].clamp(0, 1)))] = PREDICTION_COLOR
    return canvas


def _draw_box(pixels: Pixels, box: Tensor, color: tuple[int, int, int]) -> None:
    """Draw the outline of a box (x, y, w, h), one pixel wide, clipped to the image."""
    height, width = pixels.shape[:2]
    x, y, box_width, box_height = box.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).tolist()
    left, right = (round(min(max(value, 0), width - 1)) for value in (x, x + box_width - 1))
    top, bottom = (round(min(max(value, 0), height - 1)) for value in (y, y + box_height - 1))
    pixels[top : bottom + 1, (left, right)] = color
    pixels[(top, bottom), left : right + 1] = color
