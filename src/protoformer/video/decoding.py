"""Demuxing and decoding with PyAV, including damaged files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from protoformer.errors import InputError
from protoformer.io.files import pixel_limit, system_reason
from protoformer.video.types import DEFAULT_FPS, require_av

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


_TEXT_FORMATS = frozenset({"tty", "bin", "xbin", "adf", "idf"})
"""Formats as which ffmpeg renders text files."""
CODED_BORDER = 2**20
"""Pixels that a decoder may allocate beyond the displayed frame, since codecs pad frames to whole blocks."""
_FORMATS_WITH_DURATION = ("matroska", "mov", "flv", "asf")
"""Formats whose header declares the duration; for others ffmpeg estimates it from the data."""
_REFERENCE_FORMATS = frozenset(
    ("concat", "dash", "hls", "imf", "lavfi", "rtp", "rtsp", "sap", "sdp", "vobsub", "webm_dash_manifest")
)
"""Formats that refer to other files or addresses, which ffmpeg would open."""
_UNLISTED_STREAM_FORMATS = frozenset({"mpegts", "mpeg", "flv", "live_flv", "wtv"})
"""Formats whose header does not list the streams: ffmpeg detects a stream at its first packet."""
_THOROUGH_PROBE = {"probesize": str(64 * 2**20), "analyzeduration": str(600 * 10**6)}
"""Bytes and microseconds that ffmpeg reads to detect streams, instead of 5 MB and about 5 seconds."""


@contextmanager
def open_container(path: Path, max_pixels: int | None = None, thorough: bool = False) -> Iterator["InputContainer"]:
    """Open a file with ffmpeg, without following references to other files or network addresses.

    ffmpeg may decode a frame while opening, to learn what the header leaves out. Frames far over `max_pixels` are not
    decoded; the size of such a stream is then unknown.

    Args:
        path: The video file, already checked.
        max_pixels: Maximum number of pixels of a frame; None: `MAX_PIXELS`.
        thorough: Whether to probe far into a file that does not list its streams, for streams that begin late.

    Yields:
        The open container.

    Raises:
        InputError: The file cannot be read or is not a video.
    """
    av = require_av()
    options = {"protocol_whitelist": "file", "format_whitelist": allowed_formats()}
    options |= _THOROUGH_PROBE if thorough else {}
    with ExitStack() as stack:
        try:
            # Without an explicit protocol, ffmpeg would take the text before a colon in the name for one.
            source = f"file:{path}" if "%" not in str(path) else stack.enter_context(_open_under_plain_name(path))
            container = av.open(
                source,
                "r",
                container_options=options,
                options={"max_pixels": str(pixel_limit(max_pixels) + CODED_BORDER)},
                metadata_errors="replace",
            )
        except (PermissionError, IsADirectoryError) as error:
            raise InputError(f"{path} cannot be read ({system_reason(error)}); check its permissions.") from None
        except (av.error.FFmpegError, ValueError):
            raise _unreadable_error(path) from None
        stack.callback(container.close)
        if container.format.name in _TEXT_FORMATS:
            raise _unreadable_error(path)
        yield container


def video_stream(container: "InputContainer", path: Path | str) -> "VideoStream":
    """Return the default video stream, else the first; attached cover images do not count.

    Raises:
        InputError: There is no video stream, or its codec is not supported.
    """
    flags = require_av().stream.Disposition
    streams = [stream for stream in container.streams.video if not stream.disposition & flags.attached_pic]
    if not streams:
        content = "sound but no video" if container.streams.audio else "no video"
        raise InputError(f"{path} holds {content}; give a file with a video stream.")
    stream = next((stream for stream in streams if stream.disposition & flags.default), streams[0])
    if stream.codec_context is None:
        raise InputError(f"{path} has a codec that this ffmpeg cannot decode; convert it to h264 first.")
    return stream


def demux(container: "InputContainer", *streams: "Stream") -> Iterator["Packet[Any]"]:
    """Yield the packets of the given streams, by default of all, and an empty packet at the end of each.

    PyAV yields the empty packets for every stream that the file has at its end, and raises `IndexError` at the first
    stream that appeared after opening. The streams that were present on opening come before it.
    """
    with suppress(IndexError):
        yield from container.demux(*streams)


def audio_stream(container: "InputContainer") -> "AudioStream | None":
    """Return the default audio stream that can be decoded, else the first; None if there is none.

    A stream that is listed in the header but of which no sample was read does not count.
    """
    default = require_av().stream.Disposition.default
    supported = [stream for stream in container.streams.audio if stream.codec_context is not None]
    streams = [stream for stream in supported if stream.rate and stream.codec_context.channels]
    return next((stream for stream in streams if stream.disposition & default), streams[0] if streams else None)


def has_audio(container: "InputContainer", path: Path, max_pixels: int | None = None) -> bool:
    """Return whether an open file has audio that can be decoded, also if it begins long after the video.

    Args:
        container: The open file.
        path: Its path; the file may have to be opened again.
        max_pixels: See `open_container`.
    """
    if audio_stream(container) is not None:
        return True
    if container.format.name not in _UNLISTED_STREAM_FORMATS:
        return False
    with open_container(path, max_pixels, thorough=True) as reopened:
        return audio_stream(reopened) is not None


def stream_time_base(stream: "AudioStream | VideoStream") -> Fraction:
    """Return the unit of a stream's time stamps, in seconds."""
    return stream.time_base or Fraction(1, 1_000_000)


