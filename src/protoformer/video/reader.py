"""Readers for video files and image sequences; `open_video` opens any of them."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from protoformer.errors import InputError
from protoformer.io.files import PixelLimitError, check_input, check_pixel_count, is_folder, path_exists, pixel_limit
from protoformer.video.color_conversion import (
    FrameConverter,
    FrameGeometry,
    cropped_size,
    decode_size_tag,
    read_geometry,
)
from protoformer.video.decoding import (
    CODED_BORDER,
    PacketDecoder,
    SeekPoint,
    declared_duration,
    find_seek_point,
    has_audio,
    open_container,
    stream_time_base,
    video_stream,
)
from protoformer.video.image_sequence import ImageSequence, is_image_file, list_images, match_images
from protoformer.video.live import PROTOCOLS, TIMEOUT, LiveSource, LiveVideo, is_live_source
from protoformer.video.types import DEFAULT_FPS, ImageArray, Video, VideoFrame, VideoInfo, exact_fps, require_av

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame as AvFrame
    from av.video.stream import VideoStream


_BLOCK = 64
"""Maximum padding of a coded frame per axis, in pixels."""
SMALL_FRAME = 2**23
"""Pixels of a frame (slightly more than 4K) that a file of any length may declare."""
FRAME_PIXELS_PER_BYTE = 512
"""Pixels of a frame that a file may declare per byte of its length, beyond `SMALL_FRAME`.

