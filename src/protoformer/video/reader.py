"""Video files of any container and codec that ffmpeg reads."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from protoformer.errors import InputError
from protoformer.io.files import PixelLimitError, check_input, check_pixel_count, is_folder, path_exists, pixel_limit
from protoformer.video.color_conversion import FrameConverter, FrameGeometry, decode_size_tag, frame_geometry, kept_size
from protoformer.video.decoding import (
    CODED_BORDER,
    PacketDecoder,
    SeekPoint,
    declared_duration,
    find_seek_point,
    has_sound,
    open_container,
    time_base,
    video_stream,
)
from protoformer.video.image_sequence import ImageSequence, is_image_file, list_images, match_images
from protoformer.video.types import DEFAULT_RATE, ImageArray, Video, VideoFrame, VideoInfo, exact_rate, require_av

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame as AvFrame
    from av.video.stream import VideoStream


_BLOCK = 64
"""Pixels on each axis by which a coded frame is at most larger than the frame it holds."""
SMALL_FRAME = 2**23
"""Pixels of a frame, a little more than 4K has, that a file of any length may declare."""
FRAME_PIXELS_PER_BYTE = 512
"""Pixels of a frame that a file may declare for each of its bytes, beyond `SMALL_FRAME`. Single-color frames compress
further, but a file that holds little else would take gigabytes to decode."""


class VideoFile(Video):
    """A video file. Frames come in the order and at the times in which they are shown.

    A time that is missing or does not grow is put one usual frame after the one before. Of several video streams the
    default one is read; the picture on a sound file is none.
    """

    def __init__(self, path: str | os.PathLike[str], max_pixels: int | None = None) -> None:
        """Read the header and the first frame.

        Args:
            path: The video file.
            max_pixels: Most pixels of a frame as shown; None: `MAX_PIXELS`. A larger header is refused before a frame
                is decoded; a frame that turns out to be larger is neither decoded nor converted.
        """
        self._path = check_input(path)
        self._bytes = self._path.stat().st_size
        self._max_pixels = min(pixel_limit(max_pixels), max(SMALL_FRAME, FRAME_PIXELS_PER_BYTE * self._bytes))
        self._by_length = self._max_pixels < pixel_limit(max_pixels)
        with self._opened() as (container, stream):
            # Matroska writes the names of its tags large.
            tags = {name.lower(): text for name, text in container.metadata.items()}
            aspect, marked = stream.sample_aspect_ratio, decode_size_tag(tags.get("comment", ""))
            self._check_size(kept_size((stream.height, stream.width), aspect, marked))
            first = next(PacketDecoder(container, stream, self._path).frames(), None)
            if first is None:
                raise InputError(f"{path} has no frame that can be decoded; make or download it again.")
            self._framing = frame_geometry(first, aspect, marked, stream.codec_context.codec.canonical_name)
            self._check_size(self._framing.kept)
            # A kind of pixel that cannot be converted is told now and not later.
            _developed(FrameConverter(self._framing), first, self._path, number=0)
            self._origin = first.pts or 0
            sound = has_sound(container, self._path, self._max_pixels)
            super().__init__(_described(container, stream, self._path, self._framing, self._origin, sound))

    @contextmanager
    def _opened(self) -> Iterator[tuple["InputContainer", "VideoStream"]]:
        """The open file and its video stream, whose decoder takes no frame far over the limit of pixels."""
        with open_container(self._path, self._max_pixels) as container:
            stream = video_stream(container, self._path)
            if stream.width < 1 or stream.height < 1:
                raise PixelLimitError(
                    f"{self._path} has frames over the limit of {self._max_pixels} pixels, or does not say how large "
                    "they are; scale it down, or convert it to h264 first."
                )
            coded = (stream.width + _BLOCK) * (stream.height + _BLOCK)
            stream.codec_context.options = {"max_pixels": str(max(coded, self._max_pixels + CODED_BORDER))}
            yield container, stream

    def _check_size(self, size: tuple[int, int]) -> None:
        if self._by_length and size[0] * size[1] > self._max_pixels:
            raise PixelLimitError(
                f"{self._path} declares frames of {size[1]}x{size[0]} pixels in only {self._bytes} bytes, which no "
                "recorded clip does; scale it down, or make or download it again.",
                size,
            )
        check_pixel_count(size[1], size[0], self._path, self._max_pixels)

    def count_frames(self) -> int:
        """Count the frames by decoding all of them."""
        with self._opened() as (container, stream):
            return sum(1 for _ in PacketDecoder(container, stream, self._path).frames())

    def _reading(self, start: float, end: float, every: int) -> Iterator[VideoFrame]:
        place = find_seek_point(self._path, self._origin, start) if start > 0 else None
        if place is not None:
            try:
                yield from self._from(place, start, end, every)
                return
            except _LostPlaceError:
                pass
        yield from self._from(None, start, end, every)

    def _from(self, place: SeekPoint | None, start: float, end: float, every: int) -> Iterator[VideoFrame]:
        """As `_reading`, from a place; `_LostPlaceError` where seeking does not lead there, before any frame."""
        self.skipped, self.torn = 0, False
        developer, count = FrameConverter(self._framing), 0
        with self._opened() as (container, stream):
            decoding = PacketDecoder(container, stream, self._path)
            if place is not None:
                _seek(container, stream, place)
            for shown in self._shown(decoding, time_base(stream), place):
                self.skipped = decoding.skipped
                if float(shown.time) >= end:
                    return
                if float(shown.time) >= start:
                    if count % every == 0:
                        image = _developed(developer, shown.frame, self._path, shown.number)
                        yield VideoFrame(image, shown.number, shown.time)
                    count += 1
            self.skipped, self.torn = decoding.skipped, decoding.torn

    def _shown(self, decoding: PacketDecoder, tick: Fraction, place: SeekPoint | None) -> Iterator["_Shown"]:
        """Frames with their numbers and times, all of them or those from the place on."""
        step = max(1, round(1 / self.info.rate / tick)) * tick
        time, offset = None, 0
        for index, frame in enumerate(decoding.frames()):
            number = index + decoding.skipped
            if place is not None and time is None:
                if frame.pts is None or frame.pts < place.pts:
                    continue
                if frame.pts != place.pts:
                    raise _LostPlaceError
            if time is None:
                offset = (0 if place is None else place.number) - number
            before = time
            time = Fraction(0) if frame.pts is None else (frame.pts - self._origin) * tick
            if before is not None and (frame.pts is None or time <= before):
                time = before + step
            yield _Shown(frame, number + offset, time)
        if place is not None and time is None:
            raise _LostPlaceError


@dataclass(frozen=True, eq=False)
class _Shown:
    """A decoded frame with its number and its time in seconds."""

    frame: "AvFrame"
    number: int
    time: Fraction


class _LostPlaceError(Exception):
    """Seeking led behind the frame that was wanted, or nowhere."""


def _seek(container: "InputContainer", stream: "VideoStream", place: SeekPoint) -> None:
    try:
        container.seek(place.key, stream=stream)
    except require_av().error.FFmpegError:
        raise _LostPlaceError from None


def _developed(developer: FrameConverter, frame: "AvFrame", path: Path, number: int) -> ImageArray:
    """The picture of a frame, or an `InputError` that names it."""
    height, width = developer.framing.stored
    if (frame.height, frame.width) != (height, width):
        raise InputError(
            f"{path} changes at frame {number} from {width}x{height} to {frame.width}x{frame.height} pixels; "
            "cut it there, or convert it to one size."
        )
    try:
        return developer.developed(frame)
    except require_av().error.FFmpegError:
        raise InputError(
            f"{path} has pixels of the kind {frame.format.name}, which cannot be converted to RGB; convert it first."
        ) from None


def _described(
    container: "InputContainer", stream: "VideoStream", path: Path, framing: FrameGeometry, origin: int, sound: bool
) -> VideoInfo:
    tick = time_base(stream)
    rate = stream.average_rate or stream.guessed_rate or DEFAULT_RATE
    frames = _frame_count(container, stream)
    seconds = stream.duration * tick if stream.duration else declared_duration(container, stream)
    return VideoInfo(
        paths=(path,),
        size=framing.size,
        rate=rate,
        tick=tick,
        start=origin * tick,
        frames=frames,
        seconds=frames / rate if seconds is None and frames else seconds,
        sound=sound,
        codec=stream.codec_context.codec.canonical_name,
    )


def _frame_count(container: "InputContainer", stream: "VideoStream") -> int | None:
    """What the file says, less what its list of edits cuts away."""
    entries = stream.index_entries
    if "mov" in container.format.name and stream.frames and len(entries):
        return sum(not entry.is_discard for entry in entries)
    return stream.frames or None


def open_video(
    source: str | os.PathLike[str], rate: float | Fraction = DEFAULT_RATE, max_pixels: int | None = None
) -> Video:
    """Open a video file of any kind that ffmpeg reads, a folder of images, or a pattern such as 'frames/*.png'.

    Images come in natural order, 2 before 10, `rate` of them a second; a video file knows its own times. What cannot
    be read is an `InputError` here and not later: the first frame has been decoded once when this returns.

    Frames of more than `max_pixels` pixels (None: `MAX_PIXELS`) are a `PixelLimitError`, from the header alone.
    """
    path, exact = Path(source), exact_rate(rate, source)
    if is_folder(path):
        return ImageSequence(list_images(path), exact, max_pixels)
    if any(sign in str(source) for sign in "*?[") and not path_exists(path):
        return ImageSequence(match_images(str(source)), exact, max_pixels)
    path = check_input(path)
    return ImageSequence([path], exact, max_pixels) if is_image_file(path) else VideoFile(path, max_pixels)


def read_frames(path: str | os.PathLike[str], numbers: Collection[int]) -> Iterator[ImageArray]:
    """Read the frames of a video that have the given numbers.

    Args:
        path: Any source of `open_video`.
        numbers: Frame numbers, counted from 0, in any order; repeated numbers count once.

    Yields:
        The images, uint8 HxWx3 RGB, in the order of the video.

    Raises:
        InputError: The video cannot be read, or a requested frame is damaged or missing.
    """
    requested, last = set(numbers), max(numbers, default=-1)
    for frame in open_video(path).frames():
        if frame.number in requested:
            requested.remove(frame.number)
            yield frame.image
        if frame.number >= last:
            break
    if requested:
        raise InputError(f"{path} has no frame {min(requested)}, or it is damaged; make or download the video again.")
