"""Segment tab: its computation, and its page in a browser."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.video.reader import open_video
from protoformer.web.job import Job
from protoformer.web.limits import Limits
from protoformer.web.segment import MaskArchive, segment_clip

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
LIMITS = Limits(max_megabytes=10, max_pixels=20_000, max_frames=6, max_seconds=60, max_jobs=1)


def test_the_files_of_a_clip_are_those_of_the_library(
    make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(4))
    predictor = protoformer.load("tiny", "cpu", task="segment")
    texts: list[str] = []
    output = segment_clip(predictor, Job(LIMITS, tmp_path, lambda _, text: texts.append(text)), clip)
    expected = list(predictor.segment(clip))
    assert output.summary.startswith("4 frames of 128x96 pixels, ") and texts[-1] == "frame 4 of 4"
    with zipfile.ZipFile(output.downloads[".zip"]) as archive:
        assert archive.namelist() == [f"{number:06d}.png" for number in range(4)]
        for name, frame in zip(archive.namelist(), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(archive.read(name)))), frame.labels)
    frames = json.loads(output.downloads[".json"].read_text())["frames"]
    assert frames == json.loads(json.dumps([frame.as_dict() for frame in expected]))
    assert open_video(output.downloads[".mp4"]).info.num_frames == 4


def test_an_archive_is_complete_or_absent(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), MaskArchive(tmp_path / "masks.zip"):
        raise ZeroDivisionError
    assert not (tmp_path / "masks.zip").exists()


@pytest.mark.web
def test_the_page_segments_a_clip(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(4))
    page.get_by_role("tab", name="Segment", exact=True).click()
    page.set_input_files("#segment-clip input[type=file]", str(clip))
    page.wait_for_selector("#segment-clip-trim .rail")
    page.click("#segment-compute-clip")
    page.get_by_text("4 frames of 128x96 pixels").wait_for()
    page.wait_for_selector("#segment-video video")
    for suffix, name in (("mp4", "segmented.mp4"), ("zip", "masks.zip"), ("json", "masks.json")):
        with page.expect_download() as downloading:
            page.click(f"#segment-download-{suffix}")
        assert downloading.value.suggested_filename == name
