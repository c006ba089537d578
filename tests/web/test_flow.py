"""Flow tab: its computation, and its page in a browser."""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer
from protoformer import load
from protoformer.errors import InputError
from protoformer.flow import tiling as planning
from protoformer.flow.drawing import flow_viewer_data
from protoformer.flow.result import FlowResult
from protoformer.io.formats import read_flo
from protoformer.video.reader import open_video
from protoformer.web.flow import flow_clip, flow_pair
from protoformer.web.job import Job
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import load_view

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
LIMITS = Limits(max_megabytes=10, max_pixels=10_000, max_frames=5, max_seconds=60, max_jobs=1)


def test_a_computation_ends_at_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(path)
    hurried = Limits(max_megabytes=10, max_pixels=10_000, max_frames=5, max_seconds=0.0, max_jobs=1)
    with pytest.raises(InputError, match="stopped after 0 seconds"):
        flow_pair(load("tiny", "cpu"), Job(hurried, tmp_path), path, path)
    Deadline(60).check()


def test_a_view_of_every_pair_is_saved_for_the_slider(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    clip = make_video(tmp_path / "clip.mp4", [np.full((64, 72, 3), 40 * n, np.uint8) for n in range(4)])
    output = flow_clip(load("tiny", "cpu"), Job(LIMITS, tmp_path), clip)
    assert output.num_views == 3
    assert output.view == load_view(tmp_path, 0) != load_view(tmp_path, 2)
    assert 'src="data:image/png;base64,' in output.prototypes


def test_the_flow_of_a_pair_is_that_of_the_model(tmp_path: Path) -> None:
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 72, 3), dtype=np.uint8)).save(path)
    model = load("tiny", "cpu")
    output = flow_pair(model, Job(LIMITS, tmp_path), *paths)
    np.testing.assert_array_equal(read_flo(output.downloads[".flo"]), model.flow(*paths).numpy())


def test_with_little_memory_a_pair_is_not_enlarged_and_still_has_prototypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 72, 3), dtype=np.uint8)).save(path)
    model = load("tiny", "cpu", flow={"min_pixels": 4 * 64 * 72})
    for free, zoom in ((10**9, 2), (20 * 10**6, 1)):
        monkeypatch.setattr(planning, "free_bytes", lambda _, free=free: free)
        output = flow_pair(model, Job(LIMITS, tmp_path), *paths)
        np.testing.assert_array_equal(read_flo(output.downloads[".flo"]), model.flow(*paths, zoom=zoom).numpy())
        assert 'src="data:image/png;base64,' in output.prototypes


def test_large_images_give_the_browser_every_second_vector() -> None:
    flow = torch.arange(2 * 10 * 12, dtype=torch.float32).view(2, 10, 12) / 7
    view = flow_viewer_data(FlowResult(flow, torch.ones(1, 10, 12)), np.zeros((10, 12, 3), np.uint8), 5.0, max_cells=30)
    assert (view["step"], view["rows"], view["columns"]) == (2, 5, 6)
    vectors = np.frombuffer(base64.b64decode(view["vectors"]), "<i2").reshape(2, 5, 6) * view["unit"]
    np.testing.assert_allclose(vectors, flow[:, ::2, ::2], atol=view["unit"])


READOUT = re.compile(r"pixel \((\d+), (\d+)\)\s+u = (-?[\d.]+) px\s+v = (-?[\d.]+) px\s+confidence ([\d.]+)")


def upload_pair(page: Any, paths: tuple[Path, Path]) -> None:
    for box, path in zip(("#flow-first", "#flow-second"), paths, strict=True):
        page.set_input_files(f"{box} input[type=file]", str(path))
        page.wait_for_selector(f"{box} img")


def computed(page: Any, button: str) -> None:
    page.click(button)
    page.wait_for_selector("#flow-viewer img.flow")
    page.wait_for_selector("#flow-message .pf-note")


def read_at(page: Any, x: float, y: float) -> tuple[float, ...]:
    """Read the values at a position in the flow image, from 0 to 1 in each direction."""
    box = page.locator("#flow-viewer img.flow").bounding_box()
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    match = READOUT.search(page.inner_text("#flow-viewer .readout"))
    assert match, page.inner_text("#flow-viewer .readout")
    return tuple(float(part) for part in match.groups())


