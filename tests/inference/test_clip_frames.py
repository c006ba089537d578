"""Where a clip is looked at: everywhere if it is short, all over it if it is long."""

from pathlib import Path

import numpy as np
import pytest

from protoformer.files import open_movie, write_image
from protoformer.inference.clip_frames import ClipFrames, Span

MOST = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred small images."""
    made = tmp_path_factory.mktemp("frames")
    for number in range(100):
        write_image(made / f"{number:02d}.png", np.full((2, 2, 3), number, np.uint8))
    return made


def looked_at(folder: Path, span: Span, together: int) -> list[list[int]]:
    """Numbers of the frames that a look at each instant begins with, as many as it takes together."""
    movie = open_movie(folder, span.rate)
    clip = ClipFrames(movie, span)
    looks = [clip.read(movie, instant) for instant in clip.instants(movie, MOST, together)]
    return [[frame.number for frame, _ in zip(look, range(together), strict=False)] for look in looks]


@pytest.mark.parametrize("rate", [25, 29.97, 7])
def test_each_pair_of_a_short_clip_is_looked_at(folder: Path, rate: float) -> None:
    for frames in range(2, 10):
        pairs = [[number, number + 1] for number in range(10, 9 + frames)]
        assert looked_at(folder, Span(9.95 / rate, (9.7 + frames) / rate, rate=rate), together=2) == pairs


def test_each_frame_of_a_short_clip_is_looked_at(folder: Path) -> None:
    assert looked_at(folder, Span(3.8, rate=25), together=1) == [[95], [96], [97], [98], [99]]
    assert looked_at(folder, Span(3.78, rate=25), together=1)[:-1] == [[95], [96], [97], [98], [99]]


def test_frames_left_out_are_not_looked_at(folder: Path) -> None:
    assert looked_at(folder, Span(end=0.4, every=3, rate=25), together=2) == [[0, 3], [3, 6], [6, 9]]


def test_looks_at_a_long_clip_are_few_and_spread_evenly(folder: Path) -> None:
    starts = [look[0] for look in looked_at(folder, Span(rate=25), together=2)]
    assert starts == [6, 18, 30, 43, 55, 68, 80, 92]


def test_a_clip_of_one_frame_is_looked_at_once(folder: Path) -> None:
    assert looked_at(folder, Span(0, 0.02, rate=25), together=2) == [[0]]
