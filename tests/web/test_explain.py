"""Explain tab: its computation, the interactive page that it embeds, and the tab in a browser."""

import json
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import protoformer
from protoformer.errors import InputError
from protoformer.video.reader import open_video
from protoformer.web import limits
from protoformer.web.explain import explain_clip, explain_images
from protoformer.web.job import Job
from protoformer.web.limits import Limits

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
LIMITS = Limits(max_megabytes=10, max_pixels=20_000, max_frames=5, max_seconds=60, max_jobs=1)


@pytest.fixture(scope="module")
def model() -> protoformer.FlowPredictor:
    return protoformer.load("tiny", "cpu")


def test_images_give_a_page_and_files(
    model: protoformer.FlowPredictor, two_images: tuple[Path, Path], tmp_path: Path
) -> None:
    fractions: list[float] = []
    job = Job(LIMITS, tmp_path, lambda fraction, _: fractions.append(fraction))
    output = explain_images(model, job, list(two_images))
    assert escape(output.downloads[".html"].read_text()) in output.view and fractions == sorted(fractions)
    assert "96x72 pixels; " in output.summary and "matched in the second image" in output.summary
    assert [each for each in fractions if each > 0.5] == [0.625, 0.75, 0.875, 1.0]  # numbers and pictures of two layers
    with pytest.raises(InputError, match="the limit is 100"):
        explain_images(model, Job(Limits(10, 100, 5, 60, 1), tmp_path), list(two_images))


def test_drawing_ends_at_the_deadline(
    model: protoformer.FlowPredictor, two_images: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def pass_deadline(_: float, text: str) -> None:
        clock.now = 61.0 if text.startswith("drawing") else 0.0

    with pytest.raises(InputError, match="stopped after 60 seconds"):
        explain_images(model, Job(LIMITS, tmp_path / "out", pass_deadline), list(two_images))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_clip_gives_a_video(
    model: protoformer.FlowPredictor,
    make_video: Callable[..., Path],
    moving_pattern: Callable[..., Any],
    tmp_path: Path,
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(3))
    output = explain_clip(model, Job(LIMITS, tmp_path), clip)
    steps = list(model.explain_video(clip))
    kept = sum(step.kept for step in steps[1:]) / 2
    assert f"; {kept:.0%} of a frame's pixels belong to one of the previous frame." in output.summary
    assert len(list(open_video(output.downloads[".mp4"]).frames())) == 3 and output.view == ""
    with pytest.raises(InputError, match="more than 2 frames"):
        explain_clip(model, Job(Limits(10, 20_000, 2, 60, 1), tmp_path), clip)


@pytest.mark.web
def test_the_page_highlights_prototypes_without_script_errors(
    browser: Any, model: protoformer.FlowPredictor, two_images: tuple[Path, Path], tmp_path: Path
) -> None:
    explanation = model.explain(*two_images)
    protoformer.save_explanation(tmp_path, explanation)
    tab = browser.new_page(viewport={"width": 1100, "height": 900})
    errors: list[str] = []
    urls: list[str] = []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: urls.append(request.url))
    tab.goto((tmp_path / "index.html").as_uri())
    box = tab.locator(".stage").first.bounding_box()
    tab.select_option("#families", label="12 families of similar prototypes")
    before = tab.evaluate("document.querySelector('canvas').toDataURL()")
    tab.mouse.move(box["x"] + 30.5 / 96 * box["width"], box["y"] + 40.5 / 72 * box["height"])
    number = int(explanation.first.layer().labels()[40, 30])
    (group,) = (each for each in explanation.first.groups() if each.prototype == number)
    words = tab.inner_text("#words")
    assert tab.locator(".stage canvas").count() == 2 and tab.inner_text("#at") == "2 of 2"
    assert words.startswith(f"Prototype {number}: {group.pixels} pixels, {100 * group.share:.1f} % of the image")
    assert f"mean motion ({group.mean[0]:.2f}, {group.mean[1]:.2f}) px" in words and "In the other image: " in words
    assert tab.evaluate("document.querySelector('canvas').toDataURL()") != before
    tab.select_option("#layer", "0")
    tab.locator("#step").fill("0")
    assert tab.inner_text("#at") == "start (pooled)"
    tab.mouse.move(box["x"] + 10, box["y"] + 10)
    tab.mouse.move(box["x"] + 0.5 / 96 * box["width"], box["y"] + 0.5 / 72 * box["height"])
    assert tab.inner_text("#words").startswith(f"Prototype {int(explanation.first.layer('1.1').labels(0)[0, 0])}:")
    assert errors == [] and all(url.startswith(("file:", "data:")) for url in urls)
    tab.close()


