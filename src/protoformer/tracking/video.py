"""Targets through a clip: frames are read, looked at and forgotten one after the other."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeVar

from protoformer.errors import InputError
from protoformer.io.image_input import ImageLike
from protoformer.io.memory import trim_memory
from protoformer.tracking.result import Boxes, TrackedBox, check_boxes, parse_boxes
from protoformer.video.types import ImageArray, Video
from protoformer.viz.text import SummaryRepr, format_count, format_size, format_time


class TargetTracker(Protocol):
    """What follows targets that it was shown once: a model's `Tracker`, or a baseline."""

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Where each target is in the next frame."""


TrackMethod = Callable[[ImageLike, Boxes], TargetTracker]
"""Begins with the first frame and the boxes in it."""
Frame = TypeVar("Frame")


@dataclass(frozen=True, eq=False, repr=False)
class TrackFrame(SummaryRepr):
    """One frame of a clip, and where the targets are in it.

    image: uint8 H x W x 3, yours to change. number: from 0 in the whole clip. time: seconds, exact. seconds: what the
    method itself took.
    """

    image: ImageArray
    number: int
    time: Fraction
    targets: tuple[TrackedBox, ...]
    seconds: float

    def _facts(self) -> tuple[str, ...]:
        lost = sum(target.lost for target in self.targets)
        return (
            format_time(self.number, self.time),
            format_size(*self.image.shape[:2]),
            f"{format_count(len(self.targets), 'target')}, {lost} lost",
        )


def track_frames(
    movie: Video,
    boxes: Boxes,
    method: TrackMethod,
    start: float | None = None,
    end: float | None = None,
    every: int = 1,
) -> Iterator[TrackFrame]:
    """Every frame of a clip that is taken, with its targets; in the first they are where the boxes say.

    Less than two frames are an `InputError`, which comes after the first step.
    """
    given = check_boxes(boxes, movie.info.size)
    frames, name = trim_memory(movie.frames(start, end, every)), str(movie.info.paths[0])
    for frame, targets, seconds in track_targets(frames, lambda frame: frame.image, given, method, name):
        yield TrackFrame(frame.image, frame.number, frame.time, targets, seconds)


def track_targets(
    frames: Iterable[Frame], image_of: Callable[[Frame], ImageLike], boxes: Boxes, method: TrackMethod, name: str
) -> Iterator[tuple[Frame, tuple[TrackedBox, ...], float]]:
    """Every frame with its targets and the seconds that the method took; name: what errors call the clip."""
    following: TargetTracker | None = None
    taken = 0
    for frame in frames:
        began = time.perf_counter()
        if following is None:
            following = method(image_of(frame), boxes)
            targets = tuple(TrackedBox(box, 1.0, False) for box in parse_boxes(boxes))
        else:
            targets = following.update(image_of(frame))
        taken += 1
        yield frame, targets, time.perf_counter() - began
    if taken < 2:
        found = "one frame" if taken else "no frame"
        raise InputError(f"{name} has {found} in this span; tracking needs two, so choose another.")