Frames of a single color compress further, but a file that holds little else would take gigabytes to decode."""


class VideoFile(Video):
    """A video file, with frames in display order and at their display times.

    A missing or non-increasing time is replaced by the previous time plus the average frame duration. If there are
    several video streams, the default one is read; cover images of audio files are ignored.
    """

    def __init__(self, path: str | os.PathLike[str], max_pixels: int | None = None) -> None:
        """Read the header and decode the first frame.

        Args:
            path: The video file.
            max_pixels: Maximum number of pixels of a displayed frame; None: `MAX_PIXELS`. A header that declares more
                is refused before any frame is decoded, and a larger frame is neither decoded nor converted.

        Raises:
            InputError: The file cannot be read, or its frames are too large (`PixelLimitError`).
        """
        self._path = check_input(path)
        self._num_bytes = self._path.stat().st_size
        self._max_pixels = min(pixel_limit(max_pixels), max(SMALL_FRAME, FRAME_PIXELS_PER_BYTE * self._num_bytes))
        self.max_pixels = self._max_pixels
        self._limited_by_length = self._max_pixels < pixel_limit(max_pixels)
        with self._open() as (container, stream):
            # Matroska writes tag names in capitals.
            tags = {name.lower(): text for name, text in container.metadata.items()}
            aspect, tagged = stream.sample_aspect_ratio, decode_size_tag(tags.get("comment", ""))
            self._check_size(cropped_size((stream.height, stream.width), aspect, tagged))
            first = next(PacketDecoder(container, stream, self._path).frames(), None)
            if first is None:
                raise InputError(f"{path} has no frame that can be decoded; make or download it again.")
            self._geometry = read_geometry(first, aspect, tagged, stream.codec_context.codec.canonical_name)
            self._check_size(self._geometry.cropped)
            # Converted once, so that an unsupported pixel format is an error here and not while reading.
            _convert_frame(FrameConverter(self._geometry), first, self._path, number=0)
            self._origin = first.pts or 0
            with_audio = has_audio(container, self._path, self._max_pixels)
            super().__init__(_read_info(container, stream, self._path, self._geometry, self._origin, with_audio))

    @contextmanager
    def _open(self) -> Iterator[tuple["InputContainer", "VideoStream"]]:
        """Open the file and its video stream, whose decoder refuses frames far over the pixel limit."""
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
        if self._limited_by_length and size[0] * size[1] > self._max_pixels:
            raise PixelLimitError(
                f"{self._path} declares frames of {size[1]}x{size[0]} pixels in only {self._num_bytes} bytes, which no "
                "recorded clip does; scale it down, or make or download it again.",
                size,
            )
        check_pixel_count(size[1], size[0], self._path, self._max_pixels)

    def count_frames(self) -> int:
        """Count the intact frames by decoding all of them, without conversion to RGB."""
        with self._open() as (container, stream):
            return sum(1 for _ in PacketDecoder(container, stream, self._path).frames())

    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        seek_point = find_seek_point(self._path, self._origin, start, self._max_pixels) if start > 0 else None
        if seek_point is not None:
            try:
                yield from self._read_from(seek_point, start, end, frame_step)
                return
            except _SeekError:
                pass
        yield from self._read_from(None, start, end, frame_step)

    def _read_from(
        self, seek_point: SeekPoint | None, start: float, end: float, frame_step: int
    ) -> Iterator[VideoFrame]:
        """Read frames from a seek point, or from the beginning.

        Raises:
            _SeekError: Seeking did not reach the frame; raised before any frame is yielded.
        """
        self.skipped, self.truncated = 0, False
        converter, count = FrameConverter(self._geometry), 0
        with self._open() as (container, stream):
            decoder = PacketDecoder(container, stream, self._path)
            if seek_point is not None:
                _seek(container, stream, seek_point)
            for timed in self._timed_frames(decoder, stream_time_base(stream), seek_point):
                self.skipped = decoder.skipped
                if float(timed.time) >= end:
                    return
                if float(timed.time) >= start:
                    if count % frame_step == 0:
                        image = _convert_frame(converter, timed.frame, self._path, timed.number)
                        yield VideoFrame(image, timed.number, timed.time)
                    count += 1
            self.skipped, self.truncated = decoder.skipped, decoder.truncated

    def _timed_frames(
        self, decoder: PacketDecoder, time_base: Fraction, seek_point: SeekPoint | None
    ) -> Iterator["_TimedFrame"]:
        """Number and time the decoded frames, all of them or those from the seek point on."""
        step = max(1, round(1 / self.info.fps / time_base)) * time_base
        time, offset = None, 0
        for index, frame in enumerate(decoder.frames()):
            number = index + decoder.skipped
            if seek_point is not None and time is None:
                if frame.pts is None or frame.pts < seek_point.pts:
                    continue
                if frame.pts != seek_point.pts:
                    raise _SeekError
            if time is None:
                offset = (0 if seek_point is None else seek_point.number) - number
            previous = time
            time = Fraction(0) if frame.pts is None else (frame.pts - self._origin) * time_base
            if previous is not None and (frame.pts is None or time <= previous):
                time = previous + step
            yield _TimedFrame(frame, number + offset, time)
        if seek_point is not None and time is None:
            raise _SeekError


@dataclass(frozen=True, eq=False)
class _TimedFrame:
    """A decoded frame with its number and its time in seconds."""

    frame: "AvFrame"
    number: int
    time: Fraction


class _SeekError(Exception):
    """Seeking failed or went past the requested frame."""


def _seek(container: "InputContainer", stream: "VideoStream", seek_point: SeekPoint) -> None:
    try:
        container.seek(seek_point.key, stream=stream)
    except require_av().error.FFmpegError:
        raise _SeekError from None


def _convert_frame(converter: FrameConverter, frame: "AvFrame", path: Path, number: int) -> ImageArray:
    """Convert a frame to RGB.

    Raises:
        InputError: The frame has another size than the first, or its pixel format cannot be converted.
    """
    height, width = converter.geometry.stored
    if (frame.height, frame.width) != (height, width):
        raise InputError(
            f"{path} changes at frame {number} from {width}x{height} to {frame.width}x{frame.height} pixels; "
            "cut it there, or convert it to one size."
        )
    try:
        return converter.convert(frame)
    except require_av().error.FFmpegError:
        raise InputError(
            f"{path} has the pixel format {frame.format.name}, which cannot be converted to RGB; convert it first."
        ) from None


def _read_info(
    container: "InputContainer",
    stream: "VideoStream",
    path: Path,
    geometry: FrameGeometry,
    origin: int,
    with_audio: bool,
) -> VideoInfo:
    time_base = stream_time_base(stream)
    fps = stream.average_rate or stream.guessed_rate or DEFAULT_FPS
    num_frames = _declared_frames(container, stream)
    duration = stream.duration * time_base if stream.duration else declared_duration(container, stream)
    return VideoInfo(
        paths=(path,),
        size=geometry.size,
        fps=fps,
        time_base=time_base,
        start=origin * time_base,
        num_frames=num_frames,
        duration=num_frames / fps if duration is None and num_frames else duration,
        has_audio=with_audio,
        codec=stream.codec_context.codec.canonical_name,
    )


def _declared_frames(container: "InputContainer", stream: "VideoStream") -> int | None:
    """Return the number of frames that the file declares, without those that its edit list removes."""
    entries = stream.index_entries
    if "mov" in container.format.name and stream.frames and len(entries):
        return sum(not entry.is_discard for entry in entries)
    return stream.frames or None


def open_video(
    source: LiveSource | os.PathLike[str],
    fps: float | Fraction = DEFAULT_FPS,
    max_pixels: int | None = None,
    *,
    drop: bool | None = None,
    timeout: float = TIMEOUT,
) -> Video:
    """Open a video file, a folder of images, a pattern of image names, a camera, a network stream or a pipe.

    The first frame is decoded once, so that an unreadable source is an error here and not while reading.

    Args:
        source: A file that ffmpeg reads, a folder, or a pattern such as 'frames/*.png'. Images are read in natural
            order, 2 before 10. A live source is the number of a camera, a `cv2.VideoCapture`, an address that starts
            with rtsp, http, https, udp or tcp, or "-" for standard input. Only a text can be an address or a pipe, and
            only if there is no file of that name; a path object is always a file.
        fps: Frames per second of images; other sources have their own times.
        max_pixels: Maximum number of pixels of a frame; None: `MAX_PIXELS`.
        drop: Live source: whether to skip frames if they are not read fast enough, so that processing does not lag
            behind; None: unless the source declares its length, as a file that is piped or served does.
        timeout: Live source: seconds to wait for a frame.

    Returns:
        The video.

    Raises:
        InputError: The source cannot be read.
        PixelLimitError: The header declares frames of more than `max_pixels` pixels.
    """
    if is_live_source(source):
        return LiveVideo(source, max_pixels, drop, timeout)
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"{source!r} is not a video; give a path, an address, the number of a camera or a capture.")
    path, exact = Path(source), exact_fps(fps, source)
    if isinstance(source, str) and "://" in source and not path_exists(path):
        raise InputError(f"{source} is not an address of a known kind; give one of {', '.join(PROTOCOLS)}, or a file.")
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
    for frame in open_video(Path(path)).frames():
        if frame.number in requested:
            requested.remove(frame.number)
            yield frame.image
        if frame.number >= last:
            break
    if requested:
        raise InputError(f"{path} has no frame {min(requested)}, or it is damaged; make or download the video again.")


DEMO_CLIPS = ("cockatoo", "tears_of_steel")
"""Names of the packaged clips; their sources and licenses are in assets/clips/ATTRIBUTION.md."""


def demo_clip(name: str = "cockatoo") -> Path:
    """Return the path of a packaged clip of real footage, three seconds long.

    Args:
        name: One of `DEMO_CLIPS`.

    Raises:
        InputError: There is no clip of this name.
    """
    if name not in DEMO_CLIPS:
        raise InputError(f"{name!r} is no demonstration clip; choose one of {', '.join(DEMO_CLIPS)}.")
    return Path(str(resources.files("protoformer") / "assets" / "clips" / f"{name}.mp4"))
