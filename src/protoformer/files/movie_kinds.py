"""The kinds of video file that are written, by suffix, and how each is encoded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

from protoformer.errors import InputError
from protoformer.files.av_package import require_av

Quality = Literal["small", "good", "best"]

FINEST = 1_000_000
"""Ticks a second where a file may choose them: microseconds."""


@dataclass(frozen=True)
class Encoder:
    """How to encode pictures."""

    name: str
    """As ffmpeg calls it."""
    pixels: str
    """The format of pixels that it is given."""
    options: Mapping[Quality, Mapping[str, str]]
    """What ffmpeg is told, for each quality."""
    even: bool = False
    """Must both sides be a multiple of two?"""
    most_ticks: int = 10 * FINEST
    """The most ticks a second that it can count."""


@dataclass(frozen=True)
class Kind:
    """A container and what goes into it."""

    format: str
    """As ffmpeg calls it."""
    encoders: tuple[Encoder, ...]
    """Those for pictures, best first."""
    sound: str | None
    """The encoder for sound that must be encoded again; None where there can be no sound."""
    copied: frozenset[str] = frozenset()
    """Codecs of sound that it takes as they are."""
    tick: Fraction | None = None
    """Seconds that its times count; None where the file may choose."""
    even_times: bool = False
    """Does it show its frames at a constant rate?"""
    hides_lead: bool = False
    """Can it hold sound from before its beginning without letting it be heard?"""
    longest: int | None = None
    """The most ticks from one frame to the next that its format holds; None where there is no such bound."""
    timeless_sound: bool = False
    """Is sound played from the beginning without a gap, so that what is missing must be written as silence?"""
    options: Mapping[str, str] = field(default_factory=dict)
    """What ffmpeg is told."""


# Without frames that look ahead, times are stored as they are, and the first frame stands at 0 for every player.
_X264 = {"preset": "medium", "bf": "0"}
_H264 = Encoder(
    "libx264",
    "yuv420p",
    {"small": {**_X264, "crf": "28"}, "good": {**_X264, "crf": "18"}, "best": {**_X264, "crf": "10"}},
    even=True,
)
_VP9_SPEED = {"b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "1"}
_VP9 = Encoder(
    "libvpx-vp9",
    "yuv420p",
    {
        "small": {**_VP9_SPEED, "crf": "40"},
        "good": {**_VP9_SPEED, "crf": "24"},
        "best": {**_VP9_SPEED, "crf": "12"},
    },
)


def _by_scale(small: int, good: int, best: int) -> dict[Quality, dict[str, str]]:
    """Options of the older codecs, whose quality is the scale of their steps: 1 is the finest."""
    scales: dict[Quality, int] = {"small": small, "good": good, "best": best}
    return {quality: {"qmin": str(scale), "qmax": str(scale)} for quality, scale in scales.items()}


_MPEG4 = Encoder("mpeg4", "yuv420p", _by_scale(8, 3, 2), even=True, most_ticks=65535)
_MJPEG = Encoder("mjpeg", "yuvj420p", _by_scale(6, 2, 1))
_GIF = Encoder("gif", "pal8", {"small": {}, "good": {}, "best": {}})

_IN_MP4 = frozenset({"aac", "mp3", "ac3", "eac3"})
_IN_MOV = _IN_MP4 | {"alac", "pcm_s16le", "pcm_s16be", "pcm_s24le"}
_IN_MKV = _IN_MOV | {"flac", "opus", "vorbis"}
_IN_AVI = frozenset({"mp3", "ac3", "pcm_s16le"})
# The index in front lets a browser begin before it has all of the file.
_AT_ONCE = {"movflags": "+faststart"}
_KINDS = {
    ".mp4": Kind("mp4", (_H264, _MPEG4), "aac", _IN_MP4, hides_lead=True, longest=2**30, options=_AT_ONCE),
    ".mov": Kind("mov", (_H264, _MPEG4), "aac", _IN_MOV, hides_lead=True, longest=2**30, options=_AT_ONCE),
    ".mkv": Kind("matroska", (_H264, _VP9, _MPEG4), "aac", _IN_MKV, Fraction(1, 1000)),
    ".webm": Kind("webm", (_VP9,), "libopus", frozenset({"opus", "vorbis"}), Fraction(1, 1000)),
    ".avi": Kind("avi", (_MJPEG,), "pcm_s16le", _IN_AVI, even_times=True, longest=60_000, timeless_sound=True),
    ".gif": Kind("gif", (_GIF,), None, tick=Fraction(1, 100), longest=2**16 - 1),
}
SUFFIXES = frozenset(_KINDS)
"""Of all kinds of video that can be written."""


def kind_of(path: Path) -> Kind:
    """The kind of video that the suffix of a path asks for."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        *most, last = sorted(_KINDS)
        raise InputError(f"{path} does not end in {', '.join(most)} or {last}; choose one of these suffixes.")
    return kind


def encoder_for(kind: Kind, path: Path) -> Encoder:
    """The first encoder of a kind that this ffmpeg has."""
    known = require_av().codecs_available
    found = next((encoder for encoder in kind.encoders if encoder.name in known), None)
    if found is None:
        raise InputError(f"this ffmpeg has no encoder for {path}; choose another suffix, such as .avi.")
    return found
