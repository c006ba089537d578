"""Container formats, video codecs, and the encoding of RGB frames with PyAV."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.video.color_conversion import conversion_flags, default_matrix
from protoformer.video.types import ImageArray, require_av

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.filter import Graph
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


Quality = Literal["small", "good", "best"]

FINEST = 1_000_000
"""Ticks per second for formats that can store any time base: microseconds."""


@dataclass(frozen=True)
class Encoder:
    """A video encoder and its settings.

    Attributes:
        name: Name in ffmpeg.
        pixel_format: Pixel format of its input.
        options: Options of ffmpeg for each quality.
        even: Whether both sides must be even.
        max_ticks: Maximum number of ticks per second of its time base.
    """

    name: str
    pixel_format: str
    options: Mapping[Quality, Mapping[str, str]]
    even: bool = False
    max_ticks: int = 10 * FINEST


@dataclass(frozen=True)
class ContainerFormat:
    """A container format and the streams that it can hold.

    Attributes:
        format: Name in ffmpeg.
        encoders: Video encoders in order of preference.
        audio_encoder: Name of the encoder for audio that cannot be copied; None: no audio.
        copied_codecs: Audio codecs that are copied without encoding.
        time_base: Time base in seconds; None: any.
        constant_rate: Whether frames are stored at a constant rate, without times.
        hides_lead: Whether audio before time 0 can be stored without being played.
        max_gap: Maximum number of ticks from one frame to the next; None: no limit.
        gapless_audio: Whether audio is played from the beginning without gaps, so that gaps must be filled with
            silence.
        options: Options of ffmpeg.
    """

    format: str
    encoders: tuple[Encoder, ...]
    audio_encoder: str | None
    copied_codecs: frozenset[str] = frozenset()
    time_base: Fraction | None = None
    constant_rate: bool = False
    hides_lead: bool = False
    max_gap: int | None = None
    gapless_audio: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


# Without B-frames, times are stored unchanged, and every player shows the first frame at 0.
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


def _quantizer_options(small: int, good: int, best: int) -> dict[Quality, dict[str, str]]:
    """Options of older codecs, whose quality is a fixed quantizer scale: 1 is the finest."""
    scales: dict[Quality, int] = {"small": small, "good": good, "best": best}
    return {quality: {"qmin": str(scale), "qmax": str(scale)} for quality, scale in scales.items()}


_MPEG4 = Encoder("mpeg4", "yuv420p", _quantizer_options(8, 3, 2), even=True, max_ticks=65535)
_MJPEG = Encoder("mjpeg", "yuvj420p", _quantizer_options(6, 2, 1))
_GIF = Encoder("gif", "pal8", {"small": {}, "good": {}, "best": {}})

_IN_MP4 = frozenset({"aac", "mp3", "ac3", "eac3"})
_IN_MOV = _IN_MP4 | {"alac", "pcm_s16le", "pcm_s16be", "pcm_s24le"}
_IN_MKV = _IN_MOV | {"flac", "opus", "vorbis"}
_IN_AVI = frozenset({"mp3", "ac3", "pcm_s16le"})
# An index at the beginning lets a browser start playing before it has the whole file.
_FASTSTART = {"movflags": "+faststart"}
_FORMATS = {
    ".mp4": ContainerFormat("mp4", (_H264, _MPEG4), "aac", _IN_MP4, hides_lead=True, max_gap=2**30, options=_FASTSTART),
    ".mov": ContainerFormat("mov", (_H264, _MPEG4), "aac", _IN_MOV, hides_lead=True, max_gap=2**30, options=_FASTSTART),
    ".mkv": ContainerFormat("matroska", (_H264, _VP9, _MPEG4), "aac", _IN_MKV, Fraction(1, 1000)),
    ".webm": ContainerFormat("webm", (_VP9,), "libopus", frozenset({"opus", "vorbis"}), Fraction(1, 1000)),
    ".avi": ContainerFormat(
        "avi", (_MJPEG,), "pcm_s16le", _IN_AVI, constant_rate=True, max_gap=60_000, gapless_audio=True
    ),
    ".gif": ContainerFormat("gif", (_GIF,), None, time_base=Fraction(1, 100), max_gap=2**16 - 1),
}
SUFFIXES = frozenset(_FORMATS)
"""Suffixes of all video formats that can be written."""


def container_for(path: Path) -> ContainerFormat:
    """Return the container format for the suffix of a path.

    Raises:
        InputError: The suffix is not supported.
    """
    container = _FORMATS.get(path.suffix.lower())
    if container is None:
        *others, last = sorted(_FORMATS)
        raise InputError(f"{path} does not end in {', '.join(others)} or {last}; choose one of these suffixes.")
    return container


def encoder_for(container: ContainerFormat, path: Path) -> Encoder:
    """Return the preferred video encoder of a container format that this build of ffmpeg has.

    Raises:
        InputError: ffmpeg has none of the encoders.
    """
    available = require_av().codecs_available
    encoder = next((encoder for encoder in container.encoders if encoder.name in available), None)
    if encoder is None:
        raise InputError(f"this ffmpeg has no encoder for {path}; choose another suffix, such as .avi.")
    return encoder


_AV_MATRIX = {"ITU709": 1, "ITU601": 6}
_BT709, _LIMITED, _FULL = 1, 1, 2
"""Values of ffmpeg for the primaries and transfer function, and for the color range."""
_MAX_DURATION = 2**31 - 1
"""Maximum duration of a packet in ffmpeg, in ticks; only that of the last packet matters."""


class VideoEncoder:
    """Encodes images of one size and writes them to a container."""

    def __init__(
        self,
        target: "OutputContainer",
        encoder: Encoder,
        size: tuple[int, int],
        fps: Fraction,
        time_base: Fraction,
        quality: Quality,
    ) -> None:
        """Add a video stream to a container.

        Args:
            target: The open container.
            encoder: The encoder.
            size: (height, width) of the images.
            fps: Average number of frames per second.
            time_base: Time base in seconds.
            quality: The trade-off between file size and fidelity.
        """
        self._target, self._encoder, self._time_base = target, encoder, time_base
        self._default_duration = round(1 / fps / time_base)
        self._durations: dict[int, int] = {}  # in ticks, by pts, where it differs from the default
        self._pad = tuple(side % 2 if encoder.even else 0 for side in size)
        self._palette_filter = _make_palette_filter(size, time_base) if encoder.pixel_format == "pal8" else None
        self._matrix = "ITU601" if encoder.pixel_format.startswith("yuvj") else default_matrix(*size)
        self._reformatter = require_av().video.reformatter.VideoReformatter()
        stream = target.add_stream(encoder.name, rate=fps, options=dict(encoder.options[quality]))
        self._stream = cast("VideoStream", stream)
        self._configure(size)

    @property
    def padded(self) -> bool:
        """Whether the images are padded by a row or column."""
        return any(self._pad)

    def write(self, image: ImageArray, pts: int, duration: int | None = None) -> None:
        """Encode an image.

        Args:
            image: uint8 HxWx3 RGB.
            pts: Presentation time, in ticks.
            duration: Ticks for which the image is displayed if it is the last one; None: according to the rate.
        """
        if duration is not None:
            self._durations[pts] = duration
        down, right = self._pad
        if down or right:
            image = np.pad(image, ((0, down), (0, right), (0, 0)), mode="edge")
        frame = require_av().VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts, frame.time_base = pts, self._time_base
        for converted in self._convert(frame):
            self._mux(converted)

    def finish(self) -> None:
        """Flush the encoder."""
        if self._palette_filter is not None:
            for frame in _filter_frames(self._palette_filter, None):
                self._mux(frame)
        self._mux(None)

    def _configure(self, size: tuple[int, int]) -> None:
        context = self._stream.codec_context
        context.height, context.width = size[0] + self._pad[0], size[1] + self._pad[1]
        context.pix_fmt = self._encoder.pixel_format
        context.time_base = self._time_base
        if self._palette_filter is None:
            context.colorspace = _AV_MATRIX[self._matrix]
            context.color_range = self._color_range
            context.color_primaries = context.color_trc = _BT709

    @property
    def _color_range(self) -> int:
        return _FULL if self._encoder.pixel_format.startswith("yuvj") else _LIMITED

    def _convert(self, frame: "VideoFrame") -> Iterator["VideoFrame"]:
        """Convert a frame to the pixel format of the encoder."""
        if self._palette_filter is not None:
            yield from _filter_frames(self._palette_filter, frame)
            return
        colors = require_av().video.reformatter
        converted = self._reformatter.reformat(
            frame,
            format=self._encoder.pixel_format,
            interpolation=conversion_flags(),
            src_color_range="JPEG",
            dst_colorspace=colors.Colorspace[self._matrix],
            dst_color_range=self._color_range,
            threads=1,
        )
        converted.pts, converted.time_base = frame.pts, frame.time_base
        yield converted

    def _mux(self, frame: "VideoFrame | None") -> None:
        """Encode a frame, or flush the encoder at None, and write the packets."""
        for packet in self._stream.encode(frame):
            duration = self._durations.pop(packet.pts or 0, min(self._default_duration, _MAX_DURATION))
            if duration != self._default_duration:  # ffmpeg sets the default itself
                packet.duration = duration
            self._target.mux(packet)


def _make_palette_filter(size: tuple[int, int], time_base: Fraction) -> "Graph":
    """Build a filter graph that reduces each frame to its own palette of 256 colors."""
    av = require_av()
    graph: Graph = av.filter.Graph()
    source = graph.add_buffer(width=size[1], height=size[0], format=av.VideoFormat("rgb24"), time_base=time_base)
    split, palette = graph.add("split"), graph.add("palettegen", "stats_mode=single:reserve_transparent=0")
    applied, sink = graph.add("paletteuse", "new=1"), graph.add("buffersink")
    source.link_to(split)
    split.link_to(applied, 0, 0)
    split.link_to(palette, 1, 0)
    palette.link_to(applied, 0, 1)
    applied.link_to(sink)
    graph.configure()
    return graph


def _filter_frames(graph: "Graph", frame: "VideoFrame | None") -> Iterator["VideoFrame"]:
    """Push a frame, or None at the end, into a filter graph and yield the frames that come out."""
    error = require_av().error
    graph.push(frame)
    while True:
        try:
            yield graph.vpull()
        except (error.BlockingIOError, error.EOFError):
            return
