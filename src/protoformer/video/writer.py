"""Writing videos: frames at exact times, the sound of another movie, and a file that appears whole or not at all."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, lcm
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from protoformer.errors import InputError
from protoformer.io.files import check_output, open_atomic, staged_folder, system_reason
from protoformer.video.color_conversion import encode_size_tag
from protoformer.video.decoding import open_container
from protoformer.video.encoding import (
    FINEST,
    ContainerFormat,
    Encoder,
    Quality,
    VideoEncoder,
    container_for,
    encoder_for,
)
from protoformer.video.sound import AudioTrack, make_audio_track
from protoformer.video.types import DEFAULT_RATE, LONGEST_SECONDS, ImageArray, Video, exact_rate, require_av

if TYPE_CHECKING:
    from av.container import OutputContainer


@dataclass(frozen=True)
class EncodingPlan:
    """What a clip is to be."""

    kind: ContainerFormat
    encoder: Encoder
    rate: Fraction
    """Frames a second, about; the last frame is shown for as long as this says."""
    like: Video | None
    """The movie whose sound comes along."""
    quality: Quality

    @property
    def tick(self) -> Fraction:
        """Seconds that the clip's times count: such that those of `like` and of the rate are whole, if that can be."""
        if self.kind.even_times:
            return 1 / self.rate
        if self.kind.tick is not None:
            return self.kind.tick
        most, by_rate = self.encoder.most_ticks, self.rate.numerator
        by_like = self.like.info.tick.denominator if self.like else by_rate
        ticks = next((ticks for ticks in (lcm(by_like, by_rate), by_like, by_rate) if ticks <= most), most)
        return Fraction(1, ticks * max(1, min(FINEST, most) // ticks))


class OutputClip:
    """An open file with a stream of pictures and, if the plan has one, a stream of sound."""

    def __init__(self, file: Path, plan: EncodingPlan, size: tuple[int, int], first: Fraction) -> None:
        """size: (height, width) of all pictures. first: the time of the first one on the clock of `plan.like`."""
        self.size = size
        self._plan, self._tick, self._first = plan, plan.tick, first
        self._place = -1
        self._latest: ImageArray | None = None
        """A copy of the latest picture, where it may have to be written again."""
        self._source = ExitStack()
        self._container: OutputContainer = require_av().open(
            f"file:{file}", "w", format=plan.kind.format, container_options=dict(plan.kind.options)
        )
        self._pictures: VideoEncoder | None = VideoEncoder(
            self._container, plan.encoder, size, plan.rate, self._tick, plan.quality
        )
        if self._pictures.padded:
            self._container.metadata["comment"] = encode_size_tag(size)
        self._sound = self._soundtrack()

    def write(self, image: ImageArray, second: Fraction, path: Path) -> None:
        """Add a picture at a time on the clock of the first one; `path` is named if it comes too early."""
        place = round((second - self._first) / self._tick)
        if place <= self._place:
            raise InputError(
                f"a frame for {path} at second {float(second):g} does not come after the one before; give times that "
                f"grow by {float(self._tick):g} seconds or more."
            )
        self._check_gap(second, place, path)
        self._fill(place)
        if self._sound is not None:
            self._sound.write_until(second - self._first)
        if self._pictures is not None:
            self._pictures.write(image, place)
        self._place = place
        if self._plan.kind.longest is not None and not self._plan.kind.even_times:
            self._latest = image.copy()

    def finish(self) -> None:
        """Write what is held back, the sound up to the end of the last picture, and the index.

        After an interruption it can be called again and goes on where it stopped.
        """
        end = self._place * self._tick + 1 / self._plan.rate
        self._fill(round(end / self._tick))
        pictures, self._pictures = self._pictures, None
        if pictures is not None:
            pictures.finish()
        sound, self._sound = self._sound, None
        if sound is not None:
            sound.finish(end)
        self._container.close()
        self._source.close()

    def abandon(self) -> None:
        """Let go of the files, whatever state they are in."""
        with suppress(require_av().error.FFmpegError):
            self._container.close()
        self._source.close()

    def _check_gap(self, second: Fraction, place: int, path: Path) -> None:
        """Refuse a frame so long after another that the file could not tell."""
        if second - self._first > LONGEST_SECONDS:
            raise InputError(
                f"a frame for {path} at second {float(second):g} comes more than {LONGEST_SECONDS} seconds after the "
                "first; give times in seconds."
            )
        kind = self._plan.kind
        if kind.even_times and kind.longest is not None and place - self._place > kind.longest:
            raise InputError(
                f"{path} cannot show a frame for more than {float(kind.longest * self._tick):.1f} seconds, as before "
                f"second {float(second):g}; choose another suffix, such as .mp4."
            )

    def _fill(self, place: int) -> None:
        """Write the latest picture again, as often as it takes to show it until `place` ticks."""
        longest = self._plan.kind.longest
        if longest is None or self._latest is None or self._pictures is None:
            return
        while place - self._place > longest:
            self._place += longest
            self._pictures.write(self._latest, self._place, min(longest, place - self._place))

    def _soundtrack(self) -> AudioTrack | None:
        like = self._plan.like
        if like is None or not like.info.sound:
            return None
        source = self._source.enter_context(open_container(like.info.paths[0], thorough=True))
        return make_audio_track(source, like.info.start + self._first, self._container, self._plan.kind)


class VideoWriter:
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
        like: Video | None = None,
        rate: float | Fraction | None = None,
        quality: Quality = "good",
        keep_partial: bool = True,
    ) -> None:
        """like: its sound comes along, from the time of the first frame to the end of the last, and so does its rate.
        rate: frames a second, for frames without a time; it does not change the speed of the sound. quality: small,
        good or best; a .gif has but one. keep_partial: whether Ctrl-C leaves NAME.partial.mp4.
        """
        self.path = check_output(path)
        self._keep_partial = keep_partial
        self.frames = 0
        """How many have been written."""
        self.kept: Path | None = None
        """After Ctrl-C: where what was written so far lies."""
        kind = container_for(self.path)
        known = exact_rate(rate, path) if rate is not None else like.info.rate if like is not None else None
        if kind.even_times and known is None:
            raise InputError(f"{self.path} has frames at a constant rate; say how many there are a second.")
        self._step = None if known is None else 1 / known
        self._plan = EncodingPlan(kind, encoder_for(kind, self.path), known or DEFAULT_RATE, like, quality)
        self._latest: Fraction | None = None
        self._file = ExitStack()
        self._temporary: Path | None = None
        self._clip: OutputClip | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> None:
        """Add a frame, uint8 HxWx3 RGB of the size of the first, shown at `time` seconds or a step after the last."""
        _check(image, self._clip.size if self._clip else image.shape[:2], self.path)
        second = self._second(time)
        with self._told(image):
            if self._clip is None:
                self._temporary = Path(self._file.enter_context(open_atomic(self.path)).name)
                self._clip = OutputClip(self._temporary, self._plan, image.shape[:2], second)
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
                if isinstance(error, KeyboardInterrupt) and self.frames and self._keep_partial:
                    self._keep(self._clip, self._temporary)
                self._clip.abandon()
        finally:
            self._file.__exit__(type(error), error, error.__traceback__)

    def _keep(self, clip: OutputClip, temporary: Path) -> None:
        with suppress(require_av().error.FFmpegError, OSError):
            clip.finish()
            self.kept = staged_folder(temporary, self.path)

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
    def _told(self, image: ImageArray | None) -> Iterator[None]:
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


def _check(image: ImageArray, size: tuple[int, ...], path: Path) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise InputError(
            f"a frame for {path} is {image.dtype} of shape {image.shape}; give uint8 HxWx3 with at least one pixel."
        )
    if image.shape[:2] != size:
        raise InputError(
            f"the frames for {path} are {size[1]}x{size[0]} and then {image.shape[1]}x{image.shape[0]}; "
            "give them one size."
        )


def write_video(path: str | os.PathLike[str], frames: Iterable[ImageArray], rate: float | Fraction) -> int:
    """Write frames as a video at a constant rate and the best quality, or leave no file at all.

    Args:
        path: The video file; its suffix chooses the format, see `VideoWriter`. An .avi holds motion JPEG.
        frames: Images, uint8 HxWx3 RGB, all of one size. One is in memory at a time.
        rate: Frames per second.

    Returns:
        The number of frames written.

    Raises:
        InputError: There are no frames, or they cannot be written to this path.
    """
    with VideoWriter(path, rate=rate, quality="best", keep_partial=False) as writer:
        for frame in frames:
            writer.write(frame)
    return writer.frames
