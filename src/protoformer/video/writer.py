"""Video writer: exact frame times, audio from another video, atomic files."""

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
from protoformer.io.files import check_output, defer_interrupts, keep_partial_file, open_atomic, system_reason
from protoformer.video.audio import AudioTrack, make_audio_track
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
from protoformer.video.types import DEFAULT_FPS, LONGEST_SECONDS, ImageArray, Video, exact_fps, require_av

if TYPE_CHECKING:
    from av.container import OutputContainer


@dataclass(frozen=True)
class EncodingPlan:
    """The settings of a video to write.

    Attributes:
        container: The container format.
        encoder: The video encoder.
        fps: Average frames per second; it sets the duration of the last frame.
        like: The video whose audio is transferred; None: no audio.
        quality: The trade-off between file size and fidelity.
    """

    container: ContainerFormat
    encoder: Encoder
    fps: Fraction
    like: Video | None
    quality: Quality

    @property
    def time_base(self) -> Fraction:
        """Time base in seconds, chosen so that the times of `like` and of the rate are exact if possible."""
        if self.container.constant_rate:
            return 1 / self.fps
        if self.container.time_base is not None:
            return self.container.time_base
        max_ticks, by_fps = self.encoder.max_ticks, self.fps.numerator
        by_like = self.like.info.time_base.denominator if self.like else by_fps
        candidates = (lcm(by_like, by_fps), by_like, by_fps)
        ticks = next((ticks for ticks in candidates if ticks <= max_ticks), max_ticks)
        return Fraction(1, ticks * max(1, min(FINEST, max_ticks) // ticks))


class OutputClip:
    """An open file with a video stream and, if the plan has one, an audio stream."""

    def __init__(self, file: Path, plan: EncodingPlan, size: tuple[int, int], first: Fraction) -> None:
        """Create the file.

        Args:
            file: The path.
            plan: The settings.
            size: (height, width) of all images.
            first: Time of the first image on the clock of `plan.like`, in seconds.
        """
        self.size = size
        self._plan, self._time_base, self._first = plan, plan.time_base, first
        self._pts = -1
        self._latest: ImageArray | None = None  # a copy of the latest image, if it may have to be repeated
        self._source = ExitStack()
        self._container: OutputContainer = require_av().open(
            f"file:{file}", "w", format=plan.container.format, container_options=dict(plan.container.options)
        )
        self._video: VideoEncoder | None = VideoEncoder(
            self._container, plan.encoder, size, plan.fps, self._time_base, plan.quality
        )
        if self._video.padded:
            self._container.metadata["comment"] = encode_size_tag(size)
        self._audio = self._open_audio()

    def write(self, image: ImageArray, seconds: Fraction, path: Path) -> None:
        """Add an image.

        Args:
            image: uint8 HxWx3 RGB.
            seconds: Display time, on the clock of the first image.
            path: The path to name in error messages.
        """
        pts = round((seconds - self._first) / self._time_base)
        if pts <= self._pts:
            raise InputError(
                f"a frame for {path} at second {float(seconds):g} does not come after the one before; give times that "
                f"grow by {float(self._time_base):g} seconds or more."
            )
        self._check_gap(seconds, pts, path)
        self._repeat_until(pts)
        if self._audio is not None:
            self._audio.write_until(seconds - self._first)
        if self._video is not None:
            self._video.write(image, pts)
        self._pts = pts
        if self._plan.container.max_gap is not None and not self._plan.container.constant_rate:
            self._latest = image.copy()

    def finish(self) -> None:
        """Flush the encoders, write the audio up to the end of the last image, and close the file.

        After an interruption it can be called again and continues where it stopped.
        """
        end = self._pts * self._time_base + 1 / self._plan.fps
        self._repeat_until(round(end / self._time_base))
        video, self._video = self._video, None
        if video is not None:
            video.finish()
        audio, self._audio = self._audio, None
        if audio is not None:
            audio.finish(end)
        self._container.close()
        self._source.close()

    def abandon(self) -> None:
        """Close the files in any state."""
        with suppress(require_av().error.FFmpegError):
            self._container.close()
        self._source.close()

    def _check_gap(self, seconds: Fraction, pts: int, path: Path) -> None:
        """Raise `InputError` for a frame so long after another that the format cannot store its time."""
        if seconds - self._first > LONGEST_SECONDS:
            raise InputError(
                f"a frame for {path} at second {float(seconds):g} comes more than {LONGEST_SECONDS} seconds after the "
                "first; give times in seconds."
            )
        container = self._plan.container
        if container.constant_rate and container.max_gap is not None and pts - self._pts > container.max_gap:
            raise InputError(
                f"{path} cannot show a frame for more than {float(container.max_gap * self._time_base):.1f} seconds, "
                f"as before second {float(seconds):g}; choose another suffix, such as .mp4."
            )

    def _repeat_until(self, pts: int) -> None:
        """Write the latest image again as often as needed to display it until `pts`, in ticks."""
        max_gap = self._plan.container.max_gap
        if max_gap is None or self._latest is None or self._video is None:
            return
        while pts - self._pts > max_gap:
            self._pts += max_gap
            self._video.write(self._latest, self._pts, min(max_gap, pts - self._pts))

    def _open_audio(self) -> AudioTrack | None:
        like = self._plan.like
        if like is None or not like.info.has_audio:
            return None
        source = self._source.enter_context(open_container(like.info.paths[0], like.max_pixels, thorough=True))
        return make_audio_track(source, like.info.start + self._first, self._container, self._plan.container)


class VideoWriter:
    """Writes a video whose format follows from the suffix: .mp4, .mov, .mkv, .webm, .avi or .gif.

    Use it as a context manager. The file appears under its name when the `with` block ends without an exception. After
    an exception the previous file, if any, is unchanged and no other file is left. After Ctrl-C the frames written so
    far are kept as a playable video, NAME.partial.mp4 for NAME.mp4.

    The first frame is at time 0 of the new file. Times are exact in .mp4 and .mov if they are those of `like` or follow
    the rate, else rounded to microseconds; they are rounded to milliseconds in .mkv and .webm and to hundredths of a
    second in .gif. An .avi has a constant rate, and times are rounded to its frames. A frame that is displayed longer
    than the format can store is repeated; in an .avi it is an error. Frames of odd sizes are padded by repeating the
    last row or column if the codec needs even sizes; `open_video` removes the padding.

    Attributes:
        path: The file to write.
        frames: Number of frames written.
        partial_path: After Ctrl-C, the path of the partial video; else None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        like: Video | None = None,
        fps: float | Fraction | None = None,
        quality: Quality = "good",
        keep_partial: bool = True,
    ) -> None:
        """Check the settings; the file is created with the first frame.

        Args:
            path: The file to write.
            like: A video whose audio, from the time of the first frame to the end of the last, and rate are used.
            fps: Frames per second, for frames without a time; it does not change the speed of the audio.
            quality: The trade-off between file size and fidelity; a .gif has only one.
            keep_partial: Whether Ctrl-C leaves NAME.partial.mp4.

        Raises:
            InputError: The suffix or the rate is not supported, or the file cannot be written.
        """
        self.path = check_output(path)
        self._keep_partial = keep_partial
        self.frames = 0
        self.partial_path: Path | None = None
        container = container_for(self.path)
        exact = exact_fps(fps, path) if fps is not None else like.info.fps if like is not None else None
        if container.constant_rate and exact is None:
            raise InputError(f"{self.path} has frames at a constant rate; give the rate in frames per second.")
        self._step = None if exact is None else 1 / exact
        self._plan = EncodingPlan(container, encoder_for(container, self.path), exact or DEFAULT_FPS, like, quality)
        self._latest: Fraction | None = None
        self._file = ExitStack()
        self._temporary: Path | None = None
        self._clip: OutputClip | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> None:
        """Add a frame.

        Args:
            image: uint8 HxWx3 RGB, of the size of the first frame.
            time: Display time in seconds; None: one frame duration after the previous frame.

        Raises:
            InputError: The image or the time is invalid, or the file cannot be written.
        """
        _check_image(image, self._clip.size if self._clip else image.shape[:2], self.path)
        seconds = self._frame_time(time)
        # An interruption between encoding and writing would lose a frame in the middle of the file.
        with defer_interrupts():
            with self._translate_errors(image):
                if self._clip is None:
                    self._temporary = Path(self._file.enter_context(open_atomic(self.path)).name)
                    self._clip = OutputClip(self._temporary, self._plan, image.shape[:2], seconds)
                self._clip.write(image, seconds, self.path)
            self._latest = seconds
            self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._finish()
            except BaseException as failure:
                self._clean_up(failure)
                raise
        else:
            self._clean_up(error)

    def _finish(self) -> None:
        if self._clip is None:
            raise InputError(f"{self.path} would be a video without frames; give at least one.")
        with self._translate_errors(None):
            self._clip.finish()
        self._file.close()

    def _clean_up(self, error: BaseException) -> None:
        """Remove the temporary file after an error; after Ctrl-C, save the partial video first."""
        try:
            if self._clip is not None and self._temporary is not None:
                if isinstance(error, KeyboardInterrupt) and self.frames and self._keep_partial:
                    self._save_partial(self._clip, self._temporary)
                self._clip.abandon()
        finally:
            self._file.__exit__(type(error), error, error.__traceback__)

    def _save_partial(self, clip: OutputClip, temporary: Path) -> None:
        with suppress(require_av().error.FFmpegError, OSError):
            clip.finish()
            self.partial_path = keep_partial_file(temporary, self.path)

    def _frame_time(self, time: float | Fraction | None) -> Fraction:
        """Return the display time of a frame in seconds."""
        if time is not None:
            if not isfinite(time):
                raise InputError(f"a frame for {self.path} is shown at second {time}; give a finite number.")
            return Fraction(time)
        if self._step is None:
            raise InputError(f"a frame for {self.path} has no time; give times, or a rate in frames per second.")
        return Fraction(0) if self._latest is None else self._latest + self._step

    @contextmanager
    def _translate_errors(self, image: ImageArray | None) -> Iterator[None]:
        """Convert errors of ffmpeg and of the system to `InputError`."""
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


def _check_image(image: ImageArray, size: tuple[int, ...], path: Path) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise InputError(
            f"a frame for {path} is {image.dtype} of shape {image.shape}; give uint8 HxWx3 with at least one pixel."
        )
    if image.shape[:2] != size:
        raise InputError(
            f"the frames for {path} are {size[1]}x{size[0]} and then {image.shape[1]}x{image.shape[0]}; "
            "give them one size."
        )


def write_video(path: str | os.PathLike[str], frames: Iterable[ImageArray], fps: float | Fraction) -> int:
    """Write frames as a video at a constant rate and the best quality, or leave no file at all.

    Args:
        path: The video file; its suffix chooses the format, see `VideoWriter`. An .avi holds motion JPEG.
        frames: Images, uint8 HxWx3 RGB, all of one size. One is in memory at a time.
        fps: Frames per second.

    Returns:
        The number of frames written.

    Raises:
        InputError: There are no frames, or they cannot be written to this path.
    """
    with VideoWriter(path, fps=fps, quality="best", keep_partial=False) as writer:
        for frame in frames:
            writer.write(frame)
    return writer.frames
