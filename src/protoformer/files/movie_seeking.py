"""Finding a second of a video without decoding all that comes before it."""

from dataclasses import dataclass
from pathlib import Path

from protoformer.files.av_package import require_av
from protoformer.files.movie_container import demuxed, opened_container, tick_of, video_stream

_WITH_HIDDEN_PACKETS = frozenset({"vp8"})
"""Codecs with packets that show nothing, so that packets do not number frames."""


@dataclass(frozen=True)
class Place:
    """Where to begin, and the first frame that is wanted."""

    key: int
    """A time, in ticks of the stream, from which on everything can be decoded."""
    pts: int
    """When the wanted frame is shown, in ticks of the stream."""
    number: int
    """Its number in the whole clip."""


def find_place(path: Path, origin: int, start: float) -> Place | None:
    """The first frame at `start` seconds or after; `origin` is the time of the clip's first frame in ticks.

    Packets are counted and not decoded. None where that does not number frames: without times, with times that come
    twice, with a start behind the end. Reading from the beginning is right everywhere.
    """
    times: set[int] = set()
    keys: dict[int, int] = {}
    wanted = None
    with opened_container(path) as container:
        stream = video_stream(container, path)
        if stream.codec_context.codec.canonical_name in _WITH_HIDDEN_PACKETS:
            return None
        tick = tick_of(stream)
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
    return Place(keys[max(before)], wanted, sum(origin <= time < wanted for time in times))
