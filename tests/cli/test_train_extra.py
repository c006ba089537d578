"""Inference needs none of the packages that are for training, and training says which one it lacks."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from protoformer.errors import install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EVERY = [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]

BLOCKED = """
import sys
for name in ("lightning", "lightning.fabric", "lightning_fabric", "pytorch_lightning", "torchmetrics", "tensorboard"):
    sys.modules[name] = None
from protoformer.cli.main import app
for command in sys.stdin.read().splitlines():
    try:
        app(command.split("|"), standalone_mode=False)
    except SystemExit as error:
        assert not error.code, command
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path]) -> Path:
    """Two images, a.png and b.png, and a clip of a camera that moves, clip.mp4."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    texture = np.asarray(Image.fromarray(noise).resize((120, 72), Image.Resampling.BICUBIC))
    frames = [np.ascontiguousarray(texture[:64, shift : shift + 96]) for shift in range(4)]
    for name, frame in zip(("a.png", "b.png"), frames, strict=False):
        Image.fromarray(frame).save(tmp_path / name)
    make_video(tmp_path / "clip.mp4", frames)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_inference_runs_without_the_packages_for_training(folder: Path) -> None:
    commands = (
        "flow a.png b.png -o flow.flo --num-updates 1 --zoom 1 --device cpu",
        "flow clip.mp4 -o flow.mp4 --num-updates 1 --zoom 1 --device cpu",
        "depth a.png -o depth.npy --device cpu",
        "track clip.mp4 --box 20,20,30,30 -o track.mp4 --device cpu",
        "stabilize clip.mp4 -o stable.mp4 --device cpu",
        "explain a.png b.png -o explained --device cpu",
    )
    text = "\n".join(command.replace(" ", "|") for command in commands)
    ended = subprocess.run([sys.executable, "-c", BLOCKED], input=text, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    written = ("flow.flo", "flow.mp4", "depth.npy", "track.mp4", "stable.mp4", "explained/index.html")
    assert all((folder / name).is_file() for name in written)


@pytest.mark.parametrize("command", ["train|flow-synthetic|-o|run", "ablate|components|--task|flow|--steps|1|-o|run"])
def test_training_names_the_extra_that_it_lacks_and_writes_nothing(folder: Path, command: str) -> None:
    program = BLOCKED.replace("from protoformer.cli.main import app", "from protoformer.cli.main import main")
    program = program.partition("for command in")[0] + f"sys.argv = ['protoformer', *{command.split('|')!r}]\nmain()\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].endswith(f"{install_command('train')}.")
    assert not [path for path in (folder / "run").rglob("*") if path.is_file()]


def test_dependencies_have_upper_bounds_and_leave_out_malicious_releases() -> None:
    for requirement in EVERY:
        assert "<" in requirement or requirement.startswith("protoformer["), requirement
    names = {re.split(r"[\[<>=!]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert not names & {"lightning", "pytorch-lightning", "tensorboard"}
    train = [each for each in EVERY if "lightning" in each]
    assert len(train) == 2 and all("!=2.6.2" in each and "!=2.6.3" in each for each in train)
    (all_of_them,) = (each for each in EXTRAS["dev"] if each.startswith("protoformer["))
    assert set(re.findall(r"\w+", all_of_them)) >= EXTRAS.keys() - {"dev", "docs", "web", "webtest"}


def test_the_pinned_versions_are_within_the_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    for requirement in map(Requirement, EVERY):
        if requirement.name != "protoformer":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
