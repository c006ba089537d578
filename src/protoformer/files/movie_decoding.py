"""From packets to frames, past what is damaged."""

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

from protoformer.errors import InputError
from protoformer.files.av_package import require_av
from protoformer.files.movie import USUAL_RATE
from protoformer.files.movie_container import demuxed, promised_seconds
from protoformer.files.reading import system_reason

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_SLACK = Fraction(1, 5)
"""Seconds by which a whole file may end before the time in its head."""


class Decoding:
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
        promised = promised_seconds(self._container, self._stream)
        if promised is None or not self._reached:
            return False
        streams = self._container.streams
        reached = max(end * (streams[index].time_base or Fraction(0)) for index, end in self._reached.items())
        # Some files count from 0, others from their own beginning.
        since = Fraction(self._container.start_time or 0, require_av().time_base)
        slack = max(_SLACK, 2 / (self._stream.average_rate or USUAL_RATE))
        return max(reached, reached - since) + slack < promised


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-len(end), os.SEEK_END)
        return file.read() == end