@pytest.mark.web
def test_the_page_highlights_moving_parts_as_a_second_view(
    browser: Any, model: protoformer.FlowPredictor, two_images: tuple[Path, Path], tmp_path: Path
) -> None:
    explanation = model.explain(*two_images)
    parts = explanation.parts()
    assert parts is not None
    protoformer.save_explanation(tmp_path, explanation)
    tab = browser.new_page(viewport={"width": 1100, "height": 900})
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((tmp_path / "index.html").as_uri())
    assert tab.locator("#families option:checked").inner_text() == "every prototype"
    tab.select_option("#families", label="moving parts")
    assert tab.locator("#step").is_disabled()
    before = tab.evaluate("document.querySelector('canvas').toDataURL()")
    for stage, labels in enumerate((parts.labels, parts.second)):
        box = tab.locator(".stage").nth(stage).bounding_box()
        for row, column in ((36, 48), (20, 70), (5, 8)):
            tab.mouse.move(box["x"] + (column + 0.5) / 96 * box["width"], box["y"] + (row + 0.5) / 72 * box["height"])
            words, number = tab.inner_text("#words"), int(labels[row, column])
            if number < 0:
                assert words == "No pixel of the first image moves here."
                continue
            part = parts.parts[number]
            assert words.startswith(f"Part {number}: {part.pixels} pixels, {100 * part.share:.1f} % of the image")
            assert f"mean motion ({part.mean[0]:.2f}, {part.mean[1]:.2f}) px" in words
            assert "\nPrototypes {} ({} pixels)".format(*part.prototypes[0]) in words
            assert tab.evaluate("document.querySelector('canvas').toDataURL()") != before
    tab.select_option("#families", label="every prototype")
    assert tab.inner_text("#words").startswith("Move the mouse") and not tab.locator("#step").is_disabled()
    assert errors == []
    tab.close()


@pytest.mark.web
def test_a_page_of_one_image_has_neither_motion_nor_parts(
    browser: Any, model: protoformer.FlowPredictor, two_images: tuple[Path, Path], tmp_path: Path
) -> None:
    protoformer.save_explanation(tmp_path, model.explain(two_images[0]))
    tab = browser.new_page()
    tab.goto((tmp_path / "index.html").as_uri())
    assert tab.locator("#families option:checked").inner_text() == "every prototype"
    assert tab.locator("#families option").count() == 4  # every prototype, and 24, 12 or 6 families
    tab.close()


@pytest.mark.web
@pytest.mark.parametrize("task", ["flow", "depth"])
def test_the_page_shows_mean_values_and_what_a_removal_changes(
    browser: Any, model: protoformer.FlowPredictor, two_images: tuple[Path, Path], tmp_path: Path, task: str
) -> None:
    predictor = model if task == "flow" else protoformer.load("tiny", "cpu", task="depth")
    explanation = predictor.explain(*two_images)
    protoformer.save_explanation(tmp_path, explanation, layer="2.1", removals=99)
    effects = {effect.prototype: effect for effect in explanation.removals("2.1", 99)}
    tab = browser.new_page(viewport={"width": 1100, "height": 900})
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((tmp_path / "index.html").as_uri())
    name = "mean motion of every prototype" if task == "flow" else "mean depth of every prototype"
    before = tab.evaluate("document.querySelector('canvas').toDataURL()")
    tab.select_option("#families", label=name)
    assert tab.locator("#step").is_disabled() and tab.evaluate("document.querySelector('canvas').toDataURL()") != before
    box = tab.locator(".stage").first.bounding_box()
    tab.mouse.move(box["x"] + 30.5 / 96 * box["width"], box["y"] + 40.5 / 72 * box["height"])
    effect = effects[int(explanation.first.layer("2.1").labels()[40, 30])]
    words, unit = tab.inner_text("#words"), "px" if task == "flow" else "m"
    said = re.search(rf"Without it, {task} changes by (\S+) {unit} in its region and (\S+) {unit} outside", words)
    assert said is not None and float(said[1]) == pytest.approx(effect.inside, rel=0.06)
    assert float(said[2]) == pytest.approx(effect.outside, rel=0.06) and errors == []
    tab.close()


@pytest.mark.web
def test_the_tab_shows_the_page_and_its_files(page: Any, two_images: tuple[Path, Path], tmp_path: Path) -> None:
    page.get_by_role("tab", name="Explain").click()
    page.click("#explain-compute-images")
    page.get_by_text("Choose an image first.").wait_for()
    for box, path in zip(("first", "second"), two_images, strict=True):
        page.set_input_files(f"#explain-{box} input[type=file]", str(path))
        page.wait_for_selector(f"#explain-{box} img")
    page.click("#explain-compute-images")
    page.wait_for_selector("#explain-message .pf-note")
    inner = page.frame_locator("#explain-viewer iframe")
    words = inner.locator("#words")
    for attempt in range(50):  # a move before the script of the inner page has started has no effect
        inner.locator(".stage").first.hover(position={"x": 20 + attempt % 10, "y": 20})
        if words.inner_text().startswith("Prototype "):
            break
        page.wait_for_timeout(100)
    assert words.inner_text().startswith("Prototype ")
    with page.expect_download() as downloading:
        page.click("#explain-download-json")
    downloading.value.save_as(tmp_path / "explanation.json")
    assert json.loads((tmp_path / "explanation.json").read_text())["width"] == 96


@pytest.mark.web
def test_the_tab_plays_the_video_of_a_clip(
    page: Any, make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_pattern(3))
    page.get_by_role("tab", name="Explain").click()
    page.get_by_role("tab", name="Clip").click()
    page.set_input_files("#explain-clip input[type=file]", str(clip))
    page.wait_for_selector("#explain-clip video")
    page.click("#explain-compute-clip")
    page.wait_for_selector("#explain-video video")
