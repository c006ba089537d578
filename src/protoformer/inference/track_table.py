"""Targets as a table: a row for every frame and target."""

import math
import os
from collections.abc import Iterator, Sequence
from fractions import Fraction

from protoformer.errors import InputError
from protoformer.files.table import TableWriter
from protoformer.inference.brief import count_fact
from protoformer.inference.track_results import TrackedBox, TrackResult

HEAD = ("frame", "time", "target", "x", "y", "w", "h", "score", "lost")
"""frame: from 0 in the clip; time: seconds; target: from 1, as drawn; box: pixels; score: 0 to 1, nothing where it is
no number; lost: 0 or 1."""


def table_rows(number: int, time: Fraction, targets: Sequence[TrackedBox]) -> Iterator[tuple[str | int, ...]]:
    """The rows of a frame."""
    for place, target in enumerate(targets, 1):
        box = (f"{value:.2f}" for value in target.box)
        score = f"{target.score:.4f}" if math.isfinite(target.score) else ""
        yield number, f"{float(time):.6f}", place, *box, score, int(target.lost)


def told_of_targets(lost: Sequence[int]) -> str:
    """Words for how many targets there are, and in how many frames each was lost."""
    many = count_fact(len(lost), "target")
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
