"""Transfer of the audio of one video to another: copied if the container supports its codec, else encoded again."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.video.decoding import audio_stream, demux, stream_time_base
from protoformer.video.encoding import ContainerFormat
from protoformer.video.types import require_av

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer, OutputContainer
    from av.packet import Packet


_BIT_RATE = 160_000
_DEFAULT_SAMPLE_RATE = 48_000
"""Sample rate if an encoder does not support that of the source; also the unit of time in Opus headers."""
_MIN_AUDIBLE_GAP = Fraction(1, 20)
"""Seconds of missing audio that are filled with silence; shorter gaps are rounding errors."""
_MIN_STEP = Fraction(1, 1000)
"""Minimum time between two chunks in seconds, which every container can represent."""


@dataclass(frozen=True, eq=False)
class AudioChunk(ABC):
    """A short piece of audio to write.

    Attributes:
        begin: Start time in the new file, in seconds.
        end: End time in the new file, in seconds.
        target: The new file.
        stream: The audio stream of the new file.
    """

    begin: Fraction
    end: Fraction
    target: "OutputContainer"
    stream: "AudioStream"

    @abstractmethod
    def write(self, end: Fraction) -> None:
        """Write the chunk, trimmed at `end` seconds of the new file if it can be trimmed."""


@dataclass(frozen=True, eq=False)
class CopiedChunk(AudioChunk):
    """An encoded packet that is copied unchanged."""

    packet: "Packet[AudioStream]"

    def write(self, end: Fraction) -> None:
        """Write the packet, which cannot be trimmed."""
        self.packet.stream = self.stream
        self.target.mux_one(self.packet)


@dataclass(frozen=True, eq=False)
class SampleChunk(AudioChunk):
    """Samples in the format of the encoder."""

    frame: "AudioFrame"

    def write(self, end: Fraction) -> None:
        """Encode the samples between the beginning of the new file and `end`."""
        rate, begin = self.stream.rate, max(self.begin, Fraction(0))
        trimmed = _trim(self.frame, round((begin - self.begin) * rate), round((end - self.begin) * rate))
        trimmed.pts, trimmed.time_base = round(begin * rate), Fraction(1, rate)
        self.target.mux(self.stream.encode(trimmed))


class AudioTrack:
    """Audio that is written interleaved with the video."""

    def __init__(self, chunks: Iterator[AudioChunk], encoder: "AudioStream | None", target: "OutputContainer") -> None:
        """Start with the first chunk.

        Args:
            chunks: The audio in order.
            encoder: The stream to flush at the end; None if packets are copied.
            target: The new file.
        """
        self._chunks, self._encoder, self._target = chunks, encoder, target
        self._next = next(chunks, None)

    def write_until(self, seconds: Fraction) -> None:
        """Write the chunks that end at or before `seconds` of the new file."""
        while self._next is not None and self._next.end <= seconds:
            self._next.write(seconds)
            self._next = next(self._chunks, None)

    def finish(self, end: Fraction) -> None:
        """Write the audio up to `end` seconds of the new file and flush the encoder."""
        self.write_until(end)
        if self._next is not None and self._next.begin < end:
            self._next.write(end)
        if self._encoder is not None:
            self._target.mux(self._encoder.encode(None))


def make_audio_track(
    container: "InputContainer", start: Fraction, target: "OutputContainer", output_format: ContainerFormat
) -> AudioTrack | None:
    """Add the audio of an open video to a new file.

    Copied audio is trimmed at packet boundaries, which are up to a tenth of a second apart. PCM and audio that is
    encoded again are trimmed at samples; audio that is encoded again is mixed down to at most two channels.

    Args:
        container: The open video.
        start: Time on its clock at which the audio starts, in seconds.
        target: The new file, to which nothing has been written.
        output_format: Its format.

    Returns:
        The audio track; None if there is no audio or the format has none.
    """
    source = audio_stream(container)
    if source is None or output_format.audio_encoder is None:
        return None
    if start > 0:
        _seek(container, source, start)
    codec = source.codec_context.codec.canonical_name
    is_pcm = codec.startswith("pcm_")  # its packets may have any length, and encoding it again is lossless
    begins_late = (
        source.start_time is not None and source.start_time * stream_time_base(source) - start > _MIN_AUDIBLE_GAP
    )
    copied = codec in output_format.copied_codecs
    if copied and not is_pcm and not (output_format.gapless_audio and begins_late):
        copy = target.add_stream_from_template(source)
        return AudioTrack(_copy_packets(container, source, start, target, copy, output_format.hides_lead), None, target)
    encoder = _add_encoder(source, target, codec if is_pcm and copied else output_format.audio_encoder)
    chunks = _decode_chunks(container, source, start, target, encoder)
    return AudioTrack(_fill_gaps(chunks) if output_format.gapless_audio else chunks, encoder, target)


def _seek(container: "InputContainer", stream: "AudioStream", start: Fraction) -> None:
    try:
        container.seek(int(start / stream_time_base(stream)), stream=stream)
    except require_av().error.FFmpegError:
        return  # the audio before `start` is then read and dropped


class _MonotonicFilter:
    """Accepts chunks in increasing order of time: damaged files have times that go back, which muxers refuse."""

    def __init__(self) -> None:
        self._begin: Fraction | None = None
        self._end = Fraction(0)

    def accept(self, begin: Fraction, end: Fraction) -> bool:
        """Return whether a chunk begins after the previous one and its middle is not before the previous end.

        Args:
            begin: Start time in seconds.
            end: End time in seconds.
        """
        if self._begin is not None and (begin - self._begin < _MIN_STEP or (begin + end) / 2 < self._end):
            return False
        self._begin, self._end = begin, end
        return True


def _copy_packets(
    container: "InputContainer",
    source: "AudioStream",
    start: Fraction,
    target: "OutputContainer",
    copy: "AudioStream",
    hides_lead: bool,
) -> Iterator[AudioChunk]:
    """Yield packets; of those that begin before the new file, only the ones that are not played."""
    time_base, preskip = stream_time_base(source), _opus_preskip(source)
    shift, order = round(start / time_base), _MonotonicFilter()
    for packet in _packets(container, source):
        if packet.size == 0 or packet.pts is None:
            continue
        begin = packet.pts * time_base - start
        end = begin + (packet.duration or 0) * time_base
        if (end if hides_lead else begin + preskip) >= 0 and order.accept(begin, end):
            packet.pts -= shift
            packet.dts = packet.pts
            yield CopiedChunk(begin, end, target, copy, packet)


def _opus_preskip(stream: "AudioStream") -> Fraction:
    """Return the seconds at the beginning of an Opus stream that players skip; 0 for other codecs."""
    head = stream.codec_context.extradata or b""
    samples = int.from_bytes(head[10:12], "little") if head.startswith(b"OpusHead") else 0
    # One millisecond is added because containers round.
    return Fraction(samples, _DEFAULT_SAMPLE_RATE) + Fraction(1, 1000) if samples else Fraction(0)


def _add_encoder(source: "AudioStream", target: "OutputContainer", name: str) -> "AudioStream":
    """Add an encoded audio stream to the new file, with the sample rate of the source if the encoder supports it."""
    av = require_av()
    if name not in av.codecs_available:
        raise InputError(f"this ffmpeg has no encoder {name} for the sound of the new file; choose another suffix.")
    rates = av.Codec(name, "w").audio_rates
    rate = source.rate if not rates or source.rate in rates else _DEFAULT_SAMPLE_RATE
    mixed = "mono" if source.codec_context.channels == 1 else "stereo"
    layout = source.layout.name if name == source.codec_context.codec.canonical_name else mixed
    return cast("AudioStream", target.add_stream(name, rate=rate, layout=layout, bit_rate=_BIT_RATE))


def _decode_chunks(
    container: "InputContainer",
    source: "AudioStream",
    start: Fraction,
    target: "OutputContainer",
    encoder: "AudioStream",
) -> Iterator[SampleChunk]:
    """Decode and resample the audio from the beginning of the new file on."""
    order = _MonotonicFilter()
    for frame in _resample(_decode(container, source), encoder):
        begin = (frame.pts or 0) * (frame.time_base or Fraction(1, encoder.rate)) - start
        end = begin + Fraction(frame.samples, encoder.rate)
        if end > 0 and order.accept(begin, end):
            yield SampleChunk(begin, end, target, encoder, frame)


def _resample(frames: Iterator["AudioFrame | None"], encoder: "AudioStream") -> Iterator["AudioFrame"]:
    """Convert frames to the format of the encoder; broadcasts change channels and rate between programs."""
    source_format, resampler = None, None
    for frame in frames:
        if frame is not None:
            current = (frame.format.name, frame.layout.name, frame.sample_rate, frame.time_base)
            if resampler is None or source_format != current:
                if resampler is not None:
                    yield from resampler.resample(None)
                source_format = current
                resampler = require_av().AudioResampler(encoder.format, encoder.layout, encoder.rate)
        if resampler is not None:
            yield from resampler.resample(frame)


def _fill_gaps(chunks: Iterator[SampleChunk]) -> Iterator[SampleChunk]:
    """Insert silence where audio is missing before and between chunks."""
    previous_end = Fraction(0)
    for chunk in chunks:
        if chunk.begin - previous_end > _MIN_AUDIBLE_GAP:
            while previous_end < chunk.begin:
                silence = _make_silence(chunk, previous_end)
                yield silence
                previous_end = silence.end
        yield chunk
        previous_end = max(previous_end, chunk.end)


def _make_silence(chunk: SampleChunk, begin: Fraction) -> SampleChunk:
    """Create up to one second of silence from `begin` to a chunk, in its format."""
    frame, rate = chunk.frame, chunk.stream.rate
    samples = min(rate, max(1, round((chunk.begin - begin) * rate)))
    channels = frame.layout.nb_channels
    shape = (channels, samples) if frame.format.is_planar else (1, channels * samples)
    zeros = np.zeros(shape, frame.to_ndarray().dtype)
    silence: AudioFrame = require_av().AudioFrame.from_ndarray(zeros, frame.format.name, frame.layout.name)
    silence.sample_rate = rate
    end = begin + Fraction(samples, rate)
    return SampleChunk(begin, end, chunk.target, chunk.stream, silence)


def _decode(container: "InputContainer", source: "AudioStream") -> Iterator["AudioFrame | None"]:
    """Yield the intact audio frames, then None."""
    ffmpeg_error = require_av().error.FFmpegError
    for packet in _packets(container, source):
        try:
            yield from packet.decode()
        except ffmpeg_error:
            continue
    yield None


def _packets(container: "InputContainer", source: "AudioStream") -> Iterator["Packet[AudioStream]"]:
    """Yield the audio packets up to the end or to where the file cannot be read, at which the video ends as well."""
    with suppress(require_av().error.FFmpegError):
        yield from demux(container, source)


def _trim(frame: "AudioFrame", begin: int, end: int) -> "AudioFrame":
    """Return the samples `begin` .. `end` - 1 of a frame."""
    if begin <= 0 and end >= frame.samples:
        return frame
    samples = frame.to_ndarray()
    width = 1 if frame.format.is_planar else frame.layout.nb_channels
    part = np.ascontiguousarray(samples[:, max(begin, 0) * width : max(end, 0) * width])
    trimmed: AudioFrame = require_av().AudioFrame.from_ndarray(part, frame.format.name, frame.layout.name)
    trimmed.sample_rate = frame.sample_rate
    return trimmed
