"""The stream of pictures in a video that is written: colours, padding, palettes and the encoder's own order."""

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from protoformer.files.av_package import require_av
from protoformer.files.movie import Picture
from protoformer.files.movie_kinds import Encoder, Quality
from protoformer.files.movie_picture import exact_conversion, usual_matrix

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.filter import Graph
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_AV_MATRIX = {"ITU709": 1, "ITU601": 6}
_BT709, _LIMITED, _FULL = 1, 1, 2
"""Values of ffmpeg for primaries and transfer, and for the range of samples."""
_LONGEST = 2**31 - 1
"""Ticks of a packet beyond which ffmpeg refuses it; only those of the last one count."""


class PictureStream:
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
        self._matrix = "ITU601" if encoder.pixels.startswith("yuvj") else usual_matrix(*size)
        self._reformatter = require_av().video.reformatter.VideoReformatter()
        stream = target.add_stream(encoder.name, rate=rate, options=dict(encoder.options[quality]))
        self._stream = cast("VideoStream", stream)
        self._configure(size)

    @property
    def padded(self) -> bool:
        """Whether the pictures get another row or column."""
        return any(self._pad)

    def write(self, image: Picture, place: int, duration: int | None = None) -> None:
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
        colours = require_av().video.reformatter
        converted = self._reformatter.reformat(
            frame,
            format=self._encoder.pixels,
            interpolation=exact_conversion(),
            src_color_range="JPEG",
            dst_colorspace=colours.Colorspace[self._matrix],
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
    """A filter that gives each picture the 256 colours that suit it best."""
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
