"""Opening what holds a video: the file, and the stream in it that is meant to be seen or heard."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from protoformer.errors import InputError
from protoformer.files.av_package import require_av
from protoformer.files.reading import pixel_limit, system_reason

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

_TEXT = frozenset({"tty", "bin", "xbin", "adf", "idf"})
"""Formats as which ffmpeg draws a text file."""
CODED_BORDER = 2**20
"""Pixels by which a decoder may be allowed more than a frame shows: codecs pad frames to whole blocks."""
_PROMISING = ("matroska", "mov", "flv", "asf")
"""Formats whose head says how long the file is; of others ffmpeg guesses it from what is there."""


@contextmanager
def opened_container(path: Path, max_pixels: int | None = None) -> Iterator["InputContainer"]:
    """Open a checked file for ffmpeg; what it does not know is an `InputError`.

    Only files are opened, whatever a playlist may name: no address on the net. Opening may decode a frame to learn what
    the header leaves out; frames far over `max_pixels` are not decoded, and the stream then has no size.
    """
    av = require_av()
    try:
        # Without the protocol a colon in the name would be taken for the end of one.
        container = av.open(
            f"file:{path}",
            "r",
            container_options={"protocol_whitelist": "file"},
            options={"max_pixels": str(pixel_limit(max_pixels) + CODED_BORDER)},
            metadata_errors="replace",
        )
    except (av.error.PermissionError, av.error.IsADirectoryError) as error:
        raise InputError(f"{path} cannot be read ({system_reason(error)}); check its permissions.") from None
    except (av.error.FFmpegError, ValueError):
        raise _unreadable(path) from None
    try:
        if container.format.name in _TEXT:
            raise _unreadable(path)
        yield container
    finally:
        container.close()


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


def sound_stream(container: "InputContainer") -> "AudioStream | None":
    """The sound that is marked as the default, else the first; None where there is none that can be decoded."""
    default = require_av().stream.Disposition.default
    streams = [each for each in container.streams.audio if each.codec_context is not None]
    return next((each for each in streams if each.disposition & default), streams[0] if streams else None)


def tick_of(stream: "AudioStream | VideoStream") -> Fraction:
    """Seconds that a stream's times count."""
    return stream.time_base or Fraction(1, 1_000_000)


def promised_seconds(container: "InputContainer", stream: "VideoStream") -> Fraction | None:
    """How long the head of the file says that it is; None where it says nothing."""
    name = container.format.name
    if name == "avi" and stream.frames and stream.average_rate:
        rate: Fraction = stream.average_rate
        return Fraction(stream.frames) / rate
    if container.duration and any(kind in name for kind in _PROMISING):
        return Fraction(container.duration, require_av().time_base)
    return None


def _unreadable(path: Path) -> InputError:
    with path.open("rb") as file:
        head = file.read(12)
    if head[4:8] == b"ftyp":
        return InputError(f"{path} is a video that was cut short, without its index; make or download it again.")
    return InputError(
        f"{path} is not a video of a known kind, or is damaged; give one that ffmpeg reads, such as mp4, mov, mkv, "
        "webm, avi, mpg, wmv, flv, ts or gif, or else a folder of images."
    )
