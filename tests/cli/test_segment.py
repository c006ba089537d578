"""`protoformer segment` and `protoformer evaluate segment`, with the smallest network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import protoformer as pf
from protoformer.segmentation.result import decode_rle

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")
Run = Callable[..., Any]
MODEL = ("--model", "tiny", "--device", "cpu")


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path]) -> Path:
    """A clip of 3 frames of 80x64 pixels in the current folder."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (3, 64, 80, 3), dtype=np.uint8)
    return make_video(tmp_path / "clip.mp4", list(images))


def test_a_clip_becomes_masks_json_and_overlay(clip: Path, protoformer: Run) -> None:
    outcome = protoformer("segment", clip.name, *MODEL, "-o", "masks", "-o", "m.json", "-o", "o.mp4", "--json")
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    summary = json.loads(outcome.out)
    assert (summary["frames"], summary["trained"]) == (3, False)
    assert summary["written"] == ["masks", "m.json", "o.mp4"]
    masks = [np.array(Image.open(path)) for path in sorted(Path("masks").iterdir())]
    frames = json.loads(Path("m.json").read_text())["frames"]
    assert len(masks) == len(frames) == 3 == pf.open_video("o.mp4").count_frames()
    for mask, frame in zip(masks, frames, strict=True):
        assert {each["id"] for each in frame["objects"]} == set(np.unique(mask).tolist()) - {0}
        for each in frame["objects"]:
            assert np.array_equal(decode_rle(each["segmentation"]), mask == each["id"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "a.mp4", "-o", "b.mp4"), "a clip becomes one video"),
        (("-o", "masks", "-o", "masks"), "an output is given twice"),
        (("-o", "masks.txt"), "neither a video, a .json file nor a folder"),
        (("-o", "clip.mp4"), "would be lost"),
        (("--method", "magic"), "there is no method 'magic'; choose one of model, threshold"),
        (("--start", "9"), "no frame in this span"),
    ],
)
def test_bad_options_are_one_sentence(clip: Path, protoformer: Run, arguments: tuple[str, ...], message: str) -> None:
    outcome = protoformer("segment", clip.name, *MODEL, *arguments)
    assert outcome.code == 2 and len(outcome.errors) == 1 and message in outcome.err
    assert [path.name for path in Path().iterdir() if path.is_file()] == ["clip.mp4"]


def test_masks_do_not_overwrite_the_images_of_the_input(clip: Path, protoformer: Run) -> None:
    images = Path("images")
    images.mkdir()
    for index, frame in enumerate(pf.open_video(clip).frames()):
        Image.fromarray(frame.image).save(images / f"{index:06d}.png")
    before = {path: path.read_bytes() for path in images.iterdir()}
    outcome = protoformer("segment", "images", *MODEL, "-o", "images")
    assert outcome.code == 2 and "is also the folder of the input" in outcome.err
    with pytest.raises(pf.InputError, match="is also the folder of the input"):
        pf.load("tiny", task="segment").segment("images").save("images")
    assert {path: path.read_bytes() for path in images.iterdir()} == before


def test_a_dataset_is_evaluated_and_its_masks_are_kept(folder: Path, protoformer: Run) -> None:
    random = np.random.default_rng(0)
    for kind, suffix in (("JPEGImages", "jpg"), ("Annotations", "png")):
        (folder / "davis" / kind / "480p" / "bear").mkdir(parents=True)
        for number in range(3):
            image = Image.fromarray(random.integers(0, 2, (64, 80), dtype=np.uint8) * 255)
            image.save(folder / "davis" / kind / "480p" / "bear" / f"{number:05d}.{suffix}")
    methods = ("--method", "model", "--method", "threshold")
    outcome = protoformer("evaluate", "segment", "--root", "davis", *methods, *MODEL, "-o", "scores")
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    assert "bear" in outcome.out and "FST" in outcome.out
    rows = Path("scores/sequences.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["bear", "model"], ["bear", "threshold"]]
    assert len(list(Path("scores/masks/model/bear").iterdir())) == 3


def test_evaluation_needs_a_root_unless_it_is_synthetic(protoformer: Run) -> None:
    assert "give it as --root" in protoformer("evaluate", "segment").err
    assert (
        "leave it out for synthetic" in protoformer("evaluate", "segment", "--dataset", "synthetic", "--root", "x").err
    )
    assert "not of segment" in protoformer("evaluate", "segment", "--dataset", "otb", "--root", "x").err
