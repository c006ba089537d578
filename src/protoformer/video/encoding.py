"""The stream of pictures in a video that is written: colors, padding, palettes and the encoder's own order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.video.color_conversion import default_matrix, exact_conversion
from protoformer.video.types import ImageArray, require_av

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.filter import Graph
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


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
class ContainerFormat:
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
    ".mp4": ContainerFormat("mp4", (_H264, _MPEG4), "aac", _IN_MP4, hides_lead=True, longest=2**30, options=_AT_ONCE),
    ".mov": ContainerFormat("mov", (_H264, _MPEG4), "aac", _IN_MOV, hides_lead=True, longest=2**30, options=_AT_ONCE),
    ".mkv": ContainerFormat("matroska", (_H264, _VP9, _MPEG4), "aac", _IN_MKV, Fraction(1, 1000)),
    ".webm": ContainerFormat("webm", (_VP9,), "libopus", frozenset({"opus", "vorbis"}), Fraction(1, 1000)),
    ".avi": ContainerFormat(
        "avi", (_MJPEG,), "pcm_s16le", _IN_AVI, even_times=True, longest=60_000, timeless_sound=True
    ),
    ".gif": ContainerFormat("gif", (_GIF,), None, tick=Fraction(1, 100), longest=2**16 - 1),
}
SUFFIXES = frozenset(_KINDS)
"""Of all kinds of video that can be written."""


def container_for(path: Path) -> ContainerFormat:
    """The kind of video that the suffix of a path asks for."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        *most, last = sorted(_KINDS)
        raise InputError(f"{path} does not end in {', '.join(most)} or {last}; choose one of these suffixes.")
    return kind


def encoder_for(kind: ContainerFormat, path: Path) -> Encoder:
    """The first encoder of a kind that this ffmpeg has."""
    known = require_av().codecs_available
    found = next((encoder for encoder in kind.encoders if encoder.name in known), None)
    if found is None:
        raise InputError(f"this ffmpeg has no encoder for {path}; choose another suffix, such as .avi.")
    return found


_AV_MATRIX = {"ITU709": 1, "ITU601": 6}
_BT709, _LIMITED, _FULL = 1, 1, 2
"""Values of ffmpeg for primaries and transfer, and for the range of samples."""
_LONGEST = 2**31 - 1
"""Ticks of a packet beyond which ffmpeg refuses it; only those of the last one count."""


class VideoEncoder:
    """Takes pictures of one size and writes them to a container through an encoder."""

    def __init__(
        self,
        target: "OutputContainer",
        encoder: Encoder,
        size: tuple[int, int],
        rate: Fraction,
        tick: Fraction,
        quality: Quality,
    ) -> None:
        """size: (height, width). rate: frames a second, about. tick: seconds that the times of pictures count."""
        self._target, self._encoder, self._tick = target, encoder, tick
        self._usual = round(1 / rate / tick)
        self._durations: dict[int, int] = {}
        """Ticks that pictures are shown, by their places, where that is not what the rate says."""
        self._pad = tuple(side % 2 if encoder.even else 0 for side in size)
        self._palettes = _palettes(size, tick) if encoder.pixels == "pal8" else None
        self._matrix = "ITU601" if encoder.pixels.startswith("yuvj") else default_matrix(*size)
        self._reformatter = require_av().video.reformatter.VideoReformatter()
        stream = target.add_stream(encoder.name, rate=rate, options=dict(encoder.options[quality]))
        self._stream = cast("VideoStream", stream)
        self._configure(size)

    @property
    def padded(self) -> bool:
        """Whether the pictures get another row or column."""
        return any(self._pad)

    def write(self, image: ImageArray, place: int, duration: int | None = None) -> None:
        """Encode a picture, uint8 HxWx3 RGB, to be shown at `place` ticks, for `duration` of them if it is the last."""
        if duration is not None:
            self._durations[place] = duration
        down, right = self._pad
        if down or right:
            image = np.pad(image, ((0, down), (0, right), (0, 0)), mode="edge")
        frame = require_av().VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts, frame.time_base = place, self._tick
        for converted in self._converted(frame):
            self._mux(converted)

    def finish(self) -> None:
        """Write what the encoder holds back."""
        if self._palettes is not None:
            for frame in _through(self._palettes, None):
                self._mux(frame)
        self._mux(None)

    def _configure(self, size: tuple[int, int]) -> None:
        context = self._stream.codec_context
        context.height, context.width = size[0] + self._pad[0], size[1] + self._pad[1]
        context.pix_fmt = self._encoder.pixels
        context.time_base = self._tick
        if self._palettes is None:
            context.colorspace = _AV_MATRIX[self._matrix]
            context.color_range = self._range
            context.color_primaries = context.color_trc = _BT709

    @property
    def _range(self) -> int:
        return _FULL if self._encoder.pixels.startswith("yuvj") else _LIMITED

    def _converted(self, frame: "VideoFrame") -> Iterator["VideoFrame"]:
        if self._palettes is not None:
            yield from _through(self._palettes, frame)
            return
        colors = require_av().video.reformatter
        converted = self._reformatter.reformat(
            frame,
            format=self._encoder.pixels,
            interpolation=exact_conversion(),
            src_color_range="JPEG",
            dst_colorspace=colors.Colorspace[self._matrix],
            dst_color_range=self._range,
            threads=1,
        )
        converted.pts, converted.time_base = frame.pts, frame.time_base
        yield converted

    def _mux(self, frame: "VideoFrame | None") -> None:
        for packet in self._stream.encode(frame):
            shown = self._durations.pop(packet.pts or 0, min(self._usual, _LONGEST))
            if shown != self._usual:  # else ffmpeg sets it by itself
                packet.duration = shown
            self._target.mux(packet)


def _palettes(size: tuple[int, int], tick: Fraction) -> "Graph":
    """A filter that gives each picture the 256 colors that suit it best."""
    av = require_av()
    graph: Graph = av.filter.Graph()
    source = graph.add_buffer(width=size[1], height=size[0], format=av.VideoFormat("rgb24"), time_base=tick)
    split, chosen = graph.add("split"), graph.add("palettegen", "stats_mode=single:reserve_transparent=0")
    applied, sink = graph.add("paletteuse", "new=1"), graph.add("buffersink")
    source.link_to(split)
    split.link_to(applied, 0, 0)
    split.link_to(chosen, 1, 0)
    chosen.link_to(applied, 0, 1)
    applied.link_to(sink)
    graph.configure()
    return graph


def _through(graph: "Graph", frame: "VideoFrame | None") -> Iterator["VideoFrame"]:
    """Push a frame, or the end, through a filter and take what comes out."""
    error = require_av().error
    graph.push(frame)
    while True:
        try:
            yield graph.vpull()
        except (error.BlockingIOError, error.EOFError):
            return
