"""Depth tab: its computation, and its page in a browser."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.errors import InputError
from protoformer.io.formats import read_mm_depth
from protoformer.video.reader import open_video
from protoformer.web.depth import depth_clip, depth_image
from protoformer.web.job import Job
from protoformer.web.limits import Limits
from protoformer.web.results import load_view

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
LIMITS = Limits(max_megabytes=10, max_pixels=10_000, max_frames=5, max_seconds=60, max_jobs=1)
READOUT = re.compile(r"pixel \((\d+), (\d+)\)\s+depth = ([\d.]+) m\s+confidence ([\d.]+)")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of 96x72 pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (18, 24, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


@pytest.fixture(scope="module")
def model() -> protoformer.DepthPredictor:
    return protoformer.load("tiny", "cpu", task="depth")


def test_the_files_of_an_image_contain_the_prediction(
    image: Path, tmp_path: Path, model: protoformer.DepthPredictor
) -> None:
    fractions: list[float] = []
    job = Job(LIMITS, tmp_path, lambda fraction, _: fractions.append(fraction))
    output = depth_image(model, job, image, 70.0, "indoor")
    expected = model.depth(image, fov=70.0, range="indoor")
    assert np.array_equal(np.load(output.downloads[".npy"]), expected.numpy())
    np.testing.assert_allclose(read_mm_depth(output.downloads[".png"]).values, expected.numpy(), atol=5.1e-4)
    assert output.downloads[".ply"].read_bytes().startswith(b"ply")
    assert output.num_views == 0 and fractions[-1] == 1 and 'src="data:image/png;base64,' in output.prototypes
    assert "(given)" in output.summary and (output.view["width"], output.view["height"]) == (96, 72)


def test_a_view_of_every_frame_is_saved_for_the_slider(
    tmp_path: Path, model: protoformer.DepthPredictor, make_video: Callable[..., Path]
) -> None:
    clip = make_video(tmp_path / "clip.mp4", [np.full((64, 72, 3), 40 * n, np.uint8) for n in range(4)])
    output = depth_clip(model, Job(LIMITS, tmp_path), clip)
    assert output.num_views == 4 and output.view == load_view(tmp_path, 0) and load_view(tmp_path, 3)
    video = open_video(output.downloads[".mp4"])
    assert (video.info.size, len(list(video.frames()))) == ((64, 144), 4)
    with pytest.raises(InputError, match="more than 3 frames"):
        depth_clip(model, Job(Limits(10, 10_000, 3, 60, 1), tmp_path), clip)


def test_a_computation_ends_at_its_deadline(image: Path, tmp_path: Path, model: protoformer.DepthPredictor) -> None:
    with pytest.raises(InputError, match="stopped after 0 seconds"):
        depth_image(model, Job(Limits(10, 10_000, 5, 0.0, 1), tmp_path), image)


@pytest.mark.web
def test_an_image_gives_the_same_depth_as_the_library(page: Any, image: Path, tmp_path: Path) -> None:
    page.get_by_role("tab", name="Depth").click()
    assert "was not trained" in page.inner_text("#depth-untrained")
    page.click("#depth-compute-image")
    page.get_by_text("Choose an image first.").wait_for()
    page.set_input_files("#depth-image input[type=file]", str(image))
    page.wait_for_selector("#depth-image img")
    page.fill("#depth-fov input", "70")
    page.click("#depth-compute-image")
    page.wait_for_selector("#depth-viewer img.depth")
    page.wait_for_selector("#depth-message .pf-note")
    expected = protoformer.load("tiny", task="depth").depth(image, fov=70.0)
    with page.expect_download() as downloading:
        page.click("#depth-download-npy")
    downloading.value.save_as(tmp_path / "depth.npy")
    np.testing.assert_allclose(np.load(tmp_path / "depth.npy"), expected.numpy(), rtol=1e-3)
    box = page.locator("#depth-viewer img.depth").bounding_box()
    page.mouse.move(box["x"] + 0.26 * box["width"], box["y"] + 0.51 * box["height"])
    match = READOUT.search(page.inner_text("#depth-viewer .readout"))
    assert match, page.inner_text("#depth-viewer .readout")
    x, y, meters, confidence = (float(part) for part in match.groups())
    assert (x, y) == (24, 36)
    assert meters == pytest.approx(float(expected.depth[0, 36, 24]), rel=2e-3)
    assert confidence == pytest.approx(float(expected.confidence[0, 36, 24]), abs=0.008)
    assert page.is_visible("#depth-download-png") and page.is_visible("#depth-download-ply")
    assert not page.is_visible("#depth-download-mp4")
    page.get_by_text("Prototypes", exact=True).click()
    page.wait_for_selector("#depth-prototypes img")


@pytest.mark.web
def test_a_clip_has_a_slider_and_a_video(page: Any, make_video: Callable[..., Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (16, 24, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    clip = make_video(tmp_path / "clip.mp4", [np.roll(noise, 2 * n, axis=1) for n in range(3)])
    page.get_by_role("tab", name="Depth").click()
    page.get_by_role("tab", name="Clip").locator("visible=true").click()
    page.set_input_files("#depth-clip input[type=file]", str(clip))
    page.wait_for_selector("#depth-clip video")
    page.click("#depth-compute-clip")
    page.wait_for_selector("#depth-viewer img.depth")
    first = page.get_attribute("#depth-viewer img.first", "src")
    slider = page.locator("#depth-slider input[type=range]")
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("1", "3")
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function("old => document.querySelector('#depth-viewer img.first').src !== old", arg=first)
    with page.expect_download() as downloading:
        page.click("#depth-download-mp4")
    downloading.value.save_as(tmp_path / "depth.mp4")
    assert open_video(tmp_path / "depth.mp4").info.size == (64, 192)
