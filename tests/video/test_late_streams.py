"""Streams that begin or end in the middle of a file neither stop a reading nor cost what is written."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.video.reader import open_video
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter

av = pytest.importorskip("av")

RATE, SAMPLES = 25, 48_000
BEGIN, END = 300, 350
"""Frames between which there is sound, of 500: ffmpeg looks at the first 7 seconds of a file for its streams."""
FAR = 400_000
"""Bytes from the end of a file that ffmpeg does not look at when it opens it."""


def write_clip(
    path: Path,
    kind: str,
    first: int,
    last: int,
    sound: tuple[int, int] | None,
    codec: str = "mp2",
    layout: str = "stereo",
) -> bytes:
    """Frames `first` to `last` at 25 a second, with noise to hear from one frame to another."""
    noise = np.random.default_rng(0)
    with av.open(str(path), "w", format=kind) as target:
        video = target.add_stream("flv" if kind == "flv" else "mpeg2video", rate=RATE)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        codec = "mp3" if kind == "flv" else codec
        audio = target.add_stream(codec, rate=SAMPLES, layout=layout) if sound else None
        for number in range(first, last):
            picture = np.full((48, 64, 3), number % 200, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            target.mux(video.encode(frame))
            if audio is not None and sound is not None and sound[0] <= number < sound[1]:
                channels = 2 if layout == "stereo" else 1
                samples = noise.normal(0, 6000, (1, channels * SAMPLES // RATE)).astype(np.int16)
                heard = av.AudioFrame.from_ndarray(samples, "s16", layout)
                heard.sample_rate, heard.time_base = SAMPLES, Fraction(1, SAMPLES)
                heard.pts = number * SAMPLES // RATE
                target.mux(audio.encode(heard))
        target.mux(video.encode(None))
        if audio is not None:
            target.mux(audio.encode(None))
    return path.read_bytes()


def joined_ts(folder: Path) -> Path:
    """A transport stream of three: the middle one has sound. Empty packets put it far from the end."""
    parts = [
        write_clip(folder / "part.ts", "mpegts", 0, BEGIN, None),
        write_clip(folder / "part.ts", "mpegts", BEGIN, END, (BEGIN, END)),
        write_clip(folder / "part.ts", "mpegts", END, 500, None),
    ]
    empty = (b"\x47\x1f\xff\x10" + b"\xff" * 184) * (FAR // 188)
    path = folder / "joined.ts"
    path.write_bytes(parts[0] + parts[1] + empty + parts[2])
    return path


def padded_vob(folder: Path) -> Path:
    """A program stream with padding before its last packs, which puts the sound far from the end."""
    path = folder / "padded.vob"
    data = write_clip(path, "vob", 0, 500, (BEGIN, END))
    place = len(data) * 9 // 10 // 2048 * 2048
    padding = (b"\0\0\1\xbe" + (2042).to_bytes(2, "big") + b"\xff" * 2042) * (FAR // 2048)
    path.write_bytes(data[:place] + padding + data[place:])
    return path


def plain(suffix: str, kind: str) -> Callable[[Path], Path]:
    """A file of a kind with sound in its middle."""

    def make(folder: Path) -> Path:
        write_clip(folder / f"clip{suffix}", kind, 0, 500, (BEGIN, END))
        return folder / f"clip{suffix}"

    return make


LATE = {
    "joined.ts": joined_ts,
    "padded.vob": padded_vob,
    "clip.ts": plain(".ts", "mpegts"),
    "clip.vob": plain(".vob", "vob"),
    "clip.flv": plain(".flv", "flv"),
}


def copied(video: Video, path: Path, start: float | None = None) -> None:
    with VideoWriter(path, like=video) as writer:
        for frame in video.frames(start):
            writer.write(frame.image, frame.time)


def loud_seconds(path: Path) -> tuple[float, float]:
    """When the sound of a file begins and ends to be loud."""
    with av.open(str(path)) as container:
        resampler = av.AudioResampler("flt", "mono", SAMPLES)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        times = np.concatenate([float(part.time) + np.arange(part.samples) / SAMPLES for part in frames])
        loud = np.abs(np.concatenate([part.to_ndarray()[0] for part in frames])) > 0.05
    return float(times[loud][0]), float(times[loud][-1])


@pytest.mark.parametrize("name", LATE)
def test_every_frame_is_read(tmp_path: Path, name: str) -> None:
    video = open_video(LATE[name](tmp_path))
    whole = [(frame.number, frame.time) for frame in video.frames()]
    assert [number for number, _ in whole] == list(range(500))
    assert (video.truncated, video.skipped) == (False, 0)
    tail = [(frame.number, frame.time) for frame in video.frames(start=18.0)]
    assert tail == [(number, time) for number, time in whole if time >= 18]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm", ".avi"])
@pytest.mark.parametrize("name", ["padded.vob", "clip.ts", "clip.vob", "clip.flv"])
def test_sound_in_the_middle_comes_along_in_its_place(tmp_path: Path, name: str, suffix: str) -> None:
    video = open_video(LATE[name](tmp_path))
    assert video.info.has_audio
    copied(video, tmp_path / f"copy{suffix}", start=10.0)
    assert len(list(open_video(tmp_path / f"copy{suffix}").frames())) == 250
    assert loud_seconds(tmp_path / f"copy{suffix}") == pytest.approx((2.0, 4.0), abs=0.06)


def test_a_stream_that_no_opening_finds_is_left_out(tmp_path: Path) -> None:
    video = open_video(joined_ts(tmp_path))
    copied(video, tmp_path / "copy.mp4")
    assert len(list(open_video(tmp_path / "copy.mp4").frames())) == 500


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm", ".avi"])
def test_sound_that_is_listed_but_never_comes_is_none(tmp_path: Path, suffix: str) -> None:
    write_clip(tmp_path / "clip.ts", "mpegts", 0, 100, (1000, 1000))
    video = open_video(tmp_path / "clip.ts")
    assert not video.info.has_audio
    copied(video, tmp_path / f"copy{suffix}")
    assert len(list(open_video(tmp_path / f"copy{suffix}").frames())) == 100


def test_a_flash_video_that_hides_its_sound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "clip.flv"
    data = bytearray(write_clip(path, "flv", 0, 500, (BEGIN, END)))
    data[4] = 1  # its head lists video alone
    path.write_bytes(data)
    video = open_video(path)
    assert len(list(video.frames())) == 500
    assert video.info.has_audio


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm", ".avi"])
def test_sound_may_change_its_channels(tmp_path: Path, suffix: str) -> None:
    """As a broadcast does between two programs."""
    parts = [
        write_clip(tmp_path / "part.ts", "mpegts", 50 * part, 50 * part + 50, (0, 500), layout=layout)
        for part, layout in enumerate(("stereo", "mono", "stereo"))
    ]
    (tmp_path / "clip.ts").write_bytes(b"".join(parts))
    copied(open_video(tmp_path / "clip.ts"), tmp_path / f"copy{suffix}")
    assert len(list(open_video(tmp_path / f"copy{suffix}").frames())) == 150
    assert loud_seconds(tmp_path / f"copy{suffix}") == pytest.approx((0.0, 6.0), abs=0.2)


@pytest.mark.parametrize("codec", ["aac", "mp2"])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm", ".avi"])
def test_sound_whose_times_go_back_costs_nothing_else(tmp_path: Path, suffix: str, codec: str) -> None:
    parts = [write_clip(tmp_path / "part.ts", "mpegts", first, first + 50, (0, 500), codec) for first in (0, 25, 50)]
    (tmp_path / "clip.ts").write_bytes(b"".join(parts))
    video = open_video(tmp_path / "clip.ts")
    copied(video, tmp_path / f"copy{suffix}")
    assert len(list(open_video(tmp_path / f"copy{suffix}").frames())) == len(list(video.frames())) >= 100
    begin, end = loud_seconds(tmp_path / f"copy{suffix}")
    assert begin < 0.2 and end == pytest.approx(4.0, abs=0.2)