def declared_duration(container: "InputContainer", stream: "VideoStream") -> Fraction | None:
    """Return the duration that the header declares, in seconds; None if it declares none."""
    name = container.format.name
    if name == "avi" and stream.frames and stream.average_rate:
        rate: Fraction = stream.average_rate
        return Fraction(stream.frames) / rate
    if container.duration and any(kind in name for kind in _FORMATS_WITH_DURATION):
        return Fraction(container.duration, require_av().time_base)
    return None


@cache
def allowed_formats() -> str:
    """Return the formats that ffmpeg may detect, separated by commas."""
    return ",".join(sorted(require_av().formats_available - _REFERENCE_FORMATS))


def _open_under_plain_name(path: Path) -> FileIO:
    """Open a file under a name without %, because ffmpeg takes %d in an image name for a numbered sequence."""
    file = FileIO(path)
    file.name = "clip" if "%" in path.suffix else f"clip{path.suffix}"
    return file


def _unreadable_error(path: Path) -> InputError:
    with path.open("rb") as file:
        head = file.read(12)
    if head.startswith((b"#EXTM3U", b"ffconcat")):
        return InputError(f"{path} is a playlist, whose entries are not opened; give the video itself.")
    if head[4:8] == b"ftyp":
        return InputError(f"{path} is a video that was cut short, without its index; make or download it again.")
    return InputError(
        f"{path} is not a video of a known kind, or is damaged; give one that ffmpeg reads, such as mp4, mov, mkv, "
        "webm, avi, mpg, wmv, flv, ts or gif, or else a folder of images."
    )


_DURATION_TOLERANCE = Fraction(1, 5)
"""Seconds by which a complete file may end before its declared duration."""


