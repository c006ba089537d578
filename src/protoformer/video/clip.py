"""Selected frames of a clip, from a file, an open video or frames in memory."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.io.files import PathLike
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.io.memory import trim_memory
from protoformer.video.live import LiveSource, is_live_source
from protoformer.video.reader import open_video
from protoformer.video.types import DEFAULT_FPS, Video, VideoFrame, check_frame_step, check_seconds, exact_fps
from protoformer.video.writer import VideoWriter

Source = LiveSource | os.PathLike[str] | Video | Iterable[ImageLike]
"""A source of `open_video`, an open `Video`, or frames in any form that `as_frame` accepts."""

EARLY = 0.1
"""Fraction of a frame's duration by which sampling starts before the frame, since times are rounded."""


@dataclass(frozen=True)
class Span:
    """The frames of a clip to use.

    Attributes:
        start: Time of the first frame, in seconds; None: the beginning.
        end: Time after the last frame, in seconds; None: the end.
        frame_step: Use the first of these frames and every `frame_step`-th after it.
        fps: Frames per second of images, which store no times.
    """

    start: float | Fraction | None = None
    end: float | Fraction | None = None
    frame_step: int = 1
    fps: float | Fraction = DEFAULT_FPS

    def __post_init__(self) -> None:
        check_frame_step(self.frame_step)


def estimate_frame_count(
    video: Video, start: float | Fraction | None = None, end: float | Fraction | None = None, frame_step: int = 1
) -> int | None:
    """Estimate the number of selected frames; None if the video declares no length. Arguments as in `Video.frames`."""
    info = video.info
    length = info.duration if info.num_frames is None else info.num_frames / info.fps
    if length is None:
        return None
    first = Fraction(check_seconds(start or 0, "start"))
    last = length if end is None else min(length, Fraction(check_seconds(end, "end")))
    return max(0, math.ceil((last - first) * info.fps / frame_step))


def check_output_not_input(target: Path, video: Video) -> None:
    """Raise `InputError` if an output is one of the files of the input."""
    if target.exists() and any(target.samefile(path) for path in video.info.paths):
        raise InputError(f"the output {target} is also an input and would be lost; choose another name.")


def check_folder_not_input(target: Path, video: Video) -> None:
    """Raise `InputError` if a folder to write to holds the files of the input, which could be overwritten."""
    if any(path.parent.absolute() == target.absolute() for path in video.info.paths):
        raise InputError(f"the output {target} is also the folder of the input; choose another name.")


class ClipFrames:
    """An iterable over the frames of a span, all of one size.

    It can be iterated as often as its source allows.

    Attributes:
        span: The frames to use.
        video: The open video; None if the source is frames in memory.
    """

    def __init__(self, source: Source, span: Span) -> None:
        self.span = span
        self.video: Video | None = None
        self._images: Iterable[ImageLike] = ()
        if isinstance(source, Video):
            self.video = source
        elif isinstance(source, (str, os.PathLike)) or is_live_source(source):
            self.video = open_video(source, span.fps)
        elif isinstance(source, Iterable):
            self._images = source
        else:
            raise InputError(f"{source!r} is not a clip; give a path, an open video, or frames.")

    @property
    def name(self) -> str:
        """The name of the clip in error messages."""
        return "the clip" if self.video is None else self.video.info.name

    @property
    def live(self) -> bool:
        """Whether the source is a camera or a stream, whose frames must be processed as they come."""
        return self.video is not None and self.video.live

    @property
    def rereadable(self) -> bool:
        """Whether the frames can be read more than once: not those of a live source or of a generator."""
        return not isinstance(self._images, Iterator) if self.video is None else not self.video.live

    @property
    def num_frames(self) -> int:
        """Estimated number of selected frames; 0 if it is not known."""
        span = self.span
        return (self.video and estimate_frame_count(self.video, span.start, span.end, span.frame_step)) or 0

    def writer(self, path: PathLike) -> VideoWriter:
        """Create the writer of a video with a frame for each selected frame, with the times and the audio of the clip.

        Raises:
            InputError: The path is one of the files of the clip, or a video cannot be written to it.
        """
        target = Path(path)
        if self.video is not None:
            check_output_not_input(target, self.video)
        fps = self.video.info.fps if self.video is not None else exact_fps(self.span.fps, self.name)
        return VideoWriter(target, self.video, fps / self.span.frame_step)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, which has no frames if they are those of a generator."""
        return {**self.__dict__, "_images": () if isinstance(self._images, Iterator) else self._images}

    def __iter__(self) -> Iterator[VideoFrame]:
        return trim_memory(self._iterate_images() if self.video is None else self.read(self.video, self.span.start))

    def read(self, video: Video, start: float | Fraction | None) -> Iterator[VideoFrame]:
        """Read the frames of an open video from `start` (seconds) to the end of the span."""
        return video.frames(start, self.span.end, self.span.frame_step)

    def instants(self, video: Video, max_count: int, together: int = 1) -> list[float]:
        """Choose times at which to sample the span.

        Args:
            video: The open video.
            max_count: Maximum number of samples. A short span is sampled at every frame, a longer one in the middle of
                equal parts.
            together: Number of consecutive frames of each sample.

        Returns:
            Times in seconds, shortly before the first frame of each sample.
        """
        fps, first = float(video.info.fps), float(self.span.start or 0)
        duration = video.info.duration
        if duration is None:
            duration = max((frame.time for frame in video.frames(first)), default=Fraction(0)) + 1 / video.info.fps
        last = min(float(duration), float("inf") if self.span.end is None else float(self.span.end))
        num_positions = max(1, math.ceil((last - first) * fps / self.span.frame_step - EARLY) - together + 1)
        count = min(max_count, num_positions)
        starts = [(2 * index + 1) * num_positions // (2 * count) for index in range(count)]
        return [first + max(0.0, start * self.span.frame_step - EARLY) / fps for start in starts]

    def _iterate_images(self) -> Iterator[VideoFrame]:
        fps, size = exact_fps(self.span.fps, self.name), None
        start, end = self.span.start or 0, self.span.end
        count = 0
        for number, image in enumerate(self._images):
            time = number / fps
            if end is not None and float(time) >= end:
                return
            if float(time) < start:
                continue
            count += 1
            if (count - 1) % self.span.frame_step:
                continue
            pixels = as_frame(image, f"frame {number}").cpu()
            # A copy, because the source may reuse the memory for its next frame.
            frame = VideoFrame(pixels.clone().permute(1, 2, 0).numpy(), number, time)
            if size is not None and frame.size != size:
                raise InputError(
                    f"frame {number} is {frame.size[1]}x{frame.size[0]} where those before it are {size[1]}x{size[0]}; "
                    "give frames of one size."
                )
            size = frame.size
            yield frame
