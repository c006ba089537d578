"""What the stabilization tab does, without a browser and without gradio."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import protoformer as pf
from protoformer.errors import InputError
from protoformer.stabilization.predictor import StabilizeOptions
from protoformer.video.reader import open_video
from protoformer.web.limits import Limits
from protoformer.web.stabilize import stabilize_upload

ROOM = Limits(megabytes=10, pixels=20_000, frames=4, seconds=60, jobs=1)


def test_a_clip_gives_files_and_the_path(
    tmp_path: Path, make_video: Callable[..., Path], moving_pattern: Callable[..., list[np.ndarray]]
) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", task="stabilize", stabilization={"field_window": 2})
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(3))
    told: list[float] = []
    answer = stabilize_upload(model, ROOM, clip, StabilizeOptions(), tmp_path, lambda share, _: told.append(share))
    assert answer.summary.startswith("3 frames of 128x96 pixels; ") and answer.path.count("<svg") == 4
    assert [open_video(path).info.size for path in (answer.video, answer.beside)] == [(96, 128), (96, 256)]
    assert told == sorted(told) and told[-1] == 1
    long = make_video(tmp_path / "long.mp4", moving_pattern(5))
    with pytest.raises(InputError, match="more than 4 frames"):
        stabilize_upload(model, ROOM, long, StabilizeOptions(), tmp_path)
