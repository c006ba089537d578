"""Frame-by-frame tracking through a video, in constant memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from protoformer.errors import InputError
from protoformer.io.image_input import ImageLike
from protoformer.io.memory import trim_memory
from protoformer.tracking.result import Boxes, TrackedBox, check_boxes, parse_boxes
from protoformer.video.types import ImageArray, Video, VideoFrame
from protoformer.viz.report import SummaryRepr, format_count, format_size, format_time


class TargetTracker(Protocol):
    """An online tracker that was initialized with a first frame: `Tracker`, or a baseline."""

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Locate each target in the next frame."""


TrackMethod = Callable[[ImageLike, Boxes], TargetTracker]
"""Initializes a tracker with the first frame and the boxes in it."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackFrame(SummaryRepr):
    """One frame of a clip and the state of the targets in it.

    Attributes:
        frame: The frame, uint8 H x W x 3; the caller may modify it.
        number: Frame number, from 0 in the whole clip.
        time: Timestamp, seconds, exact.
        targets: State of each target.
        seconds: Run time of the tracker on this frame, without decoding.
    """

    frame: ImageArray
    number: int
    time: Fraction
    targets: tuple[TrackedBox, ...]
    seconds: float

    def _facts(self) -> tuple[str, ...]:
        lost = sum(target.lost for target in self.targets)
        return (
            format_time(self.number, self.time),
            format_size(*self.frame.shape[:2]),
            f"{format_count(len(self.targets), 'target')}, {lost} lost",
        )


def track_frames(
    video: Video,
    boxes: Boxes,
    method: TrackMethod,
    start: float | None = None,
    end: float | None = None,
    frame_step: int = 1,
) -> Iterator[TrackFrame]:
    """Track targets through a video; in the first frame they are at the given boxes.

    Args:
        video: Video to read.
        boxes: Boxes in the first selected frame, (x, y, w, h) in pixels.
        method: Tracker to run.
        start: Start of the span, seconds.
        end: End of the span, seconds.
        frame_step: Frame step.

    Yields:
        Every selected frame with its targets.

    Raises:
        InputError: If a box is not valid, or, after the first frame, if the span has fewer than two frames.
    """
    checked = check_boxes(boxes, video.info.size)
    frames, name = trim_memory(video.frames(start, end, frame_step)), str(video.info.paths[0])
    for frame, targets, seconds in track_targets(frames, checked, method, name):
        yield TrackFrame(frame.image, frame.number, frame.time, targets, seconds)


def track_targets(
    frames: Iterable[VideoFrame], boxes: Boxes, method: TrackMethod, name: str
) -> Iterator[tuple[VideoFrame, tuple[TrackedBox, ...], float]]:
    """Track targets through a sequence of frames.

    Args:
        frames: Frames in order.
        boxes: Boxes in the first frame, (x, y, w, h) in pixels.
        method: Tracker to run.
        name: Name of the clip in error messages.

    Yields:
        Each frame with its targets and the run time of the tracker, seconds.

    Raises:
        InputError: If there are fewer than two frames.
    """
    tracker: TargetTracker | None = None
    num_frames = 0
    for frame in frames:
        start_time = time.perf_counter()
        if tracker is None:
            tracker = method(frame.image, boxes)
            targets = tuple(TrackedBox(box, 1.0, False) for box in parse_boxes(boxes))
        else:
            targets = tracker.update(frame.image)
        num_frames += 1
        yield frame, targets, time.perf_counter() - start_time
    if num_frames < 2:
        count = "one frame" if num_frames else "no frame"
        raise InputError(f"{name} has {count} in this span; tracking needs two, so choose another.")
