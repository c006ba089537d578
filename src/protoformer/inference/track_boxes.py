"""The boxes that a person gives, before anything is followed."""

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from protoformer.errors import InputError

Box = tuple[float, float, float, float]
"""(x, y, w, h): the column and row of the top-left pixel, counted from 0, and the size, in pixels."""
Boxes = Tensor | Sequence[float] | Iterable[Sequence[float]]
"""N x 4, or one box alone."""


def checked_boxes(boxes: Boxes, size: tuple[int, int]) -> tuple[Box, ...]:
    """Boxes as numbers, at least one, each with an area of which a part lies in a frame of (height, width) pixels."""
    given = boxes.tolist() if isinstance(boxes, Tensor) else list(boxes)
    if given and not isinstance(given[0], Sequence | Iterable):
        given = [given]
    if not given:
        raise InputError("there is no box to follow; give at least one as x, y, width and height in pixels.")
    return tuple(_checked(box, size) for box in given)


def _checked(box: Sequence[float], size: tuple[int, int]) -> Box:
    try:
        values = [float(value) for value in box]
    except (TypeError, ValueError):
        raise InputError(f"a box is four numbers, x, y, width and height in pixels, not {box!r}; give these.") from None
    if len(values) != 4:
        raise InputError(f"a box is four numbers, x, y, width and height, and not {len(values)}; give these.")
    shown = ",".join(f"{value:g}" for value in values)
    if not all(math.isfinite(value) for value in values):
        raise InputError(f"the box {shown} has a number that is not finite; give x, y, width and height in pixels.")
    x, y, width, height = values
    if width <= 0 or height <= 0:
        raise InputError(f"the box {shown} has no area; give a width and a height over 0.")
    if x + width <= 0 or y + height <= 0 or x >= size[1] or y >= size[0]:
        raise InputError(
            f"the box {shown} lies outside the frame of {size[1]}x{size[0]} pixels; give one that the frame shows."
        )
    return x, y, width, height
