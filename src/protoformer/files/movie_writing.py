"""Writing videos: frames at exact times, the sound of another movie, and a file that appears whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from protoformer.errors import InputError
from protoformer.files.atomic import checked_output, kept_apart, opened_whole
from protoformer.files.av_package import require_av
from protoformer.files.movie import USUAL_RATE, Movie, Picture, exact_rate
from protoformer.files.movie_clip import Clip, Plan
from protoformer.files.movie_kinds import Quality, encoder_for, kind_of
from protoformer.files.reading import system_reason


class MovieWriter:
    """Writes a video, of a kind by the suffix of its path: .mp4, .mov, .mkv, .webm, .avi or .gif. Use it in a `with`.

    The file appears under its name when the `with` ends well. An exception leaves what was there as it was, and nothing
    else. Ctrl-C leaves what was written so far beside it as a video of its own, NAME.partial.mp4 for NAME.mp4, and goes
    on its way.

    The first frame stands at 0 in the new file, whatever its time. Times are exact in .mp4 and .mov if they are those
    of `like` or follow the rate, else right to the microsecond; to the millisecond in .mkv and .webm; to the hundredth
    of a second in .gif. An .avi has a constant rate, so a frame goes to the nearest place of it. A frame that is shown
    longer than the format can say is written again in between; an .avi that would need this is refused. Frames of odd
    sizes are padded where the codec needs even ones, by repeating the last row or column, which `open_movie` takes
    away.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        like: Movie | None = None,
        rate: float | Fraction | None = None,
        quality: Quality = "good",
    ) -> None:
        """like: its sound comes along, from the time of the first frame to the end of the last, and so does its rate.
        rate: frames a second, for frames without a time; it does not change the speed of the sound. quality: small,
        good or best; a .gif has but one.
        """
        self.path = checked_output(path)
        self.frames = 0
        """How many have been written."""
        self.kept: Path | None = None
        """After Ctrl-C: where what was written so far lies."""
        kind = kind_of(self.path)
        known = exact_rate(rate, path) if rate is not None else like.info.rate if like is not None else None
        if kind.even_times and known is None:
            raise InputError(f"{self.path} has frames at a constant rate; say how many there are a second.")
        self._step = None if known is None else 1 / known
        self._plan = Plan(kind, encoder_for(kind, self.path), known or USUAL_RATE, like, quality)
        self._latest: Fraction | None = None
        self._file = ExitStack()
        self._temporary: Path | None = None
        self._clip: Clip | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, image: Picture, time: float | Fraction | None = None) -> None:
        """Add a frame, uint8 HxWx3 RGB of the size of the first, shown at `time` seconds or a step after the last."""
        _check(image, self._clip.size if self._clip else image.shape[:2], self.path)
        second = self._second(time)
        with self._told(image):
            if self._clip is None:
                self._temporary = Path(self._file.enter_context(opened_whole(self.path)).name)
                self._clip = Clip(self._temporary, self._plan, image.shape[:2], second)
            self._clip.write(image, second, self.path)
        self._latest = second
        self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._finish()
            except BaseException as failure:
                self._leave(failure)
                raise
        else:
            self._leave(error)

    def _finish(self) -> None:
        if self._clip is None:
            raise InputError(f"{self.path} would be a video without frames; give at least one.")
        with self._told(None):
            self._clip.finish()
        self._file.close()

    def _leave(self, error: BaseException) -> None:
        """Clean up behind an error; of an interruption keep what there is."""
        try:
            if self._clip is not None and self._temporary is not None:
                if isinstance(error, KeyboardInterrupt) and self.frames:
                    self._keep(self._clip, self._temporary)
                self._clip.abandon()
        finally:
            self._file.__exit__(type(error), error, error.__traceback__)

    def _keep(self, clip: Clip, temporary: Path) -> None:
        with suppress(require_av().error.FFmpegError, OSError):
            clip.finish()
            self.kept = kept_apart(temporary, self.path)

    def _second(self, time: float | Fraction | None) -> Fraction:
        """When a frame is shown."""
        if time is not None:
            if not isfinite(time):
                raise InputError(f"a frame for {self.path} is shown at second {time}; give a finite number.")
            return Fraction(time)
        if self._step is None:
            raise InputError(f"a frame for {self.path} has no time; give times, or how many frames there are a second.")
        return Fraction(0) if self._latest is None else self._latest + self._step

    @contextmanager
    def _told(self, image: Picture | None) -> Iterator[None]:
        """Turn what ffmpeg or the system refuses into a sentence."""
        error = require_av().error
        try:
            yield
        except error.FFmpegError as failure:
            reason = system_reason(failure)
            if isinstance(failure, OSError) or image is None:
                raise InputError(
                    f"{self.path} could not be written ({reason}), so nothing was changed; "
                    "check the disk and its permissions, or choose another folder."
                ) from None
            height, width = image.shape[:2]
            raise InputError(
                f"frames of {width}x{height} cannot be encoded for {self.path} ({reason}); "
                "choose another size or another suffix."
            ) from None


def _check(image: Picture, size: tuple[int, ...], path: Path) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise InputError(
            f"a frame for {path} is {image.dtype} of shape {image.shape}; give uint8 HxWx3 with at least one pixel."
        )
    if image.shape[:2] != size:
        raise InputError(
            f"the frames for {path} are {size[1]}x{size[0]} and then {image.shape[1]}x{image.shape[0]}; "
            "give them one size."
        )
