"""A written video has the frames, the times and the colors that it was given, in a file that every player opens."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

av = pytest.importorskip("av")

Make = Callable[..., Path]
SUFFIXES = [".mp4", ".mov", ".mkv", ".webm", ".avi", ".gif"]


def smooth(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Red grows to the right and green downwards; blue is the frame's number, times 20."""
    y, x = np.mgrid[:height, :width]
    blue = np.full_like(x, 20 * (number % 12))
    return np.stack((x * 200 // width, y * 200 // height, blue), axis=-1).astype(np.uint8)


def errors(path: Path, given: list[np.ndarray]) -> np.ndarray:
    """How far every sample of a video is from what was given."""
    found = np.stack([frame.image for frame in open_video(path).frames()]).astype(int)
    return np.abs(found - np.stack(given))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("size", [(48, 64), (47, 63), (48, 63), (47, 64)])
def test_pictures_of_any_size_come_back(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    given = [smooth(number, *size) for number in range(8)]
    with VideoWriter(tmp_path / f"clip{suffix}", fps=25) as writer:
        for image in given:
            writer.write(image)
    assert writer.frames == 8
    found = errors(tmp_path / f"clip{suffix}", given)
    assert found.shape == (8, *size, 3)
    # The 256 colors of a gif are chosen for each frame, and mixed by dots.
    assert found.mean() < (3 if suffix == ".gif" else 1.6)
    assert found.max() < (48 if suffix == ".gif" else 12)
    assert [path.name for path in tmp_path.iterdir()] == [f"clip{suffix}"]
    video = open_video(tmp_path / f"clip{suffix}")
    assert [frame.time for frame in video.frames()] == [Fraction(number, 25) for number in range(8)]
    assert not video.truncated


@pytest.mark.parametrize("size", [(2, 2), (1, 1), (1, 40), (16, 2)])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_smallest_pictures_are_written(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    with VideoWriter(tmp_path / f"clip{suffix}", fps=25) as writer:
        for _ in range(3):
            writer.write(np.full((*size, 3), 90, np.uint8))
    assert errors(tmp_path / f"clip{suffix}", [np.full((*size, 3), 90, np.uint8)] * 3).max() <= 3


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".avi"])
@pytest.mark.parametrize("size", [(48, 64), (720, 1280)])
def test_flat_colors_come_back_to_a_few_levels(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    colors = [(255, 255, 255), (0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 60, 30)]
    given = [np.full((*size, 3), color, np.uint8) for color in colors[:: 2 if size[0] > 48 else 1]]
    with VideoWriter(tmp_path / f"clip{suffix}", fps=25) as writer:
        for image in given:
            writer.write(image)
    assert errors(tmp_path / f"clip{suffix}", given).max() <= 4


def test_an_mp4_is_what_every_player_opens(tmp_path: Path) -> None:
    for size, matrix in [((48, 64), 6), ((720, 1280), 1)]:
        with VideoWriter(tmp_path / "clip.mp4", fps=25) as writer:
            for number in range(3):
                writer.write(smooth(number, *size))
        data = (tmp_path / "clip.mp4").read_bytes()
        assert data.index(b"moov") < data.index(b"mdat")
        with av.open(str(tmp_path / "clip.mp4")) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
            assert (stream.codec_context.colorspace, stream.codec_context.color_range) == (matrix, 1)
            # Frames in the order in which they are shown: no player shifts or drops the first.
            assert [packet.pts == packet.dts for packet in container.demux(stream) if packet.size] == [True] * 3


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm", ".gif"])
def test_a_variable_rate_is_kept(tmp_path: Path, suffix: str) -> None:
    hundredths = [0, 4, 5, 33, 50, 199, 200]
    with VideoWriter(tmp_path / f"clip{suffix}") as writer:
        for number, time in enumerate(hundredths):
            writer.write(smooth(number), Fraction(time, 100))
    found = [frame.time for frame in open_video(tmp_path / f"clip{suffix}").frames()]
    assert found == [Fraction(time, 100) for time in hundredths]


@pytest.mark.parametrize("rate", [Fraction(30000, 1001), Fraction(24000, 1001), Fraction(60), Fraction(2997, 100)])
def test_a_constant_rate_is_exact_in_an_mp4(tmp_path: Path, rate: Fraction) -> None:
    with VideoWriter(tmp_path / "clip.mp4", fps=rate) as writer:
        for number in range(30):
            writer.write(smooth(number))
    video = open_video(tmp_path / "clip.mp4")
    assert [frame.time for frame in video.frames()] == [number / rate for number in range(30)]
    assert video.info.duration == pytest.approx(30 / float(rate), abs=2e-6)
    assert float(video.info.fps) == pytest.approx(float(rate), rel=1e-5)


def test_the_times_of_another_movie_are_exact_in_an_mp4(tmp_path: Path, make_video: Make) -> None:
    odd = [0, 1, 7, 5003, 90001, 90002]
    path = make_video(tmp_path / "old.mp4", [smooth(n) for n in range(6)], times=odd, tick=Fraction(1, 90000))
    like = open_video(path)
    for rate in (like.info.fps, Fraction(1873289, 78124)):  # averages are of any kind
        like.info = replace(like.info, fps=rate)
        with VideoWriter(tmp_path / "new.mp4", like) as writer:
            for frame in like.frames():
                writer.write(frame.image, frame.time)
        found = [frame.time for frame in open_video(tmp_path / "new.mp4").frames()]
        assert found == [Fraction(time, 90000) for time in odd]


def test_times_as_floats_are_right_to_the_microsecond(tmp_path: Path) -> None:
    given = [0.1, 1 / 3, 0.7071068, 12.25]
    with VideoWriter(tmp_path / "clip.mp4") as writer:
        for number, time in enumerate(given):
            writer.write(smooth(number), time)
    found = [float(frame.time) for frame in open_video(tmp_path / "clip.mp4").frames()]
    assert found == pytest.approx([time - 0.1 for time in given], abs=1e-6)  # the first stands at 0


def test_an_avi_puts_frames_at_the_nearest_place_of_its_rate(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "clip.avi", fps=10) as writer:
        for number, time in enumerate((0, 0.11, 0.19, 0.5)):
            writer.write(smooth(number), time)
    assert len(list(open_video(tmp_path / "clip.avi").frames(end=0.25))) == 3
    with pytest.raises(InputError, match=r"clip\.avi has frames at a constant rate"):
        VideoWriter(tmp_path / "clip.avi")


def test_frames_without_a_time_follow_the_rate(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "clip.mp4", fps=10) as writer:
        for time in (None, None, 0.5, None):
            writer.write(smooth(0), time)
    found = [float(frame.time) for frame in open_video(tmp_path / "clip.mp4").frames()]
    assert found == pytest.approx([0, 0.1, 0.5, 0.6], abs=1e-6)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("times", "seconds"), [([0], 0.04), ([0, 1, 3], 3.04)])
def test_the_last_frame_is_shown_for_as_long_as_the_rate_says(
    tmp_path: Path, suffix: str, times: list[float], seconds: float
) -> None:
    with VideoWriter(tmp_path / f"clip{suffix}", fps=25) as writer:
        for time in times:
            writer.write(smooth(0), time)
    assert open_video(tmp_path / f"clip{suffix}").info.duration == pytest.approx(seconds, abs=1e-3)


def test_quality_is_paid_for_in_bytes(tmp_path: Path) -> None:
    given = [np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8) for number in range(5)]
    for suffix in (".mp4", ".webm", ".avi"):
        sizes, means = [], []
        for quality in ("small", "good", "best"):
            with VideoWriter(tmp_path / f"clip{suffix}", fps=25, quality=quality) as writer:
                for image in given:
                    writer.write(image)
            sizes.append((tmp_path / f"clip{suffix}").stat().st_size)
            means.append(errors(tmp_path / f"clip{suffix}", given).mean())
        assert sizes == sorted(set(sizes))
        assert means == sorted(means, reverse=True)


def test_another_encoder_serves_where_h264_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", av.codecs_available - {"libx264"})
    given = [smooth(number, 47, 63) for number in range(8)]
    with VideoWriter(tmp_path / "clip.mp4", fps=Fraction(30000, 1001)) as writer:
        for image in given:
            writer.write(image)
    video = open_video(tmp_path / "clip.mp4")
    assert video.info.codec == "mpeg4"
    assert [frame.time for frame in video.frames()] == [Fraction(1001 * number, 30000) for number in range(8)]
    assert errors(tmp_path / "clip.mp4", given).mean() < 3
    monkeypatch.setattr(av, "codecs_available", set())
    with pytest.raises(InputError, match=r"no encoder for .*clip\.mp4; choose another suffix"):
        VideoWriter(tmp_path / "clip.mp4")


def test_a_view_of_an_array_is_written_as_it_looks(tmp_path: Path) -> None:
    given = [smooth(number)[::-1, ::-1] for number in range(3)]
    with VideoWriter(tmp_path / "clip.mp4", fps=25) as writer:
        for image in given:
            writer.write(image)
    assert errors(tmp_path / "clip.mp4", given).mean() < 2


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((48, 64, 3), np.float32), r"is float32 of shape \(48, 64, 3\)"),
        (np.zeros((48, 64), np.uint8), r"is uint8 of shape \(48, 64\)"),
        (np.zeros((48, 64, 4), np.uint8), r"shape \(48, 64, 4\)"),
        (np.zeros((0, 64, 3), np.uint8), "at least one pixel"),
        (np.zeros((48, 62, 3), np.uint8), "are 64x48 and then 62x48"),
    ],
)
def test_what_is_no_frame_is_refused(tmp_path: Path, image: np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=said), VideoWriter(tmp_path / "clip.mp4", fps=25) as writer:
        writer.write(smooth(0))
        writer.write(image)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([0, 0], "does not come after the one before"),
        ([1, 0.5], "does not come after the one before"),
        ([0, float("nan")], "give a finite number"),
        ([None], "has no time; give times"),
    ],
)
def test_what_is_no_time_is_refused(tmp_path: Path, times: list[float | None], said: str) -> None:
    with pytest.raises(InputError, match=said), VideoWriter(tmp_path / "clip.mp4") as writer:
        for time in times:
            writer.write(smooth(0), time)
    assert list(tmp_path.iterdir()) == []


def test_a_movie_that_cannot_be_is_refused_before_any_frame(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not end in \.avi, \.gif, \.mkv, \.mov, \.mp4 or \.webm"):
        VideoWriter(tmp_path / "clip.xyz", fps=25)
    with pytest.raises(InputError, match="does not exist"):
        VideoWriter(tmp_path / "none" / "clip.mp4", fps=25)
    with pytest.raises(InputError, match="give a rate over 0"):
        VideoWriter(tmp_path / "clip.mp4", fps=0)
    with pytest.raises(InputError, match="without frames"), VideoWriter(tmp_path / "clip.mp4", fps=25):
        pass
    assert list(tmp_path.iterdir()) == []


def test_pictures_that_no_encoder_takes_are_told(tmp_path: Path) -> None:
    with (
        pytest.raises(
            InputError, match=r"frames of 20000x2 cannot be encoded for .*clip\.mp4 \(.*\); choose another size"
        ),
        VideoWriter(tmp_path / "clip.mp4", fps=25) as writer,
    ):
        writer.write(np.zeros((2, 20000, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []
