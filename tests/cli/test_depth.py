"""`protoformer depth` of images: files that hold what the library says, or one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import protoformer as pf
from protoformer.cli import demo as demo_command
from protoformer.io.formats import read_kitti_depth, read_mm_depth
from protoformer.io.image import read_image

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Run = Callable[..., Any]
QUICK = ("--model", "tiny", "--num-updates", "1", "--precision", "full")


def done(outcome: Any) -> Any:
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    return outcome


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_image_becomes_every_kind_of_file(folder: Path, protoformer: Run) -> None:
    wanted = ("-o", "d.png", "-o", "d.npy", "-o", "d.ply")
    outcome = done(protoformer("depth", "a.png", *QUICK, *wanted, "--focal", "25", "--format", "kitti"))
    assert outcome.out.startswith("30x20 pixels, ") and "focal length 25.0 px (given); wrote d.png" in outcome.out
    with pytest.warns(pf.UntrainedWarning):
        expected = pf.load("tiny", task="depth").depth("a.png", focal=25.0, num_updates=1, precision="full")
    assert np.array_equal(np.load("d.npy"), expected.numpy())
    np.testing.assert_allclose(read_kitti_depth("d.png").values, expected.numpy(), atol=1 / 256)
    assert Path("d.ply").read_bytes().startswith(b"ply")
    assert names(folder) == ["a.png", "b.png", "d.npy", "d.ply", "d.png"]


def test_colors_are_the_default_and_can_be_set(folder: Path, protoformer: Run) -> None:
    done(protoformer("depth", "a.png", *QUICK, "--colors", "0.5,50"))
    with pytest.warns(pf.UntrainedWarning):
        expected = pf.load("tiny", task="depth").depth("a.png", num_updates=1, precision="full")
    shown = np.rint(read_image("depth.png") * 255)
    assert np.array_equal(shown, np.asarray(expected.image((0.5, 50.0))))


def test_several_images_go_to_a_folder(folder: Path, protoformer: Run) -> None:
    arguments = ("-o", "out", "--format", "mm", "--ply", "--save-npy", "numbers", "--range", "indoor", "--json")
    outcome = done(protoformer("depth", "a.png", "b.png", *QUICK, *arguments))
    summaries = json.loads(outcome.out)["images"]
    assert [each["image"] for each in summaries] == ["a.png", "b.png"]
    assert summaries[0]["written"] == ["out/a.png", "out/a.ply", "numbers/a.npy"]
    assert summaries[0]["range_m"] == [0.1, 10] and summaries[0]["camera"] == "assumed"
    np.testing.assert_allclose(read_mm_depth("out/b.png").values, np.load("numbers/b.npy"), atol=5.1e-4)


def test_what_millimeters_cannot_hold_is_noted(folder: Path, protoformer: Run) -> None:
    outcome = done(protoformer("depth", "a.png", *QUICK, "--format", "mm", "--range", "70,80"))
    assert any("600 pixels of depth.png lie beyond 65.535 m and have no depth" in note for note in outcome.notes)
    assert not read_mm_depth("depth.png").valid.any()


def test_what_the_steps_of_kitti_cannot_hold_is_noted(folder: Path, protoformer: Run) -> None:
    outcome = done(protoformer("depth", "a.png", *QUICK, "--format", "kitti", "--range", "256,300"))
    assert any("600 pixels of depth.png lie beyond 255.996 m and have no depth" in each for each in outcome.notes)


def test_a_folder_may_have_a_dot_in_its_name(folder: Path, protoformer: Run) -> None:
    Path("out.v1").mkdir()
    done(protoformer("depth", "a.png", "b.png", *QUICK, "-o", "out.v1"))
    assert names(Path("out.v1")) == ["a.png", "b.png"]


def refused(protoformer: Run, folder: Path, *arguments: str) -> str:
    """Run a command that must be refused; return its one sentence."""
    before = names(folder)
    outcome = protoformer("depth", *arguments)
    assert outcome.code == 2 and outcome.out == "" and "Traceback" not in outcome.err
    assert names(folder) == before
    (sentence,) = outcome.errors
    assert sentence.startswith("protoformer: ") and "; " in sentence and sentence.endswith(".")
    return str(sentence.removeprefix("protoformer: "))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("text.png",), "text.png is not an image of a known format"),
        (("empty.png",), "empty.png is an empty file"),
        (("none.png",), "none.png does not exist"),
        (("a.png", "none.png"), "none.png does not exist"),
        (("a.png", "text.png"), "text.png is not an image of a known format"),
        (("a.png", "--focal", "-3"), "a focal length is a number of pixels over 0, not -3"),
        (("a.png", "--focal", "nan"), "a focal length is a number of pixels over 0, not nan"),
        (("a.png", "--fov", "200"), "a field of view is between 0 and 180 degrees, not 200"),
        (("a.png", "--fov", "1e-300"), "no camera has a field of view of 1e-300 degrees; give one from 0.01 to 179"),
        (("a.png", "--focal", "1e300"), "no camera has a focal length of 1e+300 pixels; give one from 0.001 to 1e+08"),
        (("a.png", "--range", "1e300,1e301"), "a range cannot go from 1e+300 to 1e+301 m; give meters from 1e-06"),
        (("a.png", "--fov", "60", "--focal", "9"), "the camera is given by focal and by fov"),
        (("a.png", "--range", "outdoor"), "there is no range 'outdoor'; the nearest one is 'indoor'"),
        (("a.png", "--range", "5,1"), "a range cannot go from 5 to 1 m"),
        (("a.png", "--range", "near,far"), "--range is 'near,far', but it takes NEAR,FAR in meters"),
        (("a.png", "--colors", "3"), "--colors is '3', but it takes NEAR,FAR in meters"),
        (("a.png", "--format", "exr"), "there is no png format 'exr'"),
        (("a.png", "-o", "d.jpg"), "depth cannot be written to d.jpg by that suffix"),
        (("a.png", "-o", "nowhere/d.png"), "the folder nowhere does not exist"),
        (("a.png", "-o", "a.png"), "the output a.png is also an input and would be lost"),
        (("a.png", "b.png", "-o", "."), "the output a.png is also an input and would be lost"),
        (("a.png", "b.png", "-o", "out.png"), "out.png is not a folder"),
        (("a.png", "b.png", "-o", "x", "-o", "y"), "the depths of several images go to one folder"),
        (("a.png", "a.png"), "an image is given twice"),
        (("a.png", "--side-by-side"), "--side-by-side is for videos; leave it out for images"),
        (("a.png", "--frame-step", "2"), "--frame-step is for videos"),
        (("a.png", "--num-updates", "0"), "0 updates cannot be run"),
        (("a.png", "--precision", "double"), "there is no precision 'double'"),
        (("*.jpg",), "no file matches *.jpg"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, protoformer: Run, arguments: tuple[str, ...], sentence: str) -> None:
    Path("text.png").write_text("hello")
    Path("empty.png").touch()
    assert refused(protoformer, folder, *arguments, "--model", "tiny").startswith(sentence)


def test_weights_of_another_task_are_refused(folder: Path, protoformer: Run) -> None:
    with pytest.warns(pf.UntrainedWarning):
        pf.load("tiny").save("flow.safetensors")
    sentence = refused(protoformer, folder, "a.png", "--model", "flow.safetensors")
    assert sentence == "flow.safetensors is a model for flow, not for depth; give one for depth."


def test_two_images_of_one_name_are_refused(folder: Path, protoformer: Run) -> None:
    Path("more").mkdir()
    Image.new("RGB", (30, 20)).save("more/a.png")
    sentence = refused(protoformer, folder, "a.png", "more/a.png", "--model", "tiny")
    assert sentence.startswith("depth/a.png would be written twice; give images of different names")


def test_the_demonstration_shows_depth_where_there_are_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "packaged_weights", lambda _: None)
    assert demo_command._depth_sections() == ()
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", "cpu", task="depth")
    monkeypatch.setattr(demo_command, "packaged_weights", lambda task: Path(f"{task}.safetensors"))
    monkeypatch.setattr(demo_command, "load", lambda _: model)
    (section,) = demo_command._depth_sections()
    assert section.title == "Synthetic: depth" and len(section.figures) == 5 and "mean relative error" in section.text
