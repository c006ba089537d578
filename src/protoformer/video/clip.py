"""The frames of a clip that are wanted, one at a time, wherever they come from."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.io.memory import trim_memory
from protoformer.video.reader import open_video
from protoformer.video.types import DEFAULT_RATE, Video, exact_rate

Source = str | os.PathLike[str] | Video | Iterable[ImageLike]
"""A video file, a folder of images, a pattern of their names; an open movie; or frames, each as `as_frame` takes it."""

EARLY = 0.1
"""Share of a frame's time that a look at it begins before it, as times are rounded."""


@dataclass(frozen=True)
class Span:
    """What of a clip is taken: of the frames from second `start` to `end` the first, and then one in `every`.

    rate: frames a second of images, which have no times.
    """

    start: float | Fraction | None = None
    end: float | Fraction | None = None
    every: int = 1
    rate: float | Fraction = DEFAULT_RATE

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"one frame in {self.every} cannot be taken; give a whole number of 1 or more.")


@dataclass(frozen=True, eq=False)
class ClipFrame:
    """Pixels, 3 x H x W, uint8 or float in [0, 1], with their number in the whole clip and their time, seconds."""

    pixels: Tensor
    number: int
    time: Fraction

    @property
    def size(self) -> tuple[int, int]:
        """(height, width), pixels."""
        return self.pixels.shape[1], self.pixels.shape[2]


class ClipFrames:
    """Iterate over it for the frames of a span, as often as the source can be read; all have one size.

    movie: the open clip, or None where frames were handed in.
    """

    def __init__(self, source: Source, span: Span) -> None:
        self.span = span
        self.movie: Video | None = None
        self._handed_in: Iterable[ImageLike] = ()
        if isinstance(source, Video):
            self.movie = source
        elif isinstance(source, (str, os.PathLike)):
            self.movie = open_video(source, span.rate)
        elif isinstance(source, Iterable):
            self._handed_in = source
        else:
            raise InputError(f"{source!r} is no clip; give a path, an open movie, or frames.")

    @property
    def name(self) -> str:
        """What errors call it."""
        return "the clip" if self.movie is None else str(self.movie.info.paths[0])

    def __iter__(self) -> Iterator[ClipFrame]:
        return trim_memory(self._given() if self.movie is None else self.read(self.movie, self.span.start))

    def read(self, movie: Video, start: float | Fraction | None) -> Iterator[ClipFrame]:
        """Those of an open clip from a second on."""
        for frame in movie.frames(start, self.span.end, self.span.every):
            yield ClipFrame(torch.from_numpy(frame.image).permute(2, 0, 1), frame.number, frame.time)

    def instants(self, movie: Video, most: int, together: int = 1) -> list[float]:
        """Seconds of the span's frames at which to look at so many `together`: at all of a short span, no more than
        `most` of a longer one, in the middle of equal parts.
        """
        rate, first = float(movie.info.rate), float(self.span.start or 0)
        length = movie.info.seconds
        if length is None:
            length = max((frame.time for frame in movie.frames(first)), default=Fraction(0)) + 1 / movie.info.rate
        last = min(float(length), float("inf") if self.span.end is None else float(self.span.end))
        places = max(1, math.ceil((last - first) * rate / self.span.every - EARLY) - together + 1)
        count = min(most, places)
        starts = [(2 * look + 1) * places // (2 * count) for look in range(count)]
        return [first + max(0.0, start * self.span.every - EARLY) / rate for start in starts]

    def _given(self) -> Iterator[ClipFrame]:
        rate, size = exact_rate(self.span.rate, self.name), None
        first, last = self.span.start or 0, self.span.end
        taken = 0
        for number, image in enumerate(self._handed_in):
            time = number / rate
            if last is not None and float(time) >= last:
                return
            if float(time) < first:
                continue
            taken += 1
            if (taken - 1) % self.span.every:
                continue
            pixels = as_frame(image, f"frame {number}").cpu()
            # Whoever hands frames in may write the next one over this one.
            frame = ClipFrame(pixels.clone(), number, time)
            if size is not None and frame.size != size:
                raise InputError(
                    f"frame {number} is {frame.size[1]}x{frame.size[0]} where those before it are {size[1]}x{size[0]}; "
                    "give frames of one size."
                )
            size = frame.size
            yield frame