class PacketDecoder:
    """Decodes a video stream once, from the current position of its container.

    Packets that cannot be decoded and frames with concealed errors are skipped.

    Attributes:
        skipped: Number of frames skipped so far.
        truncated: Whether the file ended before its declared duration; set at the end.
    """

    def __init__(self, container: "InputContainer", stream: "VideoStream", path: Path | str) -> None:
        self.skipped = 0
        self.truncated = False
        self._container, self._stream, self._path = container, stream, path
        self._end_times: dict[int, int] = {}

    def frames(self) -> Iterator["VideoFrame"]:
        """Yield the intact frames in display order."""
        ffmpeg_error = require_av().error.FFmpegError
        for packet in self._packets():
            try:
                frames = self._stream.decode(packet)
            except ffmpeg_error:
                self.skipped += 1
                continue
            for frame in frames:
                if frame.is_corrupt:
                    self.skipped += 1
                else:
                    yield frame

    def _packets(self) -> Iterator["Packet[VideoStream] | None"]:
        """Yield the packets of the stream, then None, which flushes the decoder."""
        error = require_av().error
        # All streams are demuxed, because the video may end before the audio.
        packets, partial = demux(self._container), False
        try:
            for packet in packets:
                if packet.size:
                    self._update_end_time(packet)
                    if packet.stream_index == self._stream.index:
                        # A transport stream marks intact packets after a gap as corrupt.
                        partial = packet.is_corrupt and self._container.format.name != "mpegts"
                        if partial:
                            self.skipped += 1
                        else:
                            yield cast("Packet[VideoStream]", packet)
        except error.InvalidDataError:
            partial = True
        except error.FFmpegError as failure:
            raise InputError(
                f"reading {self._path} failed ({system_reason(failure)}); check the disk and its permissions."
            ) from None
        self.truncated = partial or self._ends_early()
        yield None

    def _update_end_time(self, packet: "Packet[Stream]") -> None:
        time = packet.dts if packet.pts is None else packet.pts
        if time is not None:
            end = time + (packet.duration or 0)
            self._end_times[packet.stream_index] = max(end, self._end_times.get(packet.stream_index, end))

    def _ends_early(self) -> bool:
        if self._container.format.name == "gif" and isinstance(self._path, Path):
            return not _file_ends_with(self._path, b";")
        declared = declared_duration(self._container, self._stream)
        if declared is None or not self._end_times:
            return False
        streams = self._container.streams
        end = max(time * (streams[index].time_base or Fraction(0)) for index, time in self._end_times.items())
        # Some files count their duration from 0, others from their start time.
        start = Fraction(self._container.start_time or 0, require_av().time_base)
        tolerance = max(_DURATION_TOLERANCE, 2 / (self._stream.average_rate or DEFAULT_FPS))
        return max(end, end - start) + tolerance < declared


def _file_ends_with(path: Path, suffix: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-len(suffix), os.SEEK_END)
        return file.read() == suffix


_CODECS_WITH_INVISIBLE_PACKETS = frozenset({"vp8"})
"""Codecs with packets that are not displayed, so that counting packets does not number frames."""


@dataclass(frozen=True)
class SeekPoint:
    """A position to seek to, and the first frame to read from there.

    Attributes:
        key: Time stamp from which everything can be decoded, in ticks of the stream.
        pts: Presentation time stamp of the first frame to read, in ticks of the stream.
        number: Index of this frame in the whole video.
    """

    key: int
    pts: int
    number: int


def find_seek_point(path: Path, origin: int, start: float, max_pixels: int | None = None) -> SeekPoint | None:
    """Find the first frame at or after a time by counting packets, without decoding.

    Args:
        path: The video file.
        origin: Time stamp of the first frame, in ticks of the stream.
        start: Time after the first frame, in seconds.
        max_pixels: As of `open_container`.

    Returns:
        The seek point; None if packets do not number frames (missing or repeated time stamps, `start` after the end),
        in which case the video has to be read from the beginning.
    """
    times: set[int] = set()
    keys: dict[int, int] = {}
    target = None
    with open_container(path, max_pixels) as container:
        stream = video_stream(container, path)
        if stream.codec_context.codec.canonical_name in _CODECS_WITH_INVISIBLE_PACKETS:
            return None
        time_base = stream_time_base(stream)
        try:
            for packet in demux(container, stream):
                if packet.size == 0 or packet.is_discard:
                    continue
                if packet.pts is None or packet.dts is None or packet.pts in times:
                    return None
                times.add(packet.pts)
                if packet.is_keyframe:
                    keys[packet.pts] = min(packet.pts, packet.dts)
                if float((packet.pts - origin) * time_base) >= start:
                    target = packet.pts if target is None else min(target, packet.pts)
                if target is not None and packet.dts > target:
                    break
        except require_av().error.FFmpegError:
            return None
    earlier = [pts for pts in keys if target is not None and pts <= target]
    if target is None or not earlier:
        return None
    return SeekPoint(keys[max(earlier)], target, sum(origin <= time < target for time in times))
