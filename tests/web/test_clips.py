"""Clips on the page: trimming, cancellation with partial results, and long clips without limits."""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protoformer
from protoformer.errors import InputError
from protoformer.loading import load_method
from protoformer.video.reader import open_video
from protoformer.web import job as job_module
from protoformer.web.components import probe_clip
from protoformer.web.decoding import decode_clip
from protoformer.web.depth import depth_clip
from protoformer.web.explain import explain_clip
from protoformer.web.flow import flow_clip
from protoformer.web.job import Job, JobControl, JobOutput
from protoformer.web.limits import LOCAL_LIMITS, Deadline, Limits
from protoformer.web.segment import segment_clip
from protoformer.web.stabilize import stabilize_clip
from protoformer.web.track import track_clip

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
LIMITS = Limits(max_megabytes=10, max_pixels=20_000, max_frames=6, max_seconds=60, max_jobs=1)
TABS = ("flow", "depth", "track", "segment", "explain", "stabilize")


def computation(name: str) -> Callable[[Job, Path], JobOutput]:
    """The computation of a clip of a tab, with the smallest models."""
    if name == "track":
        return lambda job, path: track_clip(load_method("correlation"), job, path, [(20, 30, 24, 24)])
    if name == "stabilize":
        steady = protoformer.load("tiny", "cpu", task="stabilize", stabilization={"field_window": 2})
        return partial(stabilize_clip, steady)
    if name == "segment":
        return partial(segment_clip, protoformer.load("tiny", "cpu", task="segment"))
    if name == "depth":
        return partial(depth_clip, protoformer.load("tiny", "cpu", task="depth"))
    return partial(flow_clip if name == "flow" else explain_clip, protoformer.load("tiny", "cpu"))


@pytest.fixture
def clip(make_video: Callable[..., Path], moving_pattern: Callable[..., Any], tmp_path: Path) -> Path:
    """A clip of 10 frames at 25 frames per second, with sound."""
    return make_video(tmp_path / "clip.mp4", moving_pattern(10), sound="aac")


@pytest.mark.parametrize("name", TABS)
def test_a_stopped_computation_keeps_its_frames(name: str, clip: Path, tmp_path: Path) -> None:
    control = JobControl()

    def stop(_: float, text: str) -> None:
        if text.endswith("frame 4 of 10") and "sampling" not in text and not control.stopped:
            control.stop()

    output = computation(name)(Job(LOCAL_LIMITS, tmp_path, stop, control=control), clip)
    video = open_video(output.downloads[".mp4"])
    frames = [frame.time for frame in video.frames()]
    assert len(frames) == 4 and video.info.has_audio
    assert control.stopped and not control.is_canceled()
    assert output.num_views in (0, 4)


@pytest.mark.parametrize("name", TABS)
def test_a_computation_stopped_before_its_first_result_has_none(name: str, clip: Path, tmp_path: Path) -> None:
    control = JobControl()
    control.stop()
    control.stop()
    with pytest.raises(InputError, match="canceled"):
        computation(name)(Job(LOCAL_LIMITS, tmp_path, control=control), clip)
    assert not list(tmp_path.glob("*.csv")) and list(tmp_path.glob("*.mp4")) == [clip]


@pytest.mark.parametrize("name", TABS)
def test_only_the_selected_part_is_processed(name: str, clip: Path, tmp_path: Path) -> None:
    counts: list[str] = []
    job = Job(LIMITS, tmp_path, lambda _, text: counts.append(text), span=(0.12, 0.32))  # frames 3 to 7
    output = computation(name)(job, clip)
    times = [float(frame.time) for frame in open_video(output.downloads[".mp4"]).frames()]
    assert len(times) == (4 if name == "flow" else 5)
    assert any("of 5" in text for text in counts) and not any("of 10" in text for text in counts)
    with pytest.raises(InputError, match="has more than 6 frames, the limit of this page; select a shorter part"):
        computation(name)(Job(LIMITS, tmp_path, span=(0.0, 0.4)), clip)


def test_a_long_clip_is_read_without_a_copy_of_its_frames(clip: Path) -> None:
    with decode_clip(LOCAL_LIMITS, clip, Deadline(None), (0.12, 0.32)) as decoded:
        assert len(decoded) == 5 and decoded.span == {"start": 0.12, "end": 0.32}
        readings = [decoded.frames(), decoded.frames(0.2)]  # at the same time
        pairs = [(next(readings[0]).number, next(readings[1]).number) for _ in range(3)]
        assert pairs == [(0, 5), (1, 6), (2, 7)]
        del readings
        assert [frame.number for frame in decoded.frames(0.3)] == [8, 9]
        assert len(decoded._idle) == 2  # both decoders are used again


