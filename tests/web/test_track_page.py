"""The tracking tab in a real browser."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protoformer.video.reader import open_video

pytestmark = pytest.mark.web


def drag(page: Any, box: tuple[int, int, int, int]) -> None:
    """Draw a box, in pixels of the clip of 128x96, with the mouse."""
    stage = page.locator("#track-picker .stage").bounding_box()
    scale = stage["width"] / 128
    x, y, width, height = box
    page.mouse.move(stage["x"] + (x + 0.1) * scale, stage["y"] + (y + 0.1) * scale)
    page.mouse.down()
    page.mouse.move(stage["x"] + (x + width / 2) * scale, stage["y"] + (y + height / 2) * scale)
    page.mouse.move(stage["x"] + (x + width - 0.1) * scale, stage["y"] + (y + height - 0.1) * scale)
    page.mouse.up()


def test_boxes_that_are_drawn_are_followed(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(6))
    page.get_by_role("tab", name="Tracking").click()
    page.click("#track-compute")
    page.get_by_text("Choose a clip first.").wait_for()
    page.set_input_files("#track-clip input[type=file]", str(clip))
    page.wait_for_selector("#track-picker .stage img")
    page.click("#track-compute")
    page.get_by_text("Draw a box around something in the first frame").wait_for()
    drag(page, (90, 10, 20, 20))
    page.get_by_text("1 box; the last is 90,10,20,20").wait_for()
    page.click("#track-picker .undo")
    page.wait_for_selector("#track-picker .boxes span", state="detached")
    drag(page, (20, 30, 24, 24))
    drag(page, (80, 60, 20, 20))
    page.get_by_text("2 boxes; the last is 80,60,20,20").wait_for()
    page.click("#track-compute")
    page.get_by_text("6 frames of 128x96 pixels, 2 targets, never lost.").wait_for()
    page.wait_for_selector("#track-video video")
    assert "target 1  x = 20.0  y = 30.0  w = 24.0  h = 24.0 px" in page.inner_text("#track-frame pre")
    slider = page.locator("#track-slider input[type=range]")
    assert slider.get_attribute("max") == "6"
    slider.focus()
    slider.press("End")
    page.wait_for_function("() => !document.querySelector('#track-frame pre').textContent.includes('x = 20.0')")
    found = re.search(r"target 1  x = ([\d.]+)  y = ([\d.]+)", page.inner_text("#track-frame pre"))
    assert found is not None
    assert [float(part) for part in found.groups()] == pytest.approx([35, 30], abs=2)
    for kind in ("mp4", "csv"):
        with page.expect_download() as downloading:
            page.click(f"#track-download-{kind}")
        assert downloading.value.suggested_filename == f"track.{kind}"
        downloading.value.save_as(tmp_path / f"track.{kind}")
    video = open_video(tmp_path / "track.mp4")
    assert (video.info.size, len(list(video.frames()))) == ((96, 128), 6)
    rows = list(csv.DictReader((tmp_path / "track.csv").read_text().splitlines()))
    assert len(rows) == 12 and rows[0]["w"] == "24.00"
