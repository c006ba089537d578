"""The guide to fine-tuning works as written: own data in, weights out that predict."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.io.formats import write_flo
from protoformer.synthetic.layers import random_scene
from protoformer.training import preflight
from protoformer.training.recipe import read_recipe

Run = Callable[..., Any]
GUIDE = (Path(__file__).parents[2] / "docs" / "fine-tuning.md").read_text()
COMMANDS = {each.split()[2]: each for each in re.findall(r"^\$ (protoformer train .*)$", GUIDE, re.MULTILINE)[:3]}
SMALL = {
    "flow-own": ("data.batch_size=1", "data.crop_size=[64, 96]"),
    "depth-own": ("data.batch_size=1", "data.crop_size=[64, 96]"),
    "track-own": ("data.batch_size=1",),
}


def save_image(path: Path, image: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((255 * image[0]).byte().permute(1, 2, 0).numpy()).save(path)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of the guide with one sample each, in the current folder."""
    monkeypatch.chdir(tmp_path)
    pair = random_scene((96, 128), seed=0).render()
    save_image(Path("pairs/first/0001.png"), pair.first)
    save_image(Path("pairs/second/0001.png"), pair.second)
    Path("pairs/flow").mkdir()
    write_flo("pairs/flow/0001.flo", pair.flow[0].permute(1, 2, 0).numpy())
    save_image(Path("rooms/image/0001.jpg"), pair.first)
    Path("rooms/depth").mkdir()
    slope = np.linspace(1000, 4000, 96)[:, None] * np.ones(128)
    Image.fromarray(slope.astype(np.uint16)).save("rooms/depth/0001.png")
    Path("rooms/camera.txt").write_text("110 110 63.5 47.5\n")
    for number, image in enumerate((pair.first, pair.second)):
        save_image(Path(f"clips/car/{number:04d}.jpg"), image)
    Path("clips/car/groundtruth.txt").write_text("40,30,40,30\n41,30,40,30\n")
    return tmp_path


def command(recipe: str, *options: str) -> list[str]:
    """The command of the guide, for two steps of one small sample."""
    words = shlex.split(COMMANDS[recipe])[1:]
    del words[words.index("--steps") : words.index("--steps") + 2]
    small = [word for each in (*SMALL[recipe], "run.validation_scenes=0") for word in ("--set", each)]
    return [*words, *small, "--set", "data.num_workers=0", "--steps", "2", "--device", "cpu", *options]


def test_the_guide_names_the_three_recipes() -> None:
    assert list(COMMANDS) == ["flow-own", "depth-own", "track-own"]


@pytest.mark.long
def test_the_guide_to_fine_tuning_works(
    data: Path, protoformer: Run, make_video: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for recipe in COMMANDS:
        outcome = protoformer(*command(recipe))
        assert outcome.code == 0 and outcome.out.startswith("finished after 2 steps (steps); wrote runs/")
    packaged = pf.load("flow", "cpu").network.state_dict()
    tuned = pf.load("runs/flow/weights.safetensors", "cpu")
    assert tuned.trained
    changes = [float((value - packaged[name]).abs().max()) for name, value in tuned.network.state_dict().items()]
    assert 0 < max(changes) < 1e-2
    frames = [np.random.default_rng(number).integers(0, 256, (70, 90, 3), dtype=np.uint8) for number in range(3)]
    for name, frame in zip(("frame1.png", "frame2.png", "room.jpg"), frames, strict=True):
        Image.fromarray(frame).save(name)
    make_video(data / "clip.mp4", frames)
    capsys.readouterr()
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(compile(example, "fine-tuning.md", "exec"), {"pf": pf})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and not any("random" in line for line in printed)


def test_settings_that_do_not_fit_end_the_command(
    data: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "free_bytes", lambda _: 3 * 2**29)
    outcome = protoformer(*command("flow-own", "--set", "data.batch_size=64"))
    assert outcome.code == 2 and len(outcome.errors) == 1
    assert "a step of flow-own, 64 samples of 96x64 pixels, takes about " in outcome.errors[0]
    assert re.search(r"of memory and 1.5 GiB are free; add --set data.batch_size=[0-9]+\.$", outcome.errors[0])
    assert not Path("runs/flow").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("flow-own", "--data", "none"), "none"),
        (("flow-own", "--data", "clips"), "a manifest was expected there, or folders first, second and flow"),
        (("flow-own",), "the recipe has no folder for own; set data.datasets.own.root to it"),
        (
            ("flow-synthetic", "--data", "pairs"),
            "the recipe has 0 datasets, and a folder can be given to",
        ),
    ],
)
def test_data_that_cannot_be_used_is_one_sentence(
    data: Path, protoformer: Run, arguments: tuple[str, ...], sentence: str
) -> None:
    outcome = protoformer("train", *arguments, "-o", "runs/x", "--device", "cpu")
    assert outcome.code == 2 and len(outcome.errors) == 1 and sentence in outcome.errors[0]


@pytest.mark.parametrize("recipe", list(COMMANDS))
def test_fine_tuning_starts_with_the_network_of_the_packaged_weights(recipe: str) -> None:
    config = read_recipe(recipe).model.config()
    packaged = pf.load(recipe.removesuffix("-own"), "cpu").network.config
    section = {"flow-own": "flow", "depth-own": "depth", "track-own": "tracking"}[recipe]
    assert config.encoder == packaged.encoder and getattr(config, section) == getattr(packaged, section)
