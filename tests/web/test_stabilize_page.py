"""The stabilization tab in a real browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protoformer.video.reader import open_video

pytestmark = pytest.mark.web


def test_a_clip_is_made_steady(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(6))
    page.get_by_role("tab", name="Stabilize").click()
    page.set_input_files("#stabilize-clip input[type=file]", str(clip))
    page.wait_for_selector("#stabilize-clip video")
    page.click("#stabilize-compute")
    page.get_by_text("6 frames of 128x96 pixels").wait_for()
    page.wait_for_selector("#stabilize-video video")
    page.wait_for_selector("#stabilize-path svg")
    with page.expect_download() as downloading:
        page.click("#stabilize-download")
    downloading.value.save_as(tmp_path / "stable.mp4")
    assert len(list(open_video(tmp_path / "stable.mp4").frames())) == 6


def test_a_clip_of_groups_is_shown(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(3))
    page.get_by_role("tab", name="Explain").click()
    page.get_by_role("tab", name="A clip").click()
    page.set_input_files("#explain-clip input[type=file]", str(clip))
    page.wait_for_selector("#explain-clip video")
    page.click("#explain-compute-clip")
    page.wait_for_selector("#explain-video video")