def test_views_of_a_long_clip_are_those_of_every_second_frame(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "MAX_VIEWS", 5)
    output = computation("depth")(Job(LOCAL_LIMITS, tmp_path), clip)
    assert (output.num_views, output.view_step) == (5, 2) and output.summary.startswith("10 frames")


def test_a_clip_is_described_when_it_is_chosen(clip: Path) -> None:
    properties, image = probe_clip(LIMITS, clip)  # not counted: a part may be selected
    assert properties == {"duration": pytest.approx(0.4, abs=0.05), "fps": 25.0, "size": "128\u00d796"}
    assert image.shape == (96, 128, 3)


def choose(page: Any, tab: str, path: Path) -> None:
    """Upload a clip in a tab."""
    page.get_by_role("tab", name=tab.capitalize(), exact=True).click()
    if tab in ("flow", "depth", "explain"):
        page.get_by_role("tab", name="Clip", exact=True).locator("visible=true").click()
    page.set_input_files(f"#{tab}-clip input[type=file]", str(path))
    page.wait_for_selector(f"#{tab}-clip-trim .rail")


def select(page: Any, tab: str, **times: float) -> None:
    """Move the handles of the trim control, as a person does."""
    for handle, time in times.items():
        page.locator(f"#{tab}-clip-trim .{handle}").evaluate(
            "(handle, time) => { handle.value = time;"
            "for (const kind of ['input', 'change']) handle.dispatchEvent(new Event(kind, {bubbles: true})) }",
            time,
        )


def saved(page: Any, selector: str, path: Path) -> Path:
    with page.expect_download() as downloading:
        page.click(selector)
    downloading.value.save_as(path)
    return path


