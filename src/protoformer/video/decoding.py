"""From packets to frames, past what is damaged."""

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
from protoformer.video.types import DEFAULT_RATE, require_av

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


_TEXT = frozenset({"tty", "bin", "xbin", "adf", "idf"})
"""Formats as which ffmpeg draws a text file."""
CODED_BORDER = 2**20
"""Pixels by which a decoder may be allowed more than a frame shows: codecs pad frames to whole blocks."""
_PROMISING = ("matroska", "mov", "flv", "asf")
"""Formats whose head says how long the file is; of others ffmpeg guesses it from what is there."""
_NAMING_OTHERS = frozenset(
    ("concat", "dash", "hls", "imf", "lavfi", "rtp", "rtsp", "sap", "sdp", "vobsub", "webm_dash_manifest")
)
"""Formats that are lists of other files or addresses, which ffmpeg would open."""
_OPEN_ENDED = frozenset({"mpegts", "mpeg", "flv", "live_flv", "wtv"})
"""Formats without a list of streams in their head: a stream is found with its first packet."""
_THOROUGH = {"probesize": str(64 * 2**20), "analyzeduration": str(600 * 10**6)}
"""Bytes and microseconds that ffmpeg reads to find streams, in place of 5 MB and about 5 seconds."""


@contextmanager
def open_container(path: Path, max_pixels: int | None = None, thorough: bool = False) -> Iterator["InputContainer"]:
    """Open a checked file for ffmpeg; what it does not know is an `InputError`.

    No other file is opened, whatever a playlist may name, and no address on the net. Opening may decode a frame to
    learn what the header leaves out; frames far over `max_pixels` are not decoded, and the stream then has no size.

    Args:
        path: The video file.
        max_pixels: Most pixels of a frame; None: `MAX_PIXELS`.
        thorough: Look far into a file that does not list its streams, for those that begin late.
    """
    av = require_av()
    options = {"protocol_whitelist": "file", "format_whitelist": _formats(), **(_THOROUGH if thorough else {})}
    with ExitStack() as open_things:
        try:
            # Without the protocol a colon in the name would be taken for the end of one.
            source = f"file:{path}" if "%" not in str(path) else open_things.enter_context(_unnamed(path))
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
            raise _unreadable(path) from None
        open_things.callback(container.close)
        if container.format.name in _TEXT:
            raise _unreadable(path)
        yield container


def video_stream(container: "InputContainer", path: Path) -> "VideoStream":
    """The video stream that is marked as the default, else the first; attached pictures do not count."""
    kinds = require_av().stream.Disposition
    streams = [each for each in container.streams.video if not each.disposition & kinds.attached_pic]
    if not streams:
        what = "sound but no video" if container.streams.audio else "no video"
        raise InputError(f"{path} holds {what}; give a file with a video stream.")
    stream = next((each for each in streams if each.disposition & kinds.default), streams[0])
    if stream.codec_context is None:
        raise InputError(f"{path} is coded in a way that this ffmpeg cannot decode; convert it to h264 first.")
    return stream


def demuxed(container: "InputContainer", *streams: "Stream") -> Iterator["Packet[Any]"]:
    """Yield the packets of some streams, by default of all that were found on opening, and a last empty one of each.

    PyAV ends with an empty packet for every stream that the file has by then, and fails with an `IndexError` at the
    first that appeared after opening. Those that were known come before it.
    """
    with suppress(IndexError):
        yield from container.demux(*streams)


def audio_stream(container: "InputContainer") -> "AudioStream | None":
    """The sound that is marked as the default, else the first; None where there is none that can be decoded.

    Sound of which opening the file found no more than an entry in a list, and no sample, does not count.
    """
    default = require_av().stream.Disposition.default
    known = [each for each in container.streams.audio if each.codec_context is not None]
    streams = [each for each in known if each.rate and each.codec_context.channels]
    return next((each for each in streams if each.disposition & default), streams[0] if streams else None)


def has_sound(container: "InputContainer", path: Path, max_pixels: int | None = None) -> bool:
    """Whether an open file has sound that can be decoded, also where it begins long after the video.

    Args:
        container: The open file.
        path: Where it lies, as it may have to be opened again.
        max_pixels: As of `opened_container`.
    """
    if audio_stream(container) is not None:
        return True
    if container.format.name not in _OPEN_ENDED:
        return False
    with open_container(path, max_pixels, thorough=True) as again:
        return audio_stream(again) is not None


def time_base(stream: "AudioStream | VideoStream") -> Fraction:
    """Seconds that a stream's times count."""
    return stream.time_base or Fraction(1, 1_000_000)


def declared_duration(container: "InputContainer", stream: "VideoStream") -> Fraction | None:
    """How long the head of the file says that it is; None where it says nothing."""
    name = container.format.name
    if name == "avi" and stream.frames and stream.average_rate:
        rate: Fraction = stream.average_rate
        return Fraction(stream.frames) / rate
    if container.duration and any(kind in name for kind in _PROMISING):
        return Fraction(container.duration, require_av().time_base)
    return None


@cache
def _formats() -> str:
    """The formats that ffmpeg may find a file to have."""
    return ",".join(sorted(require_av().formats_available - _NAMING_OTHERS))


def _unnamed(path: Path) -> FileIO:
    """Open a file under another name: ffmpeg takes a %d in that of an image for the numbers of many."""
    file = FileIO(path)
    file.name = "clip" if "%" in path.suffix else f"clip{path.suffix}"
    return file


