"""Targets through a clip: frames are read, looked at and forgotten one after the other."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeVar

from protoformer.errors import InputError
from protoformer.files import Movie
from protoformer.files.movie import Picture
from protoformer.inference.brief import Brief, count_fact, moment_fact, size_fact
from protoformer.inference.images import ImageLike
from protoformer.inference.memory import trimmed
from protoformer.inference.track_boxes import Boxes, checked_boxes, given_boxes
from protoformer.inference.track_results import TrackedBox


class Following(Protocol):
    """What follows targets that it was shown once: a model's `Tracker`, or a baseline."""

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Where each target is in the next frame."""


TrackMethod = Callable[[ImageLike, Boxes], Following]
"""Begins with the first frame and the boxes in it."""
Frame = TypeVar("Frame")


@dataclass(frozen=True, eq=False, repr=False)
class TrackStep(Brief):
    """One frame of a clip, and where the targets are in it.

    image: uint8 H x W x 3, yours to change. number: from 0 in the whole clip. time: seconds, exact. seconds: what the
    method itself took.
    """

    image: Picture
    number: int
    time: Fraction
    targets: tuple[TrackedBox, ...]
    seconds: float

    def _facts(self) -> tuple[str, ...]:
        lost = sum(target.lost for target in self.targets)
        return (
            moment_fact(self.number, self.time),
            size_fact(*self.image.shape[:2]),
            f"{count_fact(len(self.targets), 'target')}, {lost} lost",
        )


def track_steps(
    movie: Movie,
    boxes: Boxes,
    method: TrackMethod,
    start: float | None = None,
    end: float | None = None,
    every: int = 1,
) -> Iterator[TrackStep]:
    """Every frame of a clip that is taken, with its targets; in the first they are where the boxes say.

    Less than two frames are an `InputError`, which comes after the first step.
    """
    given = checked_boxes(boxes, movie.info.size)
    frames, name = trimmed(movie.frames(start, end, every)), str(movie.info.paths[0])
    for frame, targets, seconds in followed(frames, lambda frame: frame.image, given, method, name):
        yield TrackStep(frame.image, frame.number, frame.time, targets, seconds)


def followed(
    frames: Iterable[Frame], image_of: Callable[[Frame], ImageLike], boxes: Boxes, method: TrackMethod, name: str
) -> Iterator[tuple[Frame, tuple[TrackedBox, ...], float]]:
    """Every frame with its targets and the seconds that the method took; name: what errors call the clip."""
    following: Following | None = None
    taken = 0
    for frame in frames:
        began = time.perf_counter()
        if following is None:
            following = method(image_of(frame), boxes)
            targets = tuple(TrackedBox(box, 1.0, False) for box in given_boxes(boxes))
        else:
            targets = following.update(image_of(frame))
        taken += 1
        yield frame, targets, time.perf_counter() - began
    if taken < 2:
        found = "one frame" if taken else "no frame"
        raise InputError(f"{name} has {found} in this span; tracking needs two, so choose another.")
