"""The sound of a video comes along: copied or encoded again, cut where the pictures are cut, and in time with them."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

av = pytest.importorskip("av")

Make = Callable[..., Path]
RATE = 48000


@dataclass(frozen=True)
class Heard:
    """Mono samples with the time of each, in seconds."""

    codec: str
    times: np.ndarray
    samples: np.ndarray

    @property
    def onset(self) -> float:
        """When it becomes loud."""
        return float(self.times[np.argmax(np.abs(self.samples) > 0.15)])


def heard(path: Path) -> Heard | None:
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return None
        resampler = av.AudioResampler("flt", "mono", RATE)
        frames = [piece for frame in container.decode(audio=0) for piece in resampler.resample(frame)]
        times = [float(frame.pts * frame.time_base) + np.arange(frame.samples) / RATE for frame in frames]
        samples = [frame.to_ndarray()[0] for frame in frames]
        codec = container.streams.audio[0].codec_context.codec.canonical_name
    return Heard(codec, np.concatenate(times), np.concatenate(samples))


def flash(
    path: Path,
    codec: str,
    layout: str = "stereo",
    rate: int = RATE,
    delay: Fraction = Fraction(0),
    chunk: int | None = 1024,
) -> Path:
    """Three seconds, dark and silent, but from second 1.2 on bright and loud; the video begins `delay` later.

    chunk: samples that the encoder gets at a time, which for some codecs is what a packet has; None is all of them.
    """
    with av.open(str(path), "w") as target:
        video = target.add_stream("libx264", rate=25, options={"bf": "2"})
        video.width, video.height, video.pix_fmt = 48, 32, "yuv420p"
        video.codec_context.time_base = Fraction(1, 1000)
        sound = target.add_stream(codec, rate=rate, layout=layout)
        for number in range(75):
            time = 40 * number + round(1000 * delay)
            frame = av.VideoFrame.from_ndarray(np.full((32, 48, 3), 255 * (time >= 1200), np.uint8))
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            target.mux(video.encode(frame))
        target.mux(video.encode(None))
        times = np.arange(3 * rate) / rate
        wave = np.where(times >= 1.2, 12000 * np.sin(2 * np.pi * 1000 * times), 0).astype(np.int16)
        channels = {"mono": 1, "stereo": 2, "5.1": 6}[layout]
        for first in range(0, wave.size, chunk or wave.size):
            samples = np.repeat(wave[first : first + (chunk or wave.size)], channels)
            frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, first
            target.mux(sound.encode(frame))
        target.mux(sound.encode(None))
    return path


def brightened(path: Path) -> float:
    """When the pictures become bright."""
    return next(float(frame.time) for frame in open_video(path).frames() if frame.image.mean() > 128)


@pytest.mark.parametrize(
    ("old", "codec", "new", "becomes"),
    [
        ("old.mp4", "aac", "new.mp4", "aac"),
        ("old.mp4", "aac", "new.mov", "aac"),
        ("old.mp4", "aac", "new.mkv", "aac"),
        ("old.mp4", "aac", "new.webm", "opus"),
        ("old.mp4", "aac", "new.avi", "pcm_s16le"),
        ("old.ts", "aac", "new.mp4", "aac"),
        ("old.mkv", "pcm_s16le", "new.mp4", "aac"),
        ("old.mkv", "pcm_s16le", "new.mov", "pcm_s16le"),
        ("old.mkv", "pcm_s16le", "new.avi", "pcm_s16le"),
        ("old.mkv", "libopus", "new.mkv", "opus"),
        ("old.mkv", "libopus", "new.webm", "opus"),
        ("old.mkv", "libopus", "new.mp4", "aac"),
        ("old.mkv", "flac", "new.mkv", "flac"),
    ],
)
def test_sound_stays_in_time_with_the_pictures(tmp_path: Path, old: str, codec: str, new: str, becomes: str) -> None:
    like = open_video(flash(tmp_path / old, codec))
    for start, end in [(None, None), (0.5, 2), (1.0, 1.6)]:
        with VideoWriter(tmp_path / new, like) as writer:
            for frame in like.frames(start, end):
                writer.write(frame.image, frame.time)
        sound = heard(tmp_path / new)
        begin = 0.52 if start == 0.5 else start or 0.0
        assert sound is not None
        assert sound.codec == becomes
        assert brightened(tmp_path / new) == pytest.approx(1.2 - begin, abs=1e-3)
        assert sound.onset == pytest.approx(1.2 - begin, abs=0.006)
        packet = 0.097 if codec == "flac" else 0.027  # seconds, at most
        assert sound.times[0] == pytest.approx(0, abs=packet if start else 0.002)
        assert sound.times[-1] == pytest.approx((end or 3) - begin, abs=packet)


def test_copied_sound_is_the_same_to_the_byte(tmp_path: Path) -> None:
    like = open_video(flash(tmp_path / "old.mp4", "aac"))
    with VideoWriter(tmp_path / "new.mkv", like) as writer:
        for frame in like.frames():
            writer.write(frame.image, frame.time)

    def packets(path: Path) -> list[bytes]:
        with av.open(str(path)) as container:
            return [bytes(packet) for packet in container.demux(audio=0) if packet.size]

    old, new = packets(tmp_path / "old.mp4"), packets(tmp_path / "new.mkv")
    assert new == old[1:]  # but for the first, which is not heard
    with VideoWriter(tmp_path / "new.mp4", like) as writer:
        for frame in like.frames():
            writer.write(frame.image, frame.time)
    assert packets(tmp_path / "new.mp4") == old
    one, other = heard(tmp_path / "old.mp4"), heard(tmp_path / "new.mp4")
    assert one is not None and other is not None
    assert np.array_equal(one.samples, other.samples)


@pytest.mark.parametrize("delay", [Fraction(0), Fraction(2, 5)])
@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_a_video_that_begins_after_its_sound_stays_in_time(tmp_path: Path, suffix: str, delay: Fraction) -> None:
    like = open_video(flash(tmp_path / "old.mp4", "aac", delay=delay))
    assert like.info.start == delay
    with VideoWriter(tmp_path / f"new{suffix}", like) as writer:
        for frame in like.frames():
            writer.write(frame.image, frame.time)
    sound = heard(tmp_path / f"new{suffix}")
    assert sound is not None
    assert brightened(tmp_path / f"new{suffix}") == pytest.approx(1.2 - float(delay), abs=1e-3)
    assert sound.onset == pytest.approx(1.2 - float(delay), abs=0.006)


@pytest.mark.parametrize(("layout", "rate"), [("mono", 44100), ("mono", 8000), ("5.1", 48000), ("stereo", 96000)])
def test_sound_of_any_layout_and_rate_is_encoded(tmp_path: Path, layout: str, rate: int) -> None:
    like = open_video(flash(tmp_path / "old.mkv", "flac", layout, rate))
    for suffix in (".mp4", ".webm", ".avi"):
        with VideoWriter(tmp_path / f"new{suffix}", like) as writer:
            for frame in like.frames(start=0.6):
                writer.write(frame.image, frame.time)
        with av.open(str(tmp_path / f"new{suffix}")) as container:
            assert container.streams.audio[0].codec_context.channels == (1 if layout == "mono" else 2)
        sound = heard(tmp_path / f"new{suffix}")
        assert sound is not None
        assert sound.onset == pytest.approx(0.6, abs=0.006)


def test_sound_ends_where_the_pictures_do_or_before(tmp_path: Path) -> None:
    like = open_video(flash(tmp_path / "old.mkv", "pcm_s16le", chunk=None))
    with VideoWriter(tmp_path / "new.avi", like) as writer:
        for frame in like.frames(end=0.4):
            writer.write(frame.image, frame.time)
    short = heard(tmp_path / "new.avi")
    with VideoWriter(tmp_path / "encoded.webm", like) as writer:
        for frame in like.frames(end=0.4):
            writer.write(frame.image, frame.time)
    encoded = heard(tmp_path / "encoded.webm")
    with VideoWriter(tmp_path / "long.avi", like) as writer:
        for number in range(250):
            writer.write(np.zeros((32, 48, 3), np.uint8), Fraction(number, 25))
    long = heard(tmp_path / "long.avi")
    assert short is not None and encoded is not None and long is not None
    assert short.times.size == round(0.4 * RATE)
    assert encoded.times.size / RATE == pytest.approx(0.4, abs=0.008)
    assert long.times.size == 3 * RATE


def test_sound_and_pictures_lie_side_by_side_in_the_file(tmp_path: Path, make_video: Make) -> None:
    """Or a player would have to jump to and fro, and the writer to hold all of the sound."""
    like = open_video(make_video(tmp_path / "old.mkv", [np.zeros((32, 48, 3), np.uint8)] * 100, rate=4, sound="aac"))
    with VideoWriter(tmp_path / "new.mkv", like) as writer:
        for frame in like.frames():
            writer.write(frame.image, frame.time)
    with av.open(str(tmp_path / "new.mkv")) as container:
        found = [
            (packet.stream_index, float(packet.pts * packet.time_base)) for packet in container.demux() if packet.size
        ]
    assert found[-1][1] == pytest.approx(25, abs=0.3)
    latest = [0.0, 0.0]
    for stream, time in found:
        latest[stream] = time
        assert abs(latest[0] - latest[1]) < 1


def test_what_has_no_sound_gets_none(tmp_path: Path, make_video: Make) -> None:
    silent = open_video(make_video(tmp_path / "silent.mp4", [np.zeros((32, 48, 3), np.uint8)] * 5))
    loud = open_video(flash(tmp_path / "loud.mp4", "aac"))
    for like, name in [(silent, "new.mp4"), (loud, "new.gif"), (None, "plain.mp4")]:
        with VideoWriter(tmp_path / name, like, fps=25) as writer:
            for _ in range(5):
                writer.write(np.zeros((32, 48, 3), np.uint8))
        assert heard(tmp_path / name) is None
        assert len(list(open_video(tmp_path / name).frames())) == 5


def test_sound_that_cannot_be_encoded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    like = open_video(flash(tmp_path / "old.mp4", "aac"))
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libopus"})
    with (
        pytest.raises(InputError, match="no encoder libopus for the sound"),
        VideoWriter(tmp_path / "new.webm", like) as writer,
    ):
        writer.write(np.zeros((32, 48, 3), np.uint8))
    assert [path.name for path in tmp_path.iterdir()] == ["old.mp4"]


def test_a_movie_can_be_written_over_the_one_it_is_made_from(tmp_path: Path) -> None:
    like = open_video(flash(tmp_path / "clip.mp4", "aac"))
    with VideoWriter(tmp_path / "clip.mp4", like) as writer:
        for frame in like.frames(start=1.0):
            writer.write(frame.image[::2, ::2], frame.time)
    sound = heard(tmp_path / "clip.mp4")
    assert sound is not None
    assert open_video(tmp_path / "clip.mp4").info.size == (16, 24)
    assert sound.onset == pytest.approx(0.2, abs=0.006)


def test_damaged_sound_is_left_out(tmp_path: Path) -> None:
    path = flash(tmp_path / "old.mkv", "aac")
    like = open_video(path)
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3 : len(data) * 2 // 3 + 40] = bytes(40)
    path.write_bytes(data)
    for name in ("new.mp4", "new.webm"):
        with VideoWriter(tmp_path / name, like) as writer:
            for number in range(75):
                writer.write(np.zeros((32, 48, 3), np.uint8), Fraction(number, 25))
        assert len(list(open_video(tmp_path / name).frames())) == 75
