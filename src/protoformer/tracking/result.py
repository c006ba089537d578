"""Tracking results, and parsing and validation of boxes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import PathLike, TableWriter, check_output, short_repr, write_atomically
from protoformer.io.formats import encode_npz
from protoformer.viz.report import SummaryRepr, format_count, format_training


@dataclass(frozen=True)
class TrackedBox:
    """State of one target in one frame.

    Attributes:
        box: (x, y, w, h) in pixels, top-left corner; pixel i covers the interval from i to i + 1.
        score: Confidence in [0, 1].
        lost: Whether the target is not visible; `box` is then its last visible position.
    """

    box: tuple[float, float, float, float]
    score: float
    lost: bool


@dataclass(frozen=True, repr=False)
class TrackResult(SummaryRepr):
    """Track of one target through a clip of T frames; `numpy.asarray` of it is the boxes, T x 4.

    Attributes:
        boxes: T x 4, float, (x, y, w, h) in pixels.
        scores: T, confidence in [0, 1].
        lost: T, bool.
        times: T, seconds, exact.
        numbers: T, frame numbers, counted from 0 in the whole clip.
        trained: Whether the network has trained weights.
    """

    boxes: Tensor
    scores: Tensor
    lost: Tensor
    times: tuple[Fraction, ...]
    numbers: tuple[int, ...]
    trained: bool = True

    def save(self, path: PathLike) -> None:
        """Write the track atomically as .csv, see `save_tracks`, or .npz: boxes, scores, lost, times and numbers."""
        if Path(path).suffix.lower() != ".npz":
            save_tracks(path, [self])
            return
        arrays = {name: getattr(self, name).numpy() for name in ("boxes", "scores", "lost")}
        times = [float(time) for time in self.times]
        write_atomically(check_output(path), encode_npz(**arrays, times=times, numbers=self.numbers))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the boxes, float32 T x 4."""
        return np.array(self.boxes.numpy(), dtype=dtype, copy=copy)

    def _repr_parts(self) -> tuple[str, ...]:
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
"""Columns of a track table. frame: from 0 in the clip; time: seconds; target: from 1, as drawn; x, y, w, h: pixels;
score: 0 to 1, empty if not finite; lost: 0 or 1."""


def table_rows(number: int, time: Fraction, targets: Sequence[TrackedBox]) -> Iterator[tuple[str | int, ...]]:
    """Yield the table rows of one frame, one per target, with the columns of `HEAD`."""
    for index, target in enumerate(targets, 1):
        box = (f"{value:.2f}" for value in target.box)
        score = f"{target.score:.4f}" if math.isfinite(target.score) else ""
        yield number, f"{float(time):.6f}", index, *box, score, int(target.lost)


def describe_targets(lost: Sequence[int]) -> str:
    """Describe the number of targets and the number of frames in which each was lost."""
    targets = format_count(len(lost), "target")
    return f"{targets}, " + (f"lost in {' and '.join(map(str, lost))} of them" if any(lost) else "never lost")


def save_tracks(path: PathLike, results: Sequence[TrackResult]) -> None:
    """Write the tracks of one clip, one per target, atomically to a .csv file, as `protoformer track --csv` does."""
    if not results:
        raise InputError("there is no track to write; give at least one.")
    with TableWriter(path, HEAD) as table:
        for index, (number, time) in enumerate(zip(results[0].numbers, results[0].times, strict=True)):
            for row in table_rows(number, time, [tracked_box(result, index) for result in results]):
                table.write(*row)


def tracked_box(result: TrackResult, index: int) -> TrackedBox:
    """Return the state of a target in the frame at an index."""
    x, y, width, height = result.boxes[index].tolist()
    return TrackedBox((x, y, width, height), float(result.scores[index]), bool(result.lost[index]))


Box = tuple[float, float, float, float]
"""(x, y, w, h): column and row of the top-left pixel, counted from 0, and the size, in pixels."""
Boxes = Tensor | Sequence[float] | Iterable[Sequence[float]]
"""N x 4, or a single box."""


def check_boxes(boxes: Boxes, size: tuple[int, int]) -> tuple[Box, ...]:
    """Parse boxes, N x 4 or one, (x, y, w, h) in pixels, and check that each overlaps a frame of (height, width)."""
    parsed = parse_boxes(boxes)
    for x, y, width, height in parsed:
        if x + width <= 0 or y + height <= 0 or x >= size[1] or y >= size[0]:
            raise InputError(
                f"the box {x:g},{y:g},{width:g},{height:g} lies outside the frame of {size[1]}x{size[0]} pixels; give "
                "one that overlaps the frame."
            )
    return parsed


def parse_boxes(boxes: Boxes) -> tuple[Box, ...]:
    """Parse boxes, N x 4 or one, (x, y, w, h) in pixels, each with a positive area; they may lie outside any frame."""
    rows = boxes.tolist() if isinstance(boxes, Tensor) else boxes
    if not isinstance(rows, Iterable):
        raise InputError(
            f"a box is four numbers, x, y, width and height in pixels, not {short_repr(rows)}; give these."
        )
    rows = list(rows)
    if rows and not isinstance(rows[0], Iterable):
        rows = [rows]
    if not rows:
        raise InputError("there is no box to track; give at least one as x, y, width and height in pixels.")
    return tuple(_parse_box(box) for box in rows)


def _parse_box(box: Sequence[float]) -> Box:
    try:
        values = [float(value) for value in box]
    except (TypeError, ValueError):
        raise InputError(
            f"a box is four numbers, x, y, width and height in pixels, not {short_repr(box)}; give these."
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
    """Raise an `InputError` if the (height, width) of a frame differs from that of the first frame."""
    if size != first:
        raise InputError(
            f"the frame is {size[1]}x{size[0]} where the first was {first[1]}x{first[0]}; give frames of one size, or "
            "reset the tracker."
        )
