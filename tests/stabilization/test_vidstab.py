"""vid.stab as a baseline, run if ffmpeg supports it."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.stabilization.evaluation import run_vidstab, vidstab_missing
from protoformer.video.reader import open_video

MISSING = vidstab_missing()
needs_vidstab = pytest.mark.skipif(bool(MISSING), reason=MISSING or "vid.stab is there")
SIDE, FRAMES = 160, 24


@pytest.fixture(scope="module")
def shaky(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A pattern of squares, seen by a camera that jumps up and down by 6 px."""
    random = np.random.default_rng(0)
    cells = random.integers(0, 255, (40, 40, 3), dtype=np.uint8)
    wide = np.kron(cells, np.ones((8, 8, 1), dtype=np.uint8))
    tops = [40 + 6 * (number % 2) for number in range(FRAMES)]
    frames = [np.ascontiguousarray(wide[top : top + SIDE, 40 : 40 + SIDE]) for top in tops]
    return make_video(tmp_path_factory.mktemp("shaky") / "shaky.mkv", frames, codec="ffv1")


def test_a_missing_ffmpeg_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert vidstab_missing() == "there is no ffmpeg on this machine"


@needs_vidstab
def test_every_frame_comes_as_it_was_and_steadier(shaky: Path) -> None:
    pairs = list(run_vidstab(open_video(shaky), None))
    assert len(pairs) == FRAMES
    assert {after.shape for _, after in pairs} == {(SIDE, SIDE, 3)}

    def jumps(images: list[np.ndarray]) -> float:
        inner = [each[24:-24, 24:-24].astype(np.float64) for each in images[4:-4]]
        return float(np.mean([np.abs(one - other).mean() for one, other in pairwise(inner)]))

    before, after = (list(images) for images in zip(*pairs, strict=True))
    assert jumps(after) < 0.5 * jumps(before)


@needs_vidstab
def test_the_number_of_frames_is_limited(shaky: Path) -> None:
    assert len(list(run_vidstab(open_video(shaky), 10))) == 10


@needs_vidstab
def test_an_unreadable_file_is_an_input_error(shaky: Path, tmp_path: Path) -> None:
    video = open_video(shaky)
    shaky.rename(tmp_path / "gone.mkv")
    try:
        with pytest.raises(InputError, match=r"vid\.stab could not be run on .*; leave it out\."):
            next(run_vidstab(video, None))
    finally:
        (tmp_path / "gone.mkv").rename(shaky)
