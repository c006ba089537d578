"""Stabilization tab: its computation, and its page in a browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protoformer as pf
from protoformer.errors import InputError
from protoformer.video.reader import open_video
from protoformer.web.job import Job
from protoformer.web.limits import Limits
from protoformer.web.stabilize import stabilize_clip

LIMITS = Limits(max_megabytes=10, max_pixels=20_000, max_frames=4, max_seconds=60, max_jobs=1)


def test_a_clip_gives_two_videos_and_the_camera_path(
    tmp_path: Path, make_video: Callable[..., Path], moving_pattern: Callable[..., list[np.ndarray]]
) -> None:
    with pytest.warns(pf.UntrainedWarning):
        predictor = pf.load("tiny", device="cpu", task="stabilize", stabilization={"field_window": 2})
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(3))
    fractions: list[float] = []
    job = Job(LIMITS, tmp_path, lambda fraction, _: fractions.append(fraction))
    output = stabilize_clip(predictor, job, clip)
    assert output.summary.startswith("3 frames of 128x96 pixels; ") and output.view.count("<svg") == 4
    assert open_video(output.downloads[".mp4"]).info.size == (96, 128)
    assert output.video is not None and open_video(output.video).info.size == (96, 256)
    assert fractions == sorted(fractions) and fractions[-1] == 1
    long = make_video(tmp_path / "long.mp4", moving_pattern(5))
    with pytest.raises(InputError, match="more than 4 frames"):
        stabilize_clip(predictor, Job(LIMITS, tmp_path), long)


@pytest.mark.web
def test_the_page_stabilizes_a_clip(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(6))
    page.get_by_role("tab", name="Stabilize").click()
    page.set_input_files("#stabilize-clip input[type=file]", str(clip))
    page.wait_for_selector("#stabilize-clip video")
    page.click("#stabilize-compute-clip")
    page.get_by_text("6 frames of 128x96 pixels").wait_for()
    page.wait_for_selector("#stabilize-video video")
    page.wait_for_selector("#stabilize-viewer svg")
    with page.expect_download() as downloading:
        page.click("#stabilize-download-mp4")
    assert downloading.value.suggested_filename == "stable.mp4"
    downloading.value.save_as(tmp_path / "stable.mp4")
    assert len(list(open_video(tmp_path / "stable.mp4").frames())) == 6
