"""What the page allows, without a browser and without gradio."""

import base64
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protoformer import load
from protoformer.errors import InputError
from protoformer.flow import tiling as planning
from protoformer.flow.drawing import flow_viewer_data
from protoformer.flow.result import FlowResult
from protoformer.io.float_formats import read_flo
from protoformer.web.flow import flow_clip, flow_pair
from protoformer.web.limits import Deadline, Limits
from protoformer.web.site import Site, load_view, notice, user_message

ROOM = Limits(megabytes=10, pixels=10_000, frames=5, seconds=60, jobs=1)
pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")


def test_a_playlist_is_no_clip(tmp_path: Path) -> None:
    playlist = tmp_path / "clip.mp4"
    playlist.write_text("#EXTM3U\n#EXTINF:1,\n/etc/secret.mp4\n")
    with pytest.raises(InputError, match="not a video of a known kind"):
        ROOM.check_clip_file(playlist)


def test_a_computation_ends_at_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(path)
    hurried = Limits(megabytes=10, pixels=10_000, frames=5, seconds=0.0, jobs=1)
    with pytest.raises(InputError, match="stopped after 0 seconds"):
        flow_pair(load("tiny", "cpu"), hurried, (path, path), tmp_path)
    Deadline(60).check()


def test_pixels_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(np.zeros((200, 100, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:60])  # the head alone
    with pytest.raises(InputError, match="100x200, 20000 pixels"):
        ROOM.check_image(path)


def test_every_pair_of_a_clip_is_kept_for_the_slider(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    clip = make_video(tmp_path / "clip.mp4", [np.full((64, 72, 3), 40 * n, np.uint8) for n in range(4)])
    answer = flow_clip(load("tiny", "cpu"), ROOM, clip, tmp_path)
    assert answer.pairs == 3
    assert answer.view == load_view(tmp_path, 0) != load_view(tmp_path, 2)
    assert answer.prototypes.startswith("data:image/png;base64,")


def test_the_flow_of_a_pair_is_that_of_the_model(tmp_path: Path) -> None:
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 72, 3), dtype=np.uint8)).save(path)
    model = load("tiny", "cpu")
    answer = flow_pair(model, ROOM, paths, tmp_path)
    np.testing.assert_array_equal(read_flo(answer.download), model.flow(*paths).numpy())


def test_where_memory_is_scarce_a_pair_is_seen_as_it_is_and_still_has_prototypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (tmp_path / "a.png", tmp_path / "b.png")
    for seed, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 72, 3), dtype=np.uint8)).save(path)
    model = load("tiny", "cpu", flow={"min_pixels": 4 * 64 * 72})
    for free, zoom in ((10**9, 2), (20 * 10**6, 1)):
        monkeypatch.setattr(planning, "free_bytes", lambda _, free=free: free)
        answer = flow_pair(model, ROOM, paths, tmp_path)
        np.testing.assert_array_equal(read_flo(answer.download), model.flow(*paths, zoom=zoom).numpy())
        assert answer.prototypes.startswith("data:image/png;base64,")


def test_large_images_give_the_browser_every_second_vector() -> None:
    flow = torch.arange(2 * 10 * 12, dtype=torch.float32).view(2, 10, 12) / 7
    view = flow_viewer_data(FlowResult(flow, torch.ones(1, 10, 12)), np.zeros((10, 12, 3), np.uint8), 5.0, max_cells=30)
    assert (view["step"], view["rows"], view["columns"]) == (2, 5, 6)
    vectors = np.frombuffer(base64.b64decode(view["vectors"]), "<i2").reshape(2, 5, 6) * view["unit"]
    np.testing.assert_allclose(vectors, flow[:, ::2, ::2], atol=view["unit"])


def test_people_read_their_own_names_and_no_tags(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "<b>.png"
    assert notice(user_message(InputError(f"{path} is bad."), [path])) == (
        '<p class="pf-error" role="alert">&lt;b&gt;.png is bad.</p>'
    )


def test_only_results_are_forgotten(tmp_path: Path) -> None:
    site = Site("tiny", tmp_path, ROOM)
    kept, result = tmp_path / "kept", site.new_result()
    kept.mkdir()
    for folder in (kept, result, None):
        site.forget(folder)
    assert kept.exists() and not result.exists()


def test_without_gradio_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from protoformer.cli.main import main

    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr(sys, "argv", ["protoformer", "serve"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == (
        "protoformer: the web page is served with gradio, which is not installed: pip install 'protoformer[web]'."
    )
