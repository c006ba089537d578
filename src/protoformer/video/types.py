"""Base types for video input: `Video`, its frames and its metadata.

`protoformer.video.reader.open_video` creates a `Video` from a file, a folder of images or a pattern of their names.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

ImageArray = npt.NDArray[np.uint8]
"""uint8 HxWx3 RGB."""


DEFAULT_FPS = Fraction(25)
"""Frames per second of image sequences, which store no times, unless a frame rate is given."""
LONGEST_SECONDS = 1_000_000
"""Maximum duration of a frame, and maximum time of a frame after the first one, in seconds (11 days)."""


@dataclass(frozen=True, eq=False)
class VideoFrame:
    """One frame of a video, from a file or from memory.

    Attributes:
        image: uint8 HxWx3 RGB, upright, square pixels; float32 in [0, 1] only if the frames are floats in memory. The
            caller may modify it.
        number: Index in the whole video, counted from 0 independently of where reading started. Damaged frames that
            are skipped keep their numbers.
        time: Exact time since the first frame of the video, in seconds; strictly increasing.
    """

    image: npt.NDArray[Any]
    number: int
    time: Fraction

    @property
    def pixels(self) -> "Tensor":
        """The image as a 3xHxW tensor that shares its memory."""
        from torch import from_numpy  # not needed to read and write videos

        return from_numpy(self.image).permute(2, 0, 1)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.image.shape[0], self.image.shape[1]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the image, H x W x 3."""
        return np.array(self.image, dtype=dtype, copy=copy)


def to_uint8_array(image: npt.NDArray[Any]) -> ImageArray:
    """Convert the image of a frame to contiguous uint8, without a copy if it is that already."""
    if image.dtype != np.uint8:
        image = np.rint(255 * image).astype(np.uint8)
    return np.ascontiguousarray(image)


@dataclass(frozen=True)
class VideoInfo:
    """Metadata of a video, available before its frames are read.

    Attributes:
        paths: The video file, or all images in order.
        size: (height, width) in pixels as displayed: after rotation, with square pixels.
        fps: Average number of frames per second.
        time_base: Time base in seconds; every frame time is a multiple of it.
        start: Time of the first frame on the clock of the file, in seconds. The audio uses the same clock.
        num_frames: Number of frames declared by the file; None if it declares none.
        duration: Duration declared by the file; None if it declares none.
        has_audio: Whether there is an audio stream.
        codec: Codec name as in ffmpeg: h264, vp9, gif, png, ...
        label: Name of a live source, which has no paths.
    """

    paths: tuple[Path, ...]
    size: tuple[int, int]
    fps: Fraction
    time_base: Fraction
    start: Fraction
    num_frames: int | None
    duration: Fraction | None
    has_audio: bool
    codec: str
    label: str = ""

    @property
    def name(self) -> str:
        """The name in messages: the first path, or the label of a live source."""
        return str(self.paths[0]) if self.paths else self.label


class Video(ABC):
    """A video that can be read repeatedly, from any time on, with one frame in memory at a time.

    Files are open only while frames are being read, so there is nothing to close.

    Attributes:
        info: Metadata.
        skipped: Number of damaged frames that the latest reading skipped.
        truncated: Whether the latest reading reached the end of the file before the declared duration.
        max_pixels: Limit on the pixels of a frame, for whoever opens the file again; None: the default limit.
        live: Whether the source can be read only once, as a camera or a stream; see `LiveVideo`.
    """

    max_pixels: int | None = None
    live = False

    def __init__(self, info: VideoInfo) -> None:
        self.info = info
        self.skipped = 0
        self.truncated = False

    def frames(
        self, start: float | Fraction | None = None, end: float | Fraction | None = None, frame_step: int = 1
    ) -> Iterator[VideoFrame]:
        """Read the frames with start <= time < end.

        Damaged frames are skipped and counted in `skipped`. A truncated file yields its intact frames and then sets
        `truncated`.

        Args:
            start: Time of the first frame, in seconds; None: the beginning.
            end: Time after the last frame, in seconds; None: the end.
            frame_step: Yield the first of these frames and every `frame_step`-th after it.

        Returns:
            An iterator over the frames. It raises `InputError` at a frame whose size differs from the first.

        Raises:
            InputError: The span is empty or `frame_step` is less than 1.
        """
        first = 0.0 if start is None else check_seconds(start, "start")
        last = float("inf") if end is None else check_seconds(end, "end")
        if last <= first:
            raise InputError(f"there are no frames from second {first:g} to {last:g}; give an end after the start.")
        check_frame_step(frame_step)
        return self._reading(first, last, frame_step)

    @abstractmethod
    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        """Read the frames with start <= float(time) < end; see `frames`."""


def check_frame_step(frame_step: int) -> None:
    """Raise `InputError` unless a frame step is 1 or more."""
    if frame_step < 1:
        raise InputError(f"a frame step of {frame_step} is not possible; give a whole number, 1 or more.")


def check_seconds(value: float | Fraction, name: str) -> float:
    """Convert a time bound to float.

    Frame times are rounded to float in the same way, so that the exact time of a frame as `start` selects this frame.
    """
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise InputError(f"the {name} of a video is at second {seconds:g}; give a number of seconds, 0 or more.")
    return seconds


def exact_fps(fps: float | Fraction, path: str | os.PathLike[str]) -> Fraction:
    """Convert a frame rate to a fraction that video files can store.

    A float, or a fraction of large integers, becomes the nearest fraction with small integers, which differs by less
    than one millionth: 29.97 becomes 2997/100, and 0.0003 (10000/3 seconds per frame) becomes 3/10000.

    Args:
        fps: Frames per second.
        path: The file to name in the error message.

    Returns:
        The rate in frames per second.

    Raises:
        InputError: The rate is not between 1 / `LONGEST_SECONDS` and 100,000.
    """
    if not Fraction(1, LONGEST_SECONDS) <= fps < 100_000:
        raise InputError(
            f"{path} cannot have {fps} frames per second; give a rate over 0, "
            f"of at least {1 / LONGEST_SECONDS:f} and less than 100000."
        )
    exact = Fraction(fps)
    if isinstance(fps, Fraction) and max(exact.numerator, exact.denominator) < 2**31:
        return exact
    if exact >= 1:
        return exact.limit_denominator(1001)
    # Below 1 it is the duration of a frame that has few digits.
    return 1 / (1 / exact).limit_denominator(1001)


def require_av() -> ModuleType:
    """Import PyAV.

    Raises:
        InputError: PyAV is not installed.
    """
    try:
        return import_module("av")
    except ImportError:
        raise InputError("videos are read and written with PyAV, which is not installed: pip install av.") from None
