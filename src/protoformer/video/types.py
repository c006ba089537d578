"""What a movie is to the rest of the house: pictures one at a time, each with its number and its exact time.

`open_movie` (in `movie_opening`) makes one from a video file, a folder of images or a pattern of their names.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError

ImageArray = npt.NDArray[np.uint8]
"""uint8 HxWx3 RGB."""


DEFAULT_RATE = Fraction(25)
"""Frames a second where nobody says how many: images say nothing about time."""
LONGEST_SECONDS = 1_000_000
"""The most seconds, 11 days, that a frame may be shown, or lie after the first one."""


@dataclass(frozen=True, eq=False)
class VideoFrame:
    """One picture of a movie."""

    image: ImageArray
    """uint8 HxWx3 RGB, upright, square pixels, yours to change."""
    number: int
    """From 0 in the whole clip, wherever the reading began. A frame that was lost keeps its number for itself."""
    time: Fraction
    """Seconds, exact, since the first frame of the clip; it grows from frame to frame."""


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a movie before it is read."""

    paths: tuple[Path, ...]
    """The video file, or every image in its order."""
    size: tuple[int, int]
    """(height, width) in pixels as shown: rotated, and stretched to square pixels."""
    rate: Fraction
    """Frames a second, on average."""
    tick: Fraction
    """Seconds: every time is a whole number of these."""
    start: Fraction
    """Seconds on the file's own clock, which its sound shares, at which the first frame is shown."""
    frames: int | None
    """How many there are, as the file says; None where it does not."""
    seconds: Fraction | None
    """How long it is, as the file says; None where it does not."""
    sound: bool
    """Is there any?"""
    codec: str
    """The name of what it is coded with, as ffmpeg calls it: h264, vp9, gif, png, ..."""


class Video(ABC):
    """A movie that can be read any number of times, from any second on, with one picture in memory at a time.

    Nothing stays open between two readings, so there is nothing to close.
    """

    def __init__(self, info: VideoInfo) -> None:
        self.info = info
        self.skipped = 0
        """Frames that the latest reading had to leave out because their data are damaged."""
        self.torn = False
        """Did the latest reading, gone on to the end, find less than the file promises?"""

    def frames(
        self, start: float | Fraction | None = None, end: float | Fraction | None = None, every: int = 1
    ) -> Iterator[VideoFrame]:
        """The frames with start <= time < end, in seconds; of these the first, and then one in `every`.

        Damaged frames are left out and counted in `skipped`. A clip that is cut short gives its whole frames, and
        `torn` says so afterwards. A picture of another size than the first is an `InputError` when its turn comes.
        """
        first = 0.0 if start is None else _second(start, "start")
        last = float("inf") if end is None else _second(end, "end")
        if last <= first:
            raise InputError(f"from second {first:g} to second {last:g} there is nothing; give an end after the start.")
        if every < 1:
            raise InputError(f"one frame in {every} cannot be taken; give a whole number of 1 or more.")
        return self._reading(first, last, every)

    @abstractmethod
    def _reading(self, start: float, end: float, every: int) -> Iterator[VideoFrame]:
        """As `frames`, with bounds that are numbers. Times are compared as the nearest floats."""


def _second(value: float | Fraction, name: str) -> float:
    """A bound as a float, which an exact time rounds to as well: a frame's own time as `start` finds that frame."""
    second = float(value)
    if not 0 <= second < float("inf"):
        raise InputError(f"the {name} of a movie is at second {second:g}; give a number of seconds, 0 or more.")
    return second


def exact_rate(rate: float | Fraction, path: str | os.PathLike[str]) -> Fraction:
    """Return a rate, frames a second, as a fraction.

    A float, or a fraction that no video file can store, becomes the nearest fraction of small numbers, which differs by
    less than a millionth: 29.97 is 2997/100, and 0.0003, a frame every 10000/3 seconds, is 3/10000.

    Raises:
        InputError: The rate is not between 1 / `LONGEST_SECONDS` and 100,000.
    """
    if not Fraction(1, LONGEST_SECONDS) <= rate < 100_000:
        raise InputError(
            f"{path} cannot have {rate} frames a second; give a rate over 0, "
            f"of at least {1 / LONGEST_SECONDS:f} and less than 100000."
        )
    exact = Fraction(rate)
    if isinstance(rate, Fraction) and max(exact.numerator, exact.denominator) < 2**31:
        return exact
    if exact >= 1:
        return exact.limit_denominator(1001)
    # Below 1 the seconds of a frame are the number that needs few digits.
    return 1 / (1 / exact).limit_denominator(1001)


def require_av() -> ModuleType:
    """The package `av`, or an `InputError` that says how to get it."""
    try:
        return import_module("av")
    except ImportError:
        raise InputError("videos are read and written with PyAV, which is not installed: pip install av.") from None
