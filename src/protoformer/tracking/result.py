"""What following a target returns: frozen records in plain units."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import TableWriter, shown
from protoformer.viz.text import SummaryRepr, format_count, format_training


@dataclass(frozen=True)
class TrackedBox:
    """Where a target is in a frame.

    box: (x, y, w, h) in pixels, top-left; a pixel i reaches from i to i + 1. score: in [0, 1]. lost: whether the target
    is not seen; the box is then the last one that was.
    """

    box: tuple[float, float, float, float]
    score: float
    lost: bool


@dataclass(frozen=True, repr=False)
class TrackResult(SummaryRepr):
    """One target through a clip of T frames.

    boxes: T x 4, float, (x, y, w, h) in pixels. scores: T in [0, 1]. lost: T, bool. times: T, seconds, exact. numbers:
    of the frames, from 0 in the whole clip. trained: whether the weights were.
    """

    boxes: Tensor
    scores: Tensor
    lost: Tensor
    times: tuple[Fraction, ...]
    numbers: tuple[int, ...]
    trained: bool = True

    def _facts(self) -> tuple[str, ...]:
        if not self.times:
            return (format_count(0, "frame"), format_training(self.trained))
        return (
            format_count(len(self.times), "frame"),
            f"{float(self.times[0]):.3f} to {float(self.times[-1]):.3f} s",
            f"lost in {int(self.lost.sum())}",
            f"mean score {self.scores.float().mean():.2f}",
            format_training(self.trained),
        )


HEAD = ("frame", "time", "target", "x", "y", "w", "h", "score", "lost")
"""frame: from 0 in the clip; time: seconds; target: from 1, as drawn; box: pixels; score: 0 to 1, nothing where it is
no number; lost: 0 or 1."""


def table_rows(number: int, time: Fraction, targets: Sequence[TrackedBox]) -> Iterator[tuple[str | int, ...]]:
    """The rows of a frame."""
    for place, target in enumerate(targets, 1):
        box = (f"{value:.2f}" for value in target.box)
        score = f"{target.score:.4f}" if math.isfinite(target.score) else ""
        yield number, f"{float(time):.6f}", place, *box, score, int(target.lost)


def describe_targets(lost: Sequence[int]) -> str:
    """Words for how many targets there are, and in how many frames each was lost."""
    many = format_count(len(lost), "target")
    return f"{many}, " + (f"lost in {' and '.join(map(str, lost))} of them" if any(lost) else "never lost")


def save_tracks(path: str | os.PathLike[str], results: Sequence[TrackResult]) -> None:
    """Write what `TrackModel.track` found as a csv file, whole or not at all: as `protoformer track --csv` does."""
    if not results:
        raise InputError("there is no track to write; give at least one.")
    with TableWriter(path, HEAD) as table:
        for place, (number, time) in enumerate(zip(results[0].numbers, results[0].times, strict=True)):
            for row in table_rows(number, time, [_target(result, place) for result in results]):
                table.write(*row)


def _target(result: TrackResult, place: int) -> TrackedBox:
    x, y, width, height = result.boxes[place].tolist()
    return TrackedBox((x, y, width, height), float(result.scores[place]), bool(result.lost[place]))


Box = tuple[float, float, float, float]
"""(x, y, w, h): the column and row of the top-left pixel, counted from 0, and the size, in pixels."""
Boxes = Tensor | Sequence[float] | Iterable[Sequence[float]]
"""N x 4, or one box alone."""


def check_boxes(boxes: Boxes, size: tuple[int, int]) -> tuple[Box, ...]:
    """Boxes as numbers, at least one, each with an area of which a part lies in a frame of (height, width) pixels."""
    given = parse_boxes(boxes)
    for x, y, width, height in given:
        if x + width <= 0 or y + height <= 0 or x >= size[1] or y >= size[0]:
            raise InputError(
                f"the box {x:g},{y:g},{width:g},{height:g} lies outside the frame of {size[1]}x{size[0]} pixels; give "
                "one that the frame shows."
            )
    return given


def parse_boxes(boxes: Boxes) -> tuple[Box, ...]:
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


def check_size(size: tuple[int, int], first: tuple[int, int]) -> None:
    """Refuse a frame whose (height, width) is not that of the first."""
    if size != first:
        raise InputError(
            f"the frame is {size[1]}x{size[0]} where the first was {first[1]}x{first[0]}; give frames of one size, or "
            "reset the tracker."
        )
