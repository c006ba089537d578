"""Limits of the page and its messages, without a browser and without gradio."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.image import read_image
from protoformer.tracking.result import check_boxes
from protoformer.video.reader import open_video
from protoformer.web import job as job_module
from protoformer.web import site as site_module
from protoformer.web.job import JobControl, error_message, format_seconds, message_html, parse_span, progress_html
from protoformer.web.limits import LOCAL_LIMITS, PUBLIC_LIMITS, Deadline, Limits
from protoformer.web.site import Site

LIMITS = Limits(max_megabytes=10, max_pixels=10_000, max_frames=5, max_seconds=60, max_jobs=1)
pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")


def test_a_playlist_is_no_clip(tmp_path: Path) -> None:
    playlist = tmp_path / "clip.mp4"
    playlist.write_text("#EXTM3U\n#EXTINF:1,\n/etc/secret.mp4\n")
    with pytest.raises(InputError, match="not a video of a known kind"):
        LIMITS.check_clip_file(playlist)


def test_pixels_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(np.zeros((200, 100, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:60])  # the head alone
    with pytest.raises(InputError, match="100x200, 20000 pixels"):
        LIMITS.check_image(path)


def test_messages_contain_the_name_of_an_upload_without_folder_and_tags(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "<b>.png"
    assert message_html(error_message(InputError(f"{path} is bad."), [path])) == (
        '<p class="pf-error" role="alert">&lt;b&gt;.png is bad.</p>'
    )


def test_only_results_are_deleted(tmp_path: Path) -> None:
    site = Site("tiny", tmp_path, LIMITS)
    kept, result = tmp_path / "kept", site.results.begin()
    kept.mkdir()
    for folder in (kept, result, None):
        site.results.delete(folder)
    assert kept.exists() and not result.exists()


def test_models_are_loaded_once_and_untrained_ones_are_marked(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the page itself shows that a model is untrained
        site = Site("tiny", tmp_path, LIMITS, depth_model="tiny", track_model="tiny")
        assert site.flow is site.flow and site.depth is site.depth
        assert not (site.flow.trained or site.depth.trained or site.tracker.trained)
    assert site.tracker.label == "tiny (untrained)"
    default = Site("tiny", tmp_path, LIMITS).tracker
    assert default.label == "track" and default.trained


def test_examples_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXAMPLE_SIZE": (48, 64), "TEXTURE_SIZE": 32, "NUM_TEXTURES": 1}.items():
        monkeypatch.setattr(site_module, name, value)
    site = Site("tiny", tmp_path, LIMITS)
    images, clip = site.example_images("A street", "drive", 0), site.example_clip("A street", "drive", 0, num_frames=2)
    frames = site.demo_images()
    assert [read_image(path).shape for path in images.paths] == [(48, 64, 3)] * 2
    shapes = [[read_image(path).shape for path in each.paths] for each in frames]
    assert shapes == [[(height, 640, 3)] * 2 for height in (360, 266)]
    assert len(list(open_video(clip.paths[0]).frames())) == 2
    monkeypatch.setattr(site_module, "_render_frames", None)
    monkeypatch.setattr(site_module, "read_frames", None)
    assert site.example_images("A street", "drive", 0) == images and site.demo_images() == frames
    assert site.example_clip("A street", "drive", 0, num_frames=2) == clip


def test_example_boxes_lie_inside_the_first_frame(tmp_path: Path) -> None:
    for example in Site("tiny", tmp_path, LIMITS).demo_clips():
        check_boxes(example.boxes, open_video(example.paths[0]).info.size)


def test_limits_of_frames_and_time_hold_for_other_machines_only() -> None:
    assert (LOCAL_LIMITS.max_frames, LOCAL_LIMITS.max_seconds) == (None, None)
    assert (PUBLIC_LIMITS.max_frames, PUBLIC_LIMITS.max_seconds) == (120, 120)
    assert LOCAL_LIMITS.override(None, None, 7, None, 3) == replace(LOCAL_LIMITS, max_frames=7, max_jobs=3)
    LOCAL_LIMITS.check_frames(10**6, Path("clip.mp4"))
    deadline = Deadline(LOCAL_LIMITS.max_seconds)
    deadline.check()
    assert deadline.remaining is None
    assert (LOCAL_LIMITS.keep_seconds, PUBLIC_LIMITS.keep_seconds) == (24 * 3600, 1800)
    assert "frames" not in LOCAL_LIMITS.describe() and "120 frames per clip, 120 s" in PUBLIC_LIMITS.describe()


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([], LOCAL_LIMITS),
        (["--host", "::1"], LOCAL_LIMITS),
        (["--max-frames", "9"], replace(LOCAL_LIMITS, max_frames=9)),
        (["--host", "0.0.0.0", "--no-auth"], PUBLIC_LIMITS),
        (["--allowed-host", "lab.example", "--no-auth"], PUBLIC_LIMITS),
        (["--host", "0.0.0.0", "--no-auth", "--max-seconds", "5"], replace(PUBLIC_LIMITS, max_seconds=5.0)),
    ],
)
def test_the_address_selects_the_limits(options: list[str], limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    from protoformer.cli import serve
    from protoformer.cli.main import main

    used: list[Limits] = []

    def stop(_: str, __: Path, chosen: Limits, *___: str) -> None:
        used.append(chosen)
        raise InputError("enough")

    monkeypatch.setattr(serve, "Site", stop)
    monkeypatch.setattr(sys, "argv", ["protoformer", "serve", *options])
    with pytest.raises(SystemExit):
        main()
    assert used == [limits]


@pytest.mark.parametrize(
    ("value", "span"),
    [(None, (None, None)), ([None, None], (None, None)), ([1, None], (1.0, None)), ([0.5, 2], (0.5, 2.0))],
)
def test_a_span_is_two_times(value: object, span: tuple[float | None, float | None]) -> None:
    assert parse_span(value) == span


@pytest.mark.parametrize(
    "value", [[2, 1], [1, 1], [None, 0], [-1, 2], ["0", 1], [0], {}, "01", [0, float("nan")], [1, 2, 3]]
)
def test_a_forged_span_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="move its start before its end"):
        parse_span(value)


def test_the_time_left_follows_from_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(job_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    control = JobControl()
    assert control.seconds_left is None
    clock.now = 110.0
    control.report(0, "sampling frame 3 of 3")  # not counted
    clock.now = 120.0
    control.report(0.25, "frame 15 of 60")
    assert control.seconds_left == 30
    shown = progress_html(control)
    assert "Frame 15 of 60" in shown and "0:30 left" in shown and "width: 25.0%" in shown
    assert [format_seconds(each) for each in (6.2, 60, 3905)] == ["0:07", "1:00", "1:05:05"]


def test_without_gradio_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from protoformer.cli.main import main
    from protoformer.errors import install_command

    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr(sys, "argv", ["protoformer", "serve"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == (
        f"protoformer: the web page is served with gradio, which is not installed: {install_command('web')}."
    )
