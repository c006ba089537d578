"""Limits of the page and its messages, without a browser and without gradio."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.image import read_image
from protoformer.video.reader import open_video
from protoformer.web import site as site_module
from protoformer.web.job import error_message, message_html
from protoformer.web.limits import Limits
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


def test_examples_are_rendered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXAMPLE_SIZE": (48, 64), "TEXTURE_SIZE": 32, "NUM_TEXTURES": 1}.items():
        monkeypatch.setattr(site_module, name, value)
    site = Site("tiny", tmp_path, LIMITS)
    images, clip = site.example_images("A street", "drive", 0), site.example_clip("A street", "drive", 0, num_frames=2)
    assert [read_image(path).shape for path in images.paths] == [(48, 64, 3)] * 2
    assert len(list(open_video(clip.paths[0]).frames())) == 2
    monkeypatch.setattr(site_module, "_render_frames", None)
    assert site.example_images("A street", "drive", 0) == images
    assert site.example_clip("A street", "drive", 0, num_frames=2) == clip


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
