"""The web page in a real browser."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.io.float_formats import read_flo
from protoformer.video.reader import open_video

pytestmark = [pytest.mark.web, pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")]

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
    """What the page says of a place in the picture of the flow, from 0 to 1 each way."""
    box = page.locator("#flow-viewer img.flow").bounding_box()
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    found = READOUT.search(page.inner_text("#flow-viewer .readout"))
    assert found, page.inner_text("#flow-viewer .readout")
    return tuple(float(part) for part in found.groups())


def test_two_images_give_what_python_gives(page: Any, two_images: tuple[Path, Path], tmp_path: Path) -> None:
    assert "was not trained" in page.inner_text("#flow-untrained")
    assert not page.is_visible("#flow-download")
    upload_pair(page, two_images)
    computed(page, "#flow-compute-pair")
    expected = protoformer.load("tiny").flow(*two_images)
    with page.expect_download() as downloading:
        page.click("#flow-download")
    downloading.value.save_as(tmp_path / "motion.flo")
    assert downloading.value.suggested_filename == "motion.flo"
    np.testing.assert_allclose(read_flo(tmp_path / "motion.flo"), expected.numpy(), atol=1e-4)
    for place in ((0.26, 0.51), (0.9, 0.1)):
        x, y, u, v, confidence = read_at(page, *place)
        assert (x, y) == (int(place[0] * 96), int(place[1] * 72))
        np.testing.assert_allclose((u, v), expected.flow[:, int(y), int(x)], atol=0.006)
        assert confidence == pytest.approx(float(expected.confidence[0, int(y), int(x)]), abs=0.008)
    page.get_by_text("Prototypes of the first image").click()
    page.wait_for_selector("#flow-prototypes img")


def test_another_example_changes_the_picture(page: Any) -> None:
    seen = set()
    for name in ("A street", "Flying objects"):
        before = page.get_attribute("#flow-first img", "src") if seen else None
        page.get_by_role("button", name=name).click()
        page.wait_for_function(
            "old => (document.querySelector('#flow-first img') || {src: old}).src !== old", arg=before or ""
        )
        page.click("#flow-compute-pair")
        page.wait_for_function(
            "seen => { const found = document.querySelector('#flow-viewer img.flow');"
            "          return found && !seen.includes(found.src) }",
            arg=list(seen),
        )
        seen.add(page.get_attribute("#flow-viewer img.flow", "src"))
    assert len(seen) == 2


def test_a_clip_has_a_slider_and_a_video(page: Any, make_video: Callable[..., Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (16, 24, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    clip = make_video(tmp_path / "clip.mp4", [np.roll(noise, 2 * n * n, axis=1) for n in range(4)])
    page.get_by_role("tab", name="A clip").click()
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
        page.click("#flow-download")
    downloading.value.save_as(tmp_path / "motion.mp4")
    video = open_video(tmp_path / "motion.mp4")
    assert (video.info.size, len(list(video.frames()))) == ((64, 192), 3)


def test_what_is_over_a_limit_is_refused_in_a_sentence(
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
    page.get_by_role("tab", name="A clip").click()
    page.set_input_files("#flow-clip input[type=file]", str(long))
    page.wait_for_selector("#flow-clip video")
    page.click("#flow-compute-clip")
    page.get_by_text("long.mp4 has more than 6 frames, the limit of this page; cut it shorter.").wait_for()
    assert not page.is_visible("#flow-viewer img.flow")


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=../../../../../../etc/passwd",
        "/gradio_api/file=%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/gradio_api/file={served}/../../../../../../../../etc/passwd",
        "/gradio_api/file={examples}/drive-1.png",
        "/gradio_api/file=pyproject.toml",
        "/gradio_api/file=http://127.0.0.1:{port}/config",
        "/gradio_api/proxy=http://127.0.0.1:{port}/config",
        "/static/../../../../../../etc/passwd",
        "/assets/..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd",
    ],
)
def test_no_other_file_can_be_read(served: Any, path: str) -> None:
    (folder,) = served.temporary.glob("protoformer-web-*")
    places = {"served": folder / "served", "examples": folder / "examples", "port": served.address.rsplit(":", 1)[1]}
    assert (places["examples"] / "drive-1.png").exists()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(served.address + path.format(**places), timeout=20)
    with refused.value as answer:
        assert answer.code in (403, 404)
        assert b"root:" not in answer.read()


@pytest.mark.parametrize("path", ["/etc/passwd", "{examples}/drive-1.png", "http://127.0.0.1:{port}/config"])
def test_a_forged_upload_is_not_opened(served: Any, path: str) -> None:
    (folder,) = served.temporary.glob("protoformer-web-*")
    path = path.format(examples=folder / "examples", port=served.address.rsplit(":", 1)[1])
    with urllib.request.urlopen(f"{served.address}/config", timeout=20) as answer:
        calls = json.load(answer)["dependencies"]
    (number,) = (call["id"] for call in calls if call["api_name"] == "pair_pressed")
    upload = {"path": path, "meta": {"_type": "gradio.FileData"}}
    asked = {"data": [upload, upload, None], "fn_index": number, "session_hash": f"forged{len(path)}"}
    request = urllib.request.Request(
        f"{served.address}/gradio_api/queue/join", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20):
        pass
    told = f"{served.address}/gradio_api/queue/data?session_hash={asked['session_hash']}"
    with urllib.request.urlopen(told, timeout=20) as events:
        ended = next(line for line in events if b"process_completed" in line)
    assert json.loads(ended.removeprefix(b"data: "))["success"] is False
