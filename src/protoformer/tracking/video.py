"""Frame-by-frame tracking through a video, in constant memory."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.files import PathLike, TableWriter
from protoformer.io.image_input import ImageLike
from protoformer.io.memory import trim_memory
from protoformer.models.runtime import ProgressCallback
from protoformer.tracking.result import (
    HEAD,
    Boxes,
    TrackedBox,
    TrackResult,
    check_boxes,
    parse_boxes,
    save_tracks,
    table_rows,
    tracked_box,
)
from protoformer.video.clip import ClipFrames
from protoformer.video.pipeline import PipelineOutcome, run_pipeline, save_results
from protoformer.video.types import ImageArray, Video, VideoFrame, to_uint8_array
from protoformer.viz.colormaps import Picture
from protoformer.viz.report import SummaryRepr, format_count, format_size, format_time


class TargetTracker(Protocol):
    """An online tracker that was initialized with a first frame: `Tracker`, or a baseline."""

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Locate each target in the next frame."""


TrackMethod = Callable[[ImageLike, Boxes], TargetTracker]
"""Initializes a tracker with the first frame and the boxes in it."""


@dataclass(frozen=True, eq=False, repr=False)
class TrackFrame(SummaryRepr, Picture):
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

    def image(self) -> Image.Image:
        """Return the frame with the boxes drawn."""
        from protoformer.tracking.drawing import draw_targets  # it draws the results of this module

        return Image.fromarray(draw_targets(self.frame.copy(), self.targets))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the frame, H x W x 3."""
        return np.array(self.frame, dtype=dtype, copy=copy)

    def _repr_parts(self) -> tuple[str, ...]:
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
    frames, name = trim_memory(video.frames(start, end, frame_step)), video.info.name
    for frame, targets, seconds in track_targets(frames, checked, method, name):
        yield TrackFrame(frame.image, frame.number, frame.time, targets, seconds)


class TrackVideo:
    """An iterable of the `TrackFrame` of every frame; it can be iterated as often as the source can be read.

    Attributes:
        clip: The selected frames.
        boxes: Boxes in the first of them.
    """

    def __init__(self, clip: ClipFrames, boxes: Boxes, method: TrackMethod) -> None:
        self.clip, self.boxes = clip, parse_boxes(boxes)
        self._method = method
        if clip.video is not None:
            check_boxes(self.boxes, clip.video.info.size)

    def __iter__(self) -> Iterator[TrackFrame]:
        for frame, targets, seconds in track_targets(self.clip, self.boxes, self._method, self.clip.name):
            yield TrackFrame(to_uint8_array(frame.image), frame.number, frame.time, targets, seconds)

    def save(
        self,
        path: PathLike,
        *,
        csv: PathLike | None = None,
        format: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> PipelineOutcome:
        """Track, and write the frames with the boxes drawn as a video or as a folder of png files.

        Args:
            path: A video, such as track.mp4, with the times and the audio of the source; or a folder, a name without a
                suffix. A .csv writes the table alone.
            csv: A table of the boxes to write as well, as `save_tracks` does.
            format: Format of the files in a folder; "png" is the only one.
            progress: Called with the number of frames so far and the estimated total.

        Returns:
            The number of frames and the run time.
        """
        if Path(path).suffix.lower() == ".csv":
            if csv is not None:
                raise InputError(f"{path} and {csv} are both tables; give one of them, or a video first.")
            with TableWriter(path, HEAD) as table:
                return run_pipeline(self._write_rows(table))
        if csv is None:
            return save_results(path, self.clip, self, _draw, format, progress=progress)
        with TableWriter(csv, HEAD) as table:
            return save_results(path, self.clip, self._write_rows(table), _draw, format, progress=progress)

    def _write_rows(self, table: TableWriter) -> Iterator[TrackFrame]:
        """Write the rows of every frame to a table, and pass the frame on."""
        for frame in self:
            for row in table_rows(frame.number, frame.time, frame.targets):
                table.write(*row)
            yield frame


class Tracks(tuple[TrackResult, ...]):
    """The tracks of one clip, one `TrackResult` per box, which can be saved together.

    Attributes:
        clip: The frames, from which a video is drawn; None if they are not available.
    """

    clip: ClipFrames | None = None

    def save(self, path: PathLike, *, format: str | None = None) -> None:
        """Write all tracks.

        Args:
            path: A .csv table; or a video, such as track.mp4, with the boxes drawn, or a folder of its frames, for
                which the source is read again.
            format: Format of the files in a folder; "png" is the only one.
        """
        if Path(path).suffix.lower() == ".csv":
            save_tracks(path, self)
        elif self.clip is None or not self.clip.rereadable:
            raise InputError(
                "the frames of these tracks can be read only once; save a table, or use track_video, which writes a "
                "video while it tracks."
            )
        else:
            save_results(path, self.clip, self._frames(self.clip), _draw, format)

    def _frames(self, clip: ClipFrames) -> Iterator[TrackFrame]:
        for index, frame in enumerate(itertools.islice(clip, len(self[0].times))):
            targets = tuple(tracked_box(track, index) for track in self)
            yield TrackFrame(to_uint8_array(frame.image), frame.number, frame.time, targets, 0.0)


def _draw(frame: TrackFrame) -> ImageArray:
    return np.asarray(frame.image())


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
