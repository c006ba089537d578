"""The sound of one movie, carried over into another: copied where the container takes it, else encoded again."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.video.decoding import audio_stream, demuxed, time_base
from protoformer.video.encoding import ContainerFormat
from protoformer.video.types import require_av

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer, OutputContainer
    from av.packet import Packet


_BITS_A_SECOND = 160_000
_USUAL_SAMPLES = 48_000
"""Samples a second where an encoder does not take those of the source; also what Opus counts in."""
_AUDIBLE_GAP = Fraction(1, 20)
"""Seconds that must be missing before silence is written in their place; less is rounding."""
_SHORTEST_STEP = Fraction(1, 1000)
"""Seconds between two pieces of sound at least, which every container can tell apart."""


@dataclass(frozen=True, eq=False)
class AudioPiece(ABC):
    """A little sound that can be written; times in seconds of the new file."""

    begin: Fraction
    end: Fraction
    target: "OutputContainer"
    stream: "AudioStream"

    @abstractmethod
    def write(self, end: Fraction) -> None:
        """Write it, cut off at a second of the new file if it can be cut."""


@dataclass(frozen=True, eq=False)
class CopiedAudio(AudioPiece):
    """A packet as it is."""

    packet: "Packet[AudioStream]"

    def write(self, end: Fraction) -> None:
        """Write the packet, which cannot be cut."""
        self.packet.stream = self.stream
        self.target.mux_one(self.packet)


@dataclass(frozen=True, eq=False)
class EncodedAudio(AudioPiece):
    """Samples as the encoder takes them."""

    frame: "AudioFrame"

    def write(self, end: Fraction) -> None:
        """Encode the samples between the beginning of the new file and `end`."""
        rate, begin = self.stream.rate, max(self.begin, Fraction(0))
        piece = _cut(self.frame, round((begin - self.begin) * rate), round((end - self.begin) * rate))
        piece.pts, piece.time_base = round(begin * rate), Fraction(1, rate)
        self.target.mux(self.stream.encode(piece))


class AudioTrack:
    """Sound that is written along with the pictures, as far as they have come."""

    def __init__(self, pieces: Iterator[AudioPiece], encoder: "AudioStream | None", target: "OutputContainer") -> None:
        """encoder: the stream that holds sound back until it is told to give it out; None where none does."""
        self._pieces, self._encoder, self._target = pieces, encoder, target
        self._next = next(pieces, None)

    def write_until(self, seconds: Fraction) -> None:
        """Write what ends at `seconds` of the new file or before."""
        while self._next is not None and self._next.end <= seconds:
            self._next.write(seconds)
            self._next = next(self._pieces, None)

    def finish(self, end: Fraction) -> None:
        """Write what begins before `end`, in seconds of the new file, and what an encoder still holds."""
        self.write_until(end)
        if self._next is not None and self._next.begin < end:
            self._next.write(end)
        if self._encoder is not None:
            self._target.mux(self._encoder.encode(None))


def make_audio_track(
    container: "InputContainer", start: Fraction, target: "OutputContainer", kind: ContainerFormat
) -> AudioTrack | None:
    """Add the sound of an open movie, from second `start` of its clock on, to a file that is not yet begun.

    Copied sound is cut between its packets, of up to a tenth of a second. Plain samples are cut between two of them,
    and so is what must be encoded again, of which more than two channels become two. None where there is no sound, or
    the new file takes none.
    """
    source = audio_stream(container)
    if source is None or kind.sound is None:
        return None
    if start > 0:
        _seek(container, source, start)
    codec = source.codec_context.codec.canonical_name
    plain = codec.startswith("pcm_")  # its packets may be of any length, and it loses nothing by being encoded again
    begins_late = source.start_time is not None and source.start_time * time_base(source) - start > _AUDIBLE_GAP
    if codec in kind.copied and not plain and not (kind.timeless_sound and begins_late):
        copy = target.add_stream_from_template(source)
        return AudioTrack(_copied(container, source, start, target, copy, kind.hides_lead), None, target)
    encoder = _encoder(source, target, codec if plain and codec in kind.copied else kind.sound)
    pieces = _encoded(container, source, start, target, encoder)
    return AudioTrack(_without_gaps(pieces) if kind.timeless_sound else pieces, encoder, target)


def _seek(container: "InputContainer", stream: "AudioStream", start: Fraction) -> None:
    try:
        container.seek(int(start / time_base(stream)), stream=stream)
    except require_av().error.FFmpegError:
        return  # then what comes before is read and left out


class _Order:
    """Picks the pieces that come one after the other: damaged files have times that go back, which no muxer takes."""

    def __init__(self) -> None:
        self._begin: Fraction | None = None
        self._end = Fraction(0)

    def takes(self, begin: Fraction, end: Fraction) -> bool:
        """Whether a piece begins after the one before, and half of it or more ends after it; times in seconds."""
        if self._begin is not None and (begin - self._begin < _SHORTEST_STEP or (begin + end) / 2 < self._end):
            return False
        self._begin, self._end = begin, end
        return True


def _copied(
    container: "InputContainer",
    source: "AudioStream",
    start: Fraction,
    target: "OutputContainer",
    copy: "AudioStream",
    hides_lead: bool,
) -> Iterator[AudioPiece]:
    """Packets; of those that begin before the new file only such as are not heard by themselves."""
    tick, lead = time_base(source), _lead(source)
    shift, order = round(start / tick), _Order()
    for packet in _packets(container, source):
        if packet.size == 0 or packet.pts is None:
            continue
        begin = packet.pts * tick - start
        end = begin + (packet.duration or 0) * tick
        if (end if hides_lead else begin + lead) >= 0 and order.takes(begin, end):
            packet.pts -= shift
            packet.dts = packet.pts
            yield CopiedAudio(begin, end, target, copy, packet)


def _lead(stream: "AudioStream") -> Fraction:
    """Seconds that the sound of an Opus stream begins before it is heard, which every container takes into account."""
    head = stream.codec_context.extradata or b""
    samples = int.from_bytes(head[10:12], "little") if head.startswith(b"OpusHead") else 0
    # A millisecond more, because containers round.
    return Fraction(samples, _USUAL_SAMPLES) + Fraction(1, 1000) if samples else Fraction(0)


def _encoder(source: "AudioStream", target: "OutputContainer", name: str) -> "AudioStream":
    av = require_av()
    if name not in av.codecs_available:
        raise InputError(f"this ffmpeg has no encoder {name} for the sound of the new file; choose another suffix.")
    rates = av.Codec(name, "w").audio_rates
    rate = source.rate if not rates or source.rate in rates else _USUAL_SAMPLES
    few = "mono" if source.codec_context.channels == 1 else "stereo"
    layout = source.layout.name if name == source.codec_context.codec.canonical_name else few
    return cast("AudioStream", target.add_stream(name, rate=rate, layout=layout, bit_rate=_BITS_A_SECOND))


def _encoded(
    container: "InputContainer",
    source: "AudioStream",
    start: Fraction,
    target: "OutputContainer",
    encoder: "AudioStream",
) -> Iterator[EncodedAudio]:
    """Samples from the beginning of the new file on."""
    order = _Order()
    for frame in _resampled(_decoded(container, source), encoder):
        begin = (frame.pts or 0) * (frame.time_base or Fraction(1, encoder.rate)) - start
        end = begin + Fraction(frame.samples, encoder.rate)
        if end > 0 and order.takes(begin, end):
            yield EncodedAudio(begin, end, target, encoder, frame)


def _resampled(frames: Iterator["AudioFrame | None"], encoder: "AudioStream") -> Iterator["AudioFrame"]:
    """Yield frames as an encoder takes them; broadcasts change their channels and rate from one program to the next."""
    setup, resampler = None, None
    for frame in frames:
        if frame is not None:
            latest = (frame.format.name, frame.layout.name, frame.sample_rate, frame.time_base)
            if resampler is None or setup != latest:
                if resampler is not None:
                    yield from resampler.resample(None)
                setup = latest
                resampler = require_av().AudioResampler(encoder.format, encoder.layout, encoder.rate)
        if resampler is not None:
            yield from resampler.resample(frame)


def _without_gaps(pieces: Iterator[EncodedAudio]) -> Iterator[EncodedAudio]:
    """Yield pieces with silence in the place of what is missing before and between them."""
    reached = Fraction(0)
    for piece in pieces:
        if piece.begin - reached > _AUDIBLE_GAP:
            while reached < piece.begin:
                silence = _silence(piece, reached)
                yield silence
                reached = silence.end
        yield piece
        reached = max(reached, piece.end)


def _silence(piece: EncodedAudio, begin: Fraction) -> EncodedAudio:
    """Up to a second of silence from `begin` to a piece, in its format."""
    frame, rate = piece.frame, piece.stream.rate
    samples = min(rate, max(1, round((piece.begin - begin) * rate)))
    channels = frame.layout.nb_channels
    shape = (channels, samples) if frame.format.is_planar else (1, channels * samples)
    zeros = np.zeros(shape, frame.to_ndarray().dtype)
    silence: AudioFrame = require_av().AudioFrame.from_ndarray(zeros, frame.format.name, frame.layout.name)
    silence.sample_rate = rate
    end = begin + Fraction(samples, rate)
    return EncodedAudio(begin, end, piece.target, piece.stream, silence)


def _decoded(container: "InputContainer", source: "AudioStream") -> Iterator["AudioFrame | None"]:
    """Frames of sound, past those that are damaged, and a last None."""
    failure = require_av().error.FFmpegError
    for packet in _packets(container, source):
        try:
            yield from packet.decode()
        except failure:
            continue
    yield None


def _packets(container: "InputContainer", source: "AudioStream") -> Iterator["Packet[AudioStream]"]:
    """Packets of sound, as far as the file can be read: its pictures end there as well."""
    with suppress(require_av().error.FFmpegError):
        yield from demuxed(container, source)


def _cut(frame: "AudioFrame", begin: int, end: int) -> "AudioFrame":
    """The samples from `begin` up to `end` of a frame."""
    if begin <= 0 and end >= frame.samples:
        return frame
    samples = frame.to_ndarray()
    width = 1 if frame.format.is_planar else frame.layout.nb_channels
    kept = np.ascontiguousarray(samples[:, max(begin, 0) * width : max(end, 0) * width])
    cut: AudioFrame = require_av().AudioFrame.from_ndarray(kept, frame.format.name, frame.layout.name)
    cut.sample_rate = frame.sample_rate
    return cut
