"""A folder of images, or a pattern of their names, is a video in natural order."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.video.reader import open_video


def image(value: int, size: tuple[int, int] = (5, 7)) -> np.ndarray:
    return np.full((*size, 3), (value, 255 - value, 7), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images, and things that are none."""
    (tmp_path / "frames").mkdir()
    for number in range(12):
        write_image(tmp_path / "frames" / f"f_{number}.png", image(number))
    (tmp_path / "frames" / "notes.txt").write_text("no image")
    (tmp_path / "frames" / ".hidden.png").write_bytes(b"no image")
    (tmp_path / "frames" / "more.png").mkdir()
    return tmp_path / "frames"


@pytest.mark.parametrize("pattern", ["", "/*.png", "/f_*"])
def test_two_comes_before_ten(folder: Path, pattern: str) -> None:
    video = open_video(f"{folder}{pattern}")
    frames = list(video.frames())
    assert [frame.image[0, 0].tolist() for frame in frames] == [[number, 255 - number, 7] for number in range(12)]
    assert [frame.number for frame in frames] == list(range(12))
    assert [frame.time for frame in frames] == [Fraction(number, 25) for number in range(12)]
    assert all(frame.image.dtype == np.uint8 and frame.image.shape == (5, 7, 3) for frame in frames)
    info = video.info
    assert (info.size, info.num_frames, info.fps, info.duration) == ((5, 7), 12, 25, Fraction(12, 25))
    assert (info.has_audio, info.codec, info.paths[10].name) == (False, "png", "f_10.png")


def test_the_rate_of_images_is_given(folder: Path) -> None:
    video = open_video(folder, fps=10)
    assert [frame.time for frame in video.frames(0.3, 0.6)] == [Fraction(3, 10), Fraction(4, 10), Fraction(5, 10)]
    assert [frame.number for frame in video.frames(start=0.25, frame_step=4)] == [3, 7, 11]
    assert open_video(folder, fps=29.97).info.fps == Fraction(2997, 100)
    for rate in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="frames per second"):
            open_video(folder, fps=rate)


def test_a_file_whose_name_is_a_pattern_is_that_file(folder: Path) -> None:
    write_image(folder / "f_[1].png", image(99))
    (frame,) = open_video(folder / "f_[1].png").frames()
    assert frame.image[0, 0, 0] == 99


def test_one_image_is_a_movie_of_one_frame(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    write_image(tmp_path / "one" / "a.png", image(3))
    for source in (tmp_path / "one", tmp_path / "one" / "a.png"):
        assert [frame.number for frame in open_video(source).frames()] == [0]


def test_images_of_16_bits_are_rounded_to_8(tmp_path: Path) -> None:
    write_image(tmp_path / "deep.png", np.full((2, 2, 3), 32896 + 100, np.uint16))
    (frame,) = open_video(tmp_path / "deep.png").frames()
    assert frame.image.tolist() == [[[128] * 3] * 2] * 2


def test_an_image_of_another_size_is_named(folder: Path) -> None:
    write_image(folder / "f_5.png", image(5, (7, 5)))
    frames = open_video(folder).frames()
    assert [next(frames).number for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match=r"f_5\.png is 5x7 where the images before it are 7x5; .*\.$"):
        next(frames)


def test_a_place_without_images_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match=r"holds no images; .*\.$"):
        open_video(tmp_path)
    with pytest.raises(InputError, match=r"no file matches .*\*\.png; .*\.$"):
        open_video(tmp_path / "*.png")
    (tmp_path / "bad.png").write_text("no image")
    with pytest.raises(InputError, match=r"bad\.png is not an image"):
        open_video(tmp_path)