@pytest.mark.web
def test_thirty_seconds_are_processed_on_this_machine(
    local_page: Any, make_video: Callable[..., Path], tmp_path: Path
) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (12, 16, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    clip = make_video(tmp_path / "long.mp4", [np.roll(noise, n, axis=1) for n in range(150)], rate=5)
    choose(local_page, "depth", clip)
    local_page.get_by_text("0.0 to 30.0 s, 150 frames").wait_for()
    local_page.click("#depth-compute-clip")
    local_page.wait_for_selector("#depth-message .pf-note", timeout=120_000)
    assert local_page.inner_text("#depth-message").startswith("150 frames of 64x48 pixels")
    assert local_page.get_attribute("#depth-slider input[type=range]", "max") == "150"
    video = open_video(saved(local_page, "#depth-download-mp4", tmp_path / "depth.mp4"))
    assert video.info.num_frames == 150


@pytest.mark.web
def test_cancel_keeps_the_frames_so_far(local_page: Any, make_video: Callable[..., Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    clip = make_video(tmp_path / "long.mp4", [np.roll(noise, n, axis=1) for n in range(600)], rate=20)
    choose(local_page, "flow", clip)
    local_page.get_by_text("0.0 to 30.0 s, 600 frames").wait_for()
    local_page.click("#flow-compute-clip")
    local_page.get_by_text(re.compile(r"Frame \d+ of 600")).wait_for()
    local_page.wait_for_selector("#flow-message .pf-preview")
    assert not local_page.is_visible("#flow-compute-clip")
    local_page.click("#flow-cancel-clip")
    local_page.wait_for_selector("#flow-message .pf-warning")
    message = re.match(r"Canceled\. (\d+) frames of 160x120", local_page.inner_text("#flow-message"))
    assert message is not None and 2 <= int(message[1]) < 600
    video = open_video(saved(local_page, "#flow-download-mp4", tmp_path / "flow.mp4"))
    assert video.info.num_frames == int(message[1]) - 1
    assert local_page.is_visible("#flow-compute-clip") and not local_page.is_visible("#flow-cancel-clip")
    select(local_page, "flow", to=0.2)
    local_page.get_by_text("0.0 to 0.2 s, 4 frames").wait_for()
    local_page.click("#flow-compute-clip")
    local_page.wait_for_selector("#flow-message .pf-note")
    assert local_page.inner_text("#flow-message").startswith("4 frames of 160x120")


@pytest.mark.web
def test_a_waiting_computation_can_be_canceled(
    browser: Any, local: Any, local_page: Any, make_video: Callable[..., Path], tmp_path: Path
) -> None:
    from tests.web.conftest import browsing

    noise = np.random.default_rng(1).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    clip = make_video(tmp_path / "long.mp4", [np.roll(noise, n, axis=1) for n in range(600)], rate=20)
    choose(local_page, "flow", clip)
    local_page.click("#flow-compute-clip")
    local_page.get_by_text(re.compile(r"Frame \d+ of 600")).wait_for()
    with browsing(browser, local) as second:
        choose(second, "depth", clip)
        second.click("#depth-compute-clip")
        second.get_by_text("Waiting for another computation").wait_for()
        second.click("#depth-cancel-clip")
        second.get_by_text("Canceled.", exact=True).wait_for()
        second.wait_for_selector("#depth-compute-clip")
    local_page.click("#flow-cancel-clip")
    local_page.wait_for_selector("#flow-message .pf-warning")


@pytest.mark.web
def test_a_part_of_a_clip_is_processed_within_the_limits(page: Any, clip: Path, tmp_path: Path) -> None:
    choose(page, "track", clip)
    page.get_by_text("10 frames; select at most 6").wait_for()
    first = page.get_attribute("#track-picker .stage img", "src")
    select(page, "track", **{"from": 0.16, "to": 0.36})
    page.get_by_text("0.2 to 0.4 s, 5 frames").wait_for()
    page.wait_for_function("old => document.querySelector('#track-picker .stage img').src !== old", arg=first)
    stage = page.locator("#track-picker .stage").bounding_box()
    page.mouse.move(stage["x"] + 0.2 * stage["width"], stage["y"] + 0.2 * stage["height"])
    page.mouse.down()
    page.mouse.move(stage["x"] + 0.5 * stage["width"], stage["y"] + 0.5 * stage["height"])
    page.mouse.up()
    page.click("#track-compute-clip")
    page.get_by_text("5 frames of 128x96 pixels, 1 target").wait_for()
    times = saved(page, "#track-download-csv", tmp_path / "track.csv").read_text().splitlines()[1:]
    assert len(times) == 5


PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1360, "height": 1000}


@pytest.mark.web
@pytest.mark.parametrize("tab", ["flow", "depth", "track", "segment", "stabilize", "explain"])
def test_every_tab_starts_and_cancels_a_clip_of_30_seconds_in_a_window_of_a_phone(
    browser: Any, local: Any, make_video: Callable[..., Path], tmp_path: Path, tab: str
) -> None:
    from tests.web.conftest import browsing

    noise = np.random.default_rng(1).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    clip = make_video(tmp_path / "long.mp4", [np.roll(noise, n, axis=1) for n in range(600)], rate=20)
    with browsing(browser, local, **PHONE) as page:
        choose(page, tab, clip)
        page.get_by_text("0.0 to 30.0 s, 600 frames").locator("visible=true").wait_for()
        if tab == "track":
            page.locator("#track-picker .stage").scroll_into_view_if_needed()
            stage = page.locator("#track-picker .stage").bounding_box()
            page.mouse.move(stage["x"] + 0.3 * stage["width"], stage["y"] + 0.3 * stage["height"])
            page.mouse.down()
            page.mouse.move(stage["x"] + 0.6 * stage["width"], stage["y"] + 0.6 * stage["height"])
            page.mouse.up()
        page.click(f"#{tab}-compute-clip")
        page.locator(f"#{tab}-message").get_by_text(re.compile(r"\d+ of \d+")).wait_for()
        page.click(f"#{tab}-cancel-clip")
        page.locator(f"#{tab}-message").get_by_text(re.compile("^Canceled")).wait_for(timeout=120_000)
        page.wait_for_selector(f"#{tab}-compute-clip")
        assert not page.is_visible(f"#{tab}-cancel-clip")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.web
@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "light"), (PHONE, "dark"), (WIDE, "dark")])
def test_every_tab_fits_the_window(browser: Any, local: Any, clip: Path, size: dict[str, int], scheme: str) -> None:
    from tests.web.conftest import browsing

    with browsing(browser, local, **size, color_scheme=scheme) as page:
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(value) for value in re.findall(r"\d+", background)[:3]) / 3
        assert brightness < 80 if scheme == "dark" else brightness > 200
        for name in ("Flow", "Depth", "Track", "Segment", "Stabilize", "Explain"):
            page.get_by_role("tab", name=name, exact=True).click()
            page.wait_for_selector(f"#{name.lower()}-message .pf-empty")
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        choose(page, "stabilize", clip)
        page.click("#stabilize-compute-clip")
        page.wait_for_selector("#stabilize-viewer svg")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        given, result = (page.locator(each).bounding_box() for each in ("#stabilize-clip", "#stabilize-video"))
        charts = [page.locator("#stabilize-viewer svg").nth(index).bounding_box() for index in range(4)]
        if size is WIDE:  # the result is beside the input, and the charts are two by two
            assert result["x"] > given["x"] + given["width"] and result["y"] < given["y"] + given["height"]
            assert charts[0]["y"] == charts[1]["y"] < charts[2]["y"] == charts[3]["y"]
        else:  # one below the other
            assert result["y"] > given["y"] + given["height"]
            assert all(one["y"] < other["y"] for one, other in pairwise(charts))