@pytest.mark.web
def test_two_images_give_the_same_flow_as_the_library(page: Any, two_images: tuple[Path, Path], tmp_path: Path) -> None:
    assert "was not trained" in page.inner_text("#flow-untrained")
    assert not page.is_visible("#flow-download-flo")
    upload_pair(page, two_images)
    computed(page, "#flow-compute-pair")
    expected = protoformer.load("tiny").flow(*two_images)
    with page.expect_download() as downloading:
        page.click("#flow-download-flo")
    downloading.value.save_as(tmp_path / "motion.flo")
    assert downloading.value.suggested_filename == "motion.flo"
    np.testing.assert_allclose(read_flo(tmp_path / "motion.flo"), expected.numpy(), atol=1e-4)
    for position in ((0.26, 0.51), (0.9, 0.1)):
        x, y, u, v, confidence = read_at(page, *position)
        assert (x, y) == (int(position[0] * 96), int(position[1] * 72))
        np.testing.assert_allclose((u, v), expected.flow[:, int(y), int(x)], atol=0.006)
        assert confidence == pytest.approx(float(expected.confidence[0, int(y), int(x)]), abs=0.008)
    page.get_by_text("Prototypes", exact=True).click()
    page.wait_for_selector("#flow-prototypes img")


@pytest.mark.web
def test_another_example_changes_the_picture(local_page: Any) -> None:
    page, seen = local_page, set()
    for name in ("Street (rendered)", "Cockatoo"):
        before = page.get_attribute("#flow-first img", "src") if seen else None
        page.get_by_role("button", name=name).locator("visible=true").click()
        page.wait_for_function(
            "old => (document.querySelector('#flow-first img') || {src: old}).src !== old", arg=before or ""
        )
        page.click("#flow-compute-pair")
        page.wait_for_function(
            "seen => { const image = document.querySelector('#flow-viewer img.flow');"
            "          return image && !seen.includes(image.src) }",
            arg=list(seen),
        )
        seen.add(page.get_attribute("#flow-viewer img.flow", "src"))
    assert len(seen) == 2


@pytest.mark.web
def test_a_clip_has_a_slider_and_a_video(page: Any, make_video: Callable[..., Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (16, 24, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    clip = make_video(tmp_path / "clip.mp4", [np.roll(noise, 2 * n * n, axis=1) for n in range(4)])
    page.get_by_role("tab", name="Clip").click()
    page.set_input_files("#flow-clip input[type=file]", str(clip))
    page.wait_for_selector("#flow-clip video")
    computed(page, "#flow-compute-clip")
    first = page.get_attribute("#flow-viewer img.first", "src")
    slider = page.locator("#flow-slider input[type=range]")
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("1", "3")
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function("old => document.querySelector('#flow-viewer img.first').src !== old", arg=first)
    assert len(read_at(page, 0.5, 0.5)) == 5
    with page.expect_download() as downloading:
        page.click("#flow-download-mp4")
    downloading.value.save_as(tmp_path / "motion.mp4")
    video = open_video(tmp_path / "motion.mp4")
    assert (video.info.size, len(list(video.frames()))) == ((64, 192), 3)


@pytest.mark.web
def test_uploads_over_a_limit_are_refused_with_a_message(
    page: Any, two_images: tuple[Path, Path], make_video: Callable[..., Path], tmp_path: Path
) -> None:
    page.click("#flow-compute-pair")
    page.wait_for_selector("#flow-message .pf-error")
    assert page.inner_text("#flow-message") == "Choose two images first."
    heavy = tmp_path / "heavy.png"
    Image.fromarray(np.random.default_rng(2).integers(0, 256, (700, 700, 3), dtype=np.uint8)).save(heavy)
    assert heavy.stat().st_size > 10**6
    page.set_input_files("#flow-first input[type=file]", str(heavy))
    page.get_by_text(re.compile("file size|maximum", re.IGNORECASE)).first.wait_for()
    wide = tmp_path / "wide.png"
    Image.fromarray(np.zeros((300, 300, 3), np.uint8)).save(wide)
    upload_pair(page, (wide, wide))
    page.click("#flow-compute-pair")
    page.get_by_text("wide.png is 300x300, 90000 pixels, and the limit is 80000; scale it down.").wait_for()
    long = make_video(tmp_path / "long.mp4", [np.full((64, 64, 3), 9 * n, np.uint8) for n in range(8)])
    page.get_by_role("tab", name="Clip").click()
    page.set_input_files("#flow-clip input[type=file]", str(long))
    page.wait_for_selector("#flow-clip video")
    page.click("#flow-compute-clip")
    page.get_by_text("long.mp4 has more than 6 frames, the limit of this page; select a shorter part.").wait_for()
    assert not page.is_visible("#flow-viewer img.flow")