def _unreadable(path: Path) -> InputError:
    with path.open("rb") as file:
        head = file.read(12)
    if head.startswith((b"#EXTM3U", b"ffconcat")):
        return InputError(
            f"{path} is a playlist and no video of a known kind; what it names is not opened, so give the video itself."
        )
    if head[4:8] == b"ftyp":
        return InputError(f"{path} is a video that was cut short, without its index; make or download it again.")
    return InputError(
        f"{path} is not a video of a known kind, or is damaged; give one that ffmpeg reads, such as mp4, mov, mkv, "
        "webm, avi, mpg, wmv, flv, ts or gif, or else a folder of images."
    )


_SLACK = Fraction(1, 5)
"""Seconds by which a whole file may end before the time in its head."""


class PacketDecoder:
    """One pass over a video stream, from where its container stands.

    Packets that cannot be decoded and frames of which the decoder had to make up parts are left out and counted.
    """

    def __init__(self, container: "InputContainer", stream: "VideoStream", path: Path) -> None:
        self.skipped = 0
        """Frames left out so far."""
        self.torn = False
        """At the end: did the file end before its time?"""
        self._container, self._stream, self._path = container, stream, path
        self._reached: dict[int, int] = {}

    def frames(self) -> Iterator["VideoFrame"]:
        """Every whole frame, in the order in which they are shown."""
        failure = require_av().error.FFmpegError
        for packet in self._packets():
            try:
                frames = self._stream.decode(packet)
            except failure:
                self.skipped += 1
                continue
            for frame in frames:
                if frame.is_corrupt:
                    self.skipped += 1
                else:
                    yield frame

    def _packets(self) -> Iterator["Packet[VideoStream] | None"]:
        """The packets of the stream, and a last None, which has the decoder give what it holds back."""
        error = require_av().error
        # All streams are read, because a video may end before its sound does.
        packets, partial = demuxed(self._container), False
        try:
            for packet in packets:
                if packet.size:
                    self._note(packet)
                    if packet.stream_index == self._stream.index:
                        # A transport stream marks packets after any gap, whole as they may be.
                        partial = packet.is_corrupt and self._container.format.name != "mpegts"
                        if partial:
                            self.skipped += 1
                        else:
                            yield cast("Packet[VideoStream]", packet)
        except error.InvalidDataError:
            partial = True
        except error.FFmpegError as failure:
            raise InputError(
                f"{self._path} cannot be read on ({system_reason(failure)}); check the disk and its permissions."
            ) from None
        self.torn = partial or self._is_short()
        yield None

    def _note(self, packet: "Packet[Stream]") -> None:
        time = packet.dts if packet.pts is None else packet.pts
        if time is not None:
            end = time + (packet.duration or 0)
            self._reached[packet.stream_index] = max(end, self._reached.get(packet.stream_index, end))

    def _is_short(self) -> bool:
        if self._container.format.name == "gif":
            return not _ends_with(self._path, b";")
        promised = declared_duration(self._container, self._stream)
        if promised is None or not self._reached:
            return False
        streams = self._container.streams
        reached = max(end * (streams[index].time_base or Fraction(0)) for index, end in self._reached.items())
        # Some files count from 0, others from their own beginning.
        since = Fraction(self._container.start_time or 0, require_av().time_base)
        slack = max(_SLACK, 2 / (self._stream.average_rate or DEFAULT_RATE))
        return max(reached, reached - since) + slack < promised


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-len(end), os.SEEK_END)
        return file.read() == end


_WITH_HIDDEN_PACKETS = frozenset({"vp8"})
"""Codecs with packets that show nothing, so that packets do not number frames."""


@dataclass(frozen=True)
class SeekPoint:
    """Where to begin, and the first frame that is wanted."""

    key: int
    """A time, in ticks of the stream, from which on everything can be decoded."""
    pts: int
    """When the wanted frame is shown, in ticks of the stream."""
    number: int
    """Its number in the whole clip."""


def find_seek_point(path: Path, origin: int, start: float) -> SeekPoint | None:
    """The first frame at `start` seconds or after; `origin` is the time of the clip's first frame in ticks.

    Packets are counted and not decoded. None where that does not number frames: without times, with times that come
    twice, with a start behind the end. Reading from the beginning is right everywhere.
    """
    times: set[int] = set()
    keys: dict[int, int] = {}
    wanted = None
    with open_container(path) as container:
        stream = video_stream(container, path)
        if stream.codec_context.codec.canonical_name in _WITH_HIDDEN_PACKETS:
            return None
        tick = time_base(stream)
        try:
            for packet in demuxed(container, stream):
                if packet.size == 0 or packet.is_discard:
                    continue
                if packet.pts is None or packet.dts is None or packet.pts in times:
                    return None
                times.add(packet.pts)
                if packet.is_keyframe:
                    keys[packet.pts] = min(packet.pts, packet.dts)
                if float((packet.pts - origin) * tick) >= start:
                    wanted = packet.pts if wanted is None else min(wanted, packet.pts)
                if wanted is not None and packet.dts > wanted:
                    break
        except require_av().error.FFmpegError:
            return None
    before = [pts for pts in keys if wanted is not None and pts <= wanted]
    if wanted is None or not before:
        return None
    return SeekPoint(keys[max(before)], wanted, sum(origin <= time < wanted for time in times))
