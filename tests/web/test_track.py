"""Track tab: its computation, and its page in a browser."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.loading import load_method
from protoformer.video.reader import open_video
from protoformer.web.components import first_frame
from protoformer.web.job import Job
from protoformer.web.limits import Limits
from protoformer.web.results import load_view
from protoformer.web.track import track_clip

LIMITS = Limits(max_megabytes=10, max_pixels=20_000, max_frames=5, max_seconds=60, max_jobs=1)
BOX = (20, 30, 24, 24)


@pytest.fixture
def clip(tmp_path: Path, make_video: Callable[..., Path], moving_pattern: Callable[..., list[np.ndarray]]) -> Path:
    return make_video(tmp_path / "clip.mp4", moving_pattern(4))


def test_the_box_picker_shows_the_first_frame(clip: Path) -> None:
    view = first_frame(LIMITS, clip)
    assert (view["width"], view["height"]) == (128, 96)
    assert view["image"].startswith("data:image/jpeg;base64,")


def test_a_clip_gives_files_and_a_view_of_every_frame(clip: Path, tmp_path: Path) -> None:
    fractions: list[float] = []
    job = Job(LIMITS, tmp_path, lambda fraction, _: fractions.append(fraction))
    output = track_clip(load_method("correlation"), job, clip, [BOX, (90, 60, 20, 20)])
    assert output.num_views == 4 and output.summary == "4 frames of 128x96 pixels, 2 targets, never lost."
    assert fractions == [0.25, 0.5, 0.75, 1.0]
    video = open_video(output.downloads[".mp4"])
    assert (video.info.size, len(list(video.frames()))) == ((96, 128), 4)
    assert len(list(csv.DictReader(output.downloads[".csv"].read_text().splitlines()))) == 8
    views = [load_view(tmp_path, index) for index in range(4)]
    assert output.view == views[0] and len({view.partition("<pre>")[0] for view in views}) == 4
    assert "<pre>target 1  x = 20.0  y = 30.0  w = 24.0  h = 24.0 px  score 1.00\n" in views[0]
    assert len(re.findall(r"target \d+  x", views[3])) == 2


def test_invalid_clips_and_boxes_are_refused(
    clip: Path, tmp_path: Path, make_video: Callable[..., Path], moving_pattern: Callable[..., list[np.ndarray]]
) -> None:
    method = load_method("correlation")
    with pytest.raises(InputError, match="draw a box around a target"):
        track_clip(method, Job(LIMITS, tmp_path), clip, [])
    with pytest.raises(InputError, match="there are 21 boxes and the limit is 20"):
        track_clip(method, Job(LIMITS, tmp_path), clip, [BOX] * 21)
    with pytest.raises(InputError, match="lies outside the frame"):
        track_clip(method, Job(LIMITS, tmp_path), clip, [(500, 0, 9, 9)])
    long = make_video(tmp_path / "long.mp4", moving_pattern(6))
    with pytest.raises(InputError, match="more than 5 frames"):
        track_clip(method, Job(LIMITS, tmp_path), long, [BOX])
    with pytest.raises(InputError, match="the limit is 100; scale it down"):
        first_frame(Limits(10, 100, 5, 60, 1), clip)
    with pytest.raises(InputError, match="stopped after 0 seconds"):
        track_clip(method, Job(Limits(10, 20_000, 5, 0.0, 1), tmp_path), clip, [BOX])
    (tmp_path / "text.mp4").write_text("this is no video")
    with pytest.raises(InputError, match="not a video of a known kind"):
        first_frame(LIMITS, tmp_path / "text.mp4")


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


@pytest.mark.web
def test_drawn_boxes_are_tracked(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(6))
    page.get_by_role("tab", name="Track").click()
    page.click("#track-compute-clip")
    page.get_by_text("Choose a clip first.").wait_for()
    page.set_input_files("#track-clip input[type=file]", str(clip))
    page.wait_for_selector("#track-picker .stage img")
    page.click("#track-compute-clip")
    page.get_by_text("Draw a box around a target in the first frame").wait_for()
    drag(page, (90, 10, 20, 20))
    page.get_by_text("1 box; the last is 90,10,20,20").wait_for()
    page.click("#track-picker .undo")
    page.wait_for_selector("#track-picker .boxes span", state="detached")
    drag(page, (20, 30, 24, 24))
    drag(page, (80, 60, 20, 20))
    page.get_by_text("2 boxes; the last is 80,60,20,20").wait_for()
    page.click("#track-compute-clip")
    page.get_by_text("6 frames of 128x96 pixels, 2 targets, never lost.").wait_for()
    page.wait_for_selector("#track-video video")
    assert "target 1  x = 20.0  y = 30.0  w = 24.0  h = 24.0 px" in page.inner_text("#track-viewer pre")
    slider = page.locator("#track-slider input[type=range]")
    assert slider.get_attribute("max") == "6"
    slider.focus()
    slider.press("End")
    page.wait_for_function("() => !document.querySelector('#track-viewer pre').textContent.includes('x = 20.0')")
    match = re.search(r"target 1  x = ([\d.]+)  y = ([\d.]+)", page.inner_text("#track-viewer pre"))
    assert match is not None
    assert [float(part) for part in match.groups()] == pytest.approx([35, 30], abs=2)
    for kind in ("mp4", "csv"):
        with page.expect_download() as downloading:
            page.click(f"#track-download-{kind}")
        assert downloading.value.suggested_filename == f"track.{kind}"
        downloading.value.save_as(tmp_path / f"track.{kind}")
    video = open_video(tmp_path / "track.mp4")
    assert (video.info.size, len(list(video.frames()))) == ((96, 128), 6)
    rows = list(csv.DictReader((tmp_path / "track.csv").read_text().splitlines()))
    assert len(rows) == 12 and rows[0]["w"] == "24.00"
