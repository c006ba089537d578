"""Frames far apart keep their times in every kind of video that is written; what a kind cannot hold is refused."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.reader import open_video
from protoformer.video.types import exact_fps
from protoformer.video.writer import VideoWriter, write_video

av = pytest.importorskip("av")

STEP = Fraction(1, 25)


def gray(value: int) -> np.ndarray:
    return np.full((32, 48, 3), value, np.uint8)


def written(path: Path, times: list[Fraction], rate: float | None = 25) -> list[tuple[Fraction, int]]:
    """The time and the brightness of every frame that a video of 40, 90, 140, ... at some times has."""
    picture = np.empty((32, 48, 3), np.uint8)
    with VideoWriter(path, fps=rate) as writer:
        for number, time in enumerate(times):
            picture[:] = 40 + 50 * number  # one array for all, as a reader of frames may have it
            writer.write(picture, time)
    video = open_video(path)
    found = [(frame.time, int(frame.image.mean())) for frame in video.frames()]
    assert not video.truncated
    return found


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm", ".gif"])
@pytest.mark.parametrize("gap", [700, 3000, 5000])
def test_a_gap_of_any_length_is_kept(tmp_path: Path, suffix: str, gap: int) -> None:
    times = [Fraction(0), STEP, Fraction(gap), gap + STEP]
    found = written(tmp_path / f"clip{suffix}", times)
    assert set(times) <= {time for time, _ in found}
    # In between there is nothing but the picture before the gap.
    for number, (time, last) in enumerate(zip(times, [*times[1:], Fraction(10**6)], strict=True)):
        values = [value for shown, value in found if time <= shown < last]
        assert values == pytest.approx([40 + 50 * number] * len(values), abs=4) and values


def test_no_frame_is_repeated_without_need(tmp_path: Path) -> None:
    for suffix in (".mp4", ".mkv", ".gif"):
        assert len(written(tmp_path / f"clip{suffix}", [Fraction(0), STEP, Fraction(600)])) == 3


def test_an_avi_holds_no_long_gap_and_says_so(tmp_path: Path) -> None:
    assert len(written(tmp_path / "clip.avi", [Fraction(0), Fraction(2390)])) == 2
    with pytest.raises(InputError, match=r"clip\.avi .* 2400\.0 seconds.* \.mp4"):
        written(tmp_path / "clip.avi", [Fraction(0), Fraction(2700)])


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".gif"])
def test_a_time_beyond_all_clips_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match="seconds after the first"):
        written(tmp_path / f"clip{suffix}", [Fraction(0), Fraction(10) ** 30])


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm", ".avi", ".gif"])
@pytest.mark.parametrize("rate", [0.0003, 0.0005, 0.01])
def test_slow_clips_have_their_rate(tmp_path: Path, suffix: str, rate: float) -> None:
    with VideoWriter(tmp_path / f"clip{suffix}", fps=rate) as writer:
        for number in range(3):
            writer.write(gray(40 + 50 * number))
    video = open_video(tmp_path / f"clip{suffix}")
    frames = [(float(frame.time), int(frame.image.mean())) for frame in video.frames()]
    for number in range(3):
        begin = next(time for time, value in frames if abs(value - 40 - 50 * number) < 5)
        assert begin == pytest.approx(number / rate, abs=0.006)
    assert video.info.duration is not None
    assert float(video.info.duration) == pytest.approx(3 / rate, rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "exact"),
    [
        (0.0003, Fraction(3, 10_000)),
        (0.0005, Fraction(1, 2000)),
        (0.1, Fraction(1, 10)),
        (1 / 3, Fraction(1, 3)),
        (29.97, Fraction(2997, 100)),
        (30000 / 1001, Fraction(30000, 1001)),
        (99_999.0, Fraction(99_999)),
        (Fraction(30000, 1001), Fraction(30000, 1001)),
        (Fraction(1, 10**6), Fraction(1, 10**6)),
        (Fraction(10**12 + 1, 10**12), Fraction(1)),
    ],
)
def test_rates_are_exact(rate: float | Fraction, exact: Fraction) -> None:
    assert exact_fps(rate, "clip") == exact


@pytest.mark.parametrize("rate", [0, 1e-9, Fraction(1, 10**9), 1e-300, -1.0, 1e5, float("nan"), float("inf")])
def test_other_rates_are_refused(rate: float | Fraction, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="frames per second"):
        exact_fps(rate, "clip")
    with pytest.raises(InputError, match="frames per second"):
        write_video(tmp_path / "clip.avi", [gray(1)], float(rate))


@pytest.mark.parametrize("rate", [0.0003, 0.0005, 30000 / 1001])
def test_a_motion_jpeg_has_its_exact_fps(tmp_path: Path, rate: float) -> None:
    write_video(tmp_path / "clip.avi", [gray(10), gray(200)], rate)
    frames = list(open_video(tmp_path / "clip.avi").frames())
    assert [frame.time for frame in frames] == [0, 1 / exact_fps(rate, "clip")]
