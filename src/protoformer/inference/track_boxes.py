"""The boxes that a person gives, before anything is followed."""

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from protoformer.errors import InputError
from protoformer.files.short_values import shown

Box = tuple[float, float, float, float]
"""(x, y, w, h): the column and row of the top-left pixel, counted from 0, and the size, in pixels."""
Boxes = Tensor | Sequence[float] | Iterable[Sequence[float]]
"""N x 4, or one box alone."""


def checked_boxes(boxes: Boxes, size: tuple[int, int]) -> tuple[Box, ...]:
    """Boxes as numbers, at least one, each with an area of which a part lies in a frame of (height, width) pixels."""
    given = given_boxes(boxes)
    for x, y, width, height in given:
        if x + width <= 0 or y + height <= 0 or x >= size[1] or y >= size[0]:
            raise InputError(
                f"the box {x:g},{y:g},{width:g},{height:g} lies outside the frame of {size[1]}x{size[0]} pixels; give "
                "one that the frame shows."
            )
    return given


def given_boxes(boxes: Boxes) -> tuple[Box, ...]:
    """Boxes as numbers, at least one, each with an area, wherever it lies."""
    given = boxes.tolist() if isinstance(boxes, Tensor) else boxes
    if not isinstance(given, Iterable):
        raise InputError(f"a box is four numbers, x, y, width and height in pixels, not {shown(given)}; give these.")
    given = list(given)
    if given and not isinstance(given[0], Iterable):
        given = [given]
    if not given:
        raise InputError("there is no box to follow; give at least one as x, y, width and height in pixels.")
    return tuple(_checked(box) for box in given)


def _checked(box: Sequence[float]) -> Box:
    try:
        values = [float(value) for value in box]
    except (TypeError, ValueError):
        raise InputError(
            f"a box is four numbers, x, y, width and height in pixels, not {shown(box)}; give these."
        ) from None
    if len(values) != 4:
        raise InputError(f"a box is four numbers, x, y, width and height, and not {len(values)}; give these.")
    text = ",".join(f"{value:g}" for value in values)
    if not all(math.isfinite(value) for value in values):
        raise InputError(f"the box {text} has a number that is not finite; give x, y, width and height in pixels.")
    x, y, width, height = values
    if width <= 0 or height <= 0:
        raise InputError(f"the box {text} has no area; give a width and a height over 0.")
    return x, y, width, height
