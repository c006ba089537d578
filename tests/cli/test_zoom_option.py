"""`--zoom`: how many times as large frames are looked at, in every command that finds flow."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protoformer as pf
from protoformer.flow import tiling as planning
from protoformer.flow.predictor import FAST
from protoformer.io.formats import read_flo, write_flo

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")
RNG = np.random.default_rng(3)
MODEL = ("--model", "tiny", "--num-updates", "1")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four images, which are also a clip and a pair of Middlebury."""
    monkeypatch.chdir(tmp_path)
    pair = tmp_path / "Middlebury/other-data/Dimetrodon"
    pair.mkdir(parents=True)
    (tmp_path / "frames").mkdir()
    for number in range(4):
        image = Image.fromarray(RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8))
        image.save(tmp_path / f"frames/{number}.png")
        if number < 2:
            image.save(pair / f"frame{10 + number}.png")
    truth = tmp_path / "Middlebury/other-gt-flow/Dimetrodon"
    truth.mkdir(parents=True)
    write_flo(truth / "flow10.flo", np.ones((20, 30, 2), np.float32))
    return tmp_path


def test_two_images_are_looked_at_as_large_as_one_says(place: Path, protoformer) -> None:
    with pytest.warns(pf.UntrainedWarning):
        expected = pf.load("tiny").flow("frames/0.png", "frames/1.png", num_updates=1, zoom=1.5)
    pair = ("flow", "frames/0.png", "frames/1.png", *MODEL, "-o", "m.flo", "--zoom", "1.5")
    outcome = protoformer(*pair)
    assert outcome.code == 0 and "whole images resized by 1.5, one at a time" in outcome.out
    assert np.array_equal(read_flo("m.flo"), expected.numpy())
    assert json.loads(protoformer(*pair, "--json").out)["zoom"] == 1.5
    assert "resized by" not in protoformer(*pair[:-1], "auto").out  # the smallest network enlarges nothing by itself


def test_so_is_a_clip(place: Path, protoformer) -> None:
    clip = ("flow", "frames", *MODEL, "--save-flo", "flows", "--zoom", "2", "--precision", "full")
    outcome = protoformer(*clip)
    assert outcome.code == 0 and "resized by 2" in outcome.out
    with pytest.warns(pf.UntrainedWarning):
        steps = list(pf.load("tiny").flow_video("frames", num_updates=1, zoom=2, precision="full"))
    for step in steps:
        assert np.array_equal(read_flo(f"flows/{step.number:06d}.flo"), step.numpy())
    assert json.loads(protoformer(*clip, "--json").out)["zoom"] == 2


def test_where_memory_is_scarce_frames_stay_as_they_are_and_it_is_told(
    place: Path, protoformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(pf.UntrainedWarning):
        pf.load("tiny", device="cpu", flow={"min_pixels": 16 * 96 * 144}).save("eager.safetensors")
    for number in range(2):
        Image.fromarray(RNG.integers(0, 256, (96, 144, 3), dtype=np.uint8)).save(f"{number}.png")
    model = ("--model", "eager.safetensors", "--num-updates", "1", "--device", "cpu")
    commands = (("flow", "0.png", "1.png", *model, "-o", "m.flo"), ("flow", "?.png", *model, "--save-flo", "flows"))
    for free, zoom in ((10**9, 2), (10**8, 1)):
        monkeypatch.setattr(planning, "free_bytes", lambda _, free=free: free)
        for command in commands:
            outcome = protoformer(*command)
            assert outcome.code == 0 and ("resized by 2" in outcome.out) == (zoom == 2)
            told = json.loads(protoformer(*command, "--json").out)
            assert (told["zoom"], told["tile"]) == (zoom, None)


def test_so_is_a_benchmark_and_its_row_says_it(place: Path, protoformer) -> None:
    benchmark = ("evaluate", "flow", "--dataset", "middlebury", "--root", "Middlebury", *MODEL, "--json")
    own, enlarged = (json.loads(protoformer(*benchmark, "--zoom", zoom).out) for zoom in ("auto", "2"))
    assert own["method"] == "tiny (untrained)" and enlarged["method"] == "tiny (untrained), zoom 2"
    assert own["samples"][0]["scores"]["epe"] != enlarged["samples"][0]["scores"]["epe"]


def test_so_are_many_videos(place: Path, protoformer, make_video: Callable[..., Path]) -> None:
    images = [RNG.integers(0, 256, (32, 48, 3), dtype=np.uint8) for _ in range(3)]
    make_video(place / "clip.mkv", images, "ffv1", "bgr0")
    many = ("batch", "flow", "clip.mkv", "-o", "motion", *MODEL, "--scale", "2", "--workers", "1", "--json")
    done = [json.loads(protoformer(*many, "--zoom", zoom).out) for zoom in ("2", "2", "1")]
    assert [(each["done"], each["skipped"]) for each in done] == [(1, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("zoom", "sentence"),
    [
        ("9", "images cannot be resized by a zoom of 9.0; give a zoom from 0.25 to 4."),
        ("nan", "images cannot be resized by a zoom of nan; give a zoom from 0.25 to 4."),
        ("large", "a zoom is auto or a number from 0.25 to 4, not 'large'; give one of these."),
    ],
)
def test_what_is_no_zoom_is_one_sentence(place: Path, protoformer, zoom: str, sentence: str) -> None:
    for command in (
        ("flow", "frames/0.png", "frames/1.png"),
        ("flow", "frames"),
        ("batch", "flow", "frames/*.png", "-o", "motion"),
        ("evaluate", "flow", "--dataset", "middlebury", "--root", "Middlebury"),
    ):
        outcome = protoformer(*command, "--zoom", zoom)
        assert outcome.code == 2 and outcome.errors == [f"protoformer: {sentence}"]


def test_fast_is_half_the_size_and_four_updates_unless_something_else_is_given(place: Path, protoformer) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny")
    pair = ("flow", "frames/0.png", "frames/1.png", "--model", "tiny", "-o", "m.flo", "--fast")
    assert json.loads(protoformer(*pair, "--json").out)["zoom"] == 0.5
    assert np.array_equal(read_flo("m.flo"), model.flow("frames/0.png", "frames/1.png", **FAST).numpy())
    assert json.loads(protoformer(*pair, "--zoom", "2", "--num-updates", "1", "--json").out)["zoom"] == 2
    expected = model.flow("frames/0.png", "frames/1.png", zoom=2, num_updates=1, precision="auto")
    assert np.array_equal(read_flo("m.flo"), expected.numpy())
    assert json.loads(protoformer("flow", "frames", "--model", "tiny", "--fast", "--json").out)["zoom"] == 0.5
