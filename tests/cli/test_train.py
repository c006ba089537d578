"""`protoformer train`: a run from the first step to a summary, and one sentence for what cannot be."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import protoformer as pf
from protoformer.cli import train as train_command
from protoformer.cli.train import TrainingBar, duration
from protoformer.datasets.clips import write_clips
from protoformer.io.image import read_image
from protoformer.synthetic import generator
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.run_folder import TrainingProgress, read_log

RECIPE = """
description: a toy
model: {preset: tiny, overrides: {flow: {num_train_updates: 2}}}
data: {batch_size: 1, crop_size: [64, 64], families: {objects: 1}}
schedule: {kind: constant, warm_up: 2}
run: {steps: 4, log_every: 2, validate_every: 2, draw_every: 4, validation_scenes: 2}
"""


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe in the current folder, of few textures."""
    monkeypatch.setattr(generator, "procedural_bank", lambda: procedural_bank(side=64, each=2))
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(RECIPE)
    return "toy.yaml"


def run(protoformer, *options: str):
    return protoformer("train", "toy.yaml", "-o", "runs/toy", "--device", "cpu", *options)


def test_a_run_leaves_weights_a_log_curves_and_a_summary(protoformer) -> None:
    write_clips(SyntheticScenes("objects", seed=5, size=(64, 64)), 1, Path("clips"), "sintel", 2)
    outcome = run(protoformer, "--validate", "sintel/train:clips")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == (
        "finished after 4 steps (steps); wrote runs/toy/weights.safetensors, see runs/toy/summary.png\n"
    )
    model = pf.load("runs/toy/weights.safetensors", device="cpu")
    assert model.trained and model.network.config.flow.num_train_updates == 2
    summary = read_image("runs/toy/summary.png")
    assert summary.shape[1] == 1600 and summary.shape[0] > 900  # there are pictures below the curves
    assert len(list(Path("runs/toy/tensorboard").iterdir())) == 1
    assert (Path("runs/toy/checkpoints/step-00000004") / "tensors.safetensors").exists()
    scores = [record for record in read_log(Path("runs/toy/log.jsonl")) if record["event"] == "validation"]
    assert [(record["step"], record["dataset"]) for record in scores] == [
        (2, "synthetic"), (2, "sintel"), (4, "synthetic"), (4, "sintel"),
    ]  # fmt: skip
    assert {"epe", "fl", "px1"} <= scores[0].keys() and {"clean epe", "final epe"} <= scores[1].keys()


def test_a_run_goes_on_tells_what_changed_and_how_it_ended(protoformer) -> None:
    run(protoformer, "--set", "run.validation_scenes=0")
    further = run(
        protoformer, "--set", "run.validation_scenes=0", "--set", "optimizer.lr=1e-4", "--steps", "6", "--json"
    )
    assert further.code == 0
    assert further.notes == [
        "note: optimizer.lr changes from 0.00025 to 0.0001.",
        "note: run.steps changes from 4 to 6.",
    ]
    ended = json.loads(further.out)
    assert (ended["step"], ended["stop_reason"], ended["weights"]) == (6, "steps", "runs/toy/weights.safetensors")
    assert ended["checkpoint"] == "runs/toy/checkpoints/step-00000006" and ended["summary"] == "runs/toy/summary.png"
    over = run(protoformer, "--set", "run.validation_scenes=0", "--fresh", "--steps", "2", "--json")
    assert json.loads(over.out)["step"] == 2 and over.notes == []


def test_steps_that_take_long_without_a_gpu_are_told_before_the_first(protoformer, monkeypatch) -> None:
    def ended(_: object) -> None:
        raise pf.InputError("the first step begins; wait.")

    monkeypatch.setattr(train_command.Trainer, "run", ended)
    large = ("--set", "data.batch_size=8", "--set", "data.crop_size=[256, 384]")
    (note,) = run(protoformer, *large).notes
    assert "without a GPU: a step of toy.yaml, 8 samples of 384x256 pixels, can take minutes; " in note
    assert note.endswith(f" add --set model.preset=tiny {train_command.FAST_SETTINGS}.")
    (note,) = run(protoformer, *large, "--set", "model.init_weights=flow", "--set", "model.preset=fast").notes
    assert note.endswith(f" add {train_command.FAST_SETTINGS}.")
    assert run(protoformer).notes == []


def test_a_run_begins_with_the_weights_it_is_given(protoformer) -> None:
    run(protoformer, "--set", "run.validation_scenes=0")
    given = pf.load("runs/toy/weights.safetensors", device="cpu").network.state_dict()
    options = ("--set", "run.validation_scenes=0", "--set", "model.init_weights=runs/toy/weights.safetensors")
    outcome = protoformer("train", "toy.yaml", "-o", "b", "--device", "cpu", "--steps", "1", *options)
    assert outcome.code == 0
    begun = pf.load("b/weights.safetensors", device="cpu").network.state_dict()
    assert max(float((begun[name] - given[name]).abs().max()) for name in given) < 1e-3
    other = protoformer("train", "toy.yaml", "-o", "c", "--device", "cpu", *options, "--set", "model.preset=fast")
    assert other.code == 2 and "are of another network than the recipe's" in other.err and not Path("c").exists()


def test_weights_to_begin_with_are_not_needed_to_go_on(protoformer) -> None:
    run(protoformer, "--set", "run.validation_scenes=0", "--steps", "1")
    Path("runs/toy/weights.safetensors").rename("given.safetensors")
    options = ("--set", "run.validation_scenes=0", "--set", "model.init_weights=given.safetensors")
    command = ("train", "toy.yaml", "-o", "b", "--device", "cpu", *options)
    assert protoformer(*command, "--steps", "1").code == 0
    Path("given.safetensors").unlink()
    assert protoformer(*command, "--steps", "2").code == 0
    assert "given.safetensors" in protoformer(*command, "--steps", "2", "--fresh").err


def test_minutes_begin_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import time; began = time.monotonic(); time.sleep(0.5); from protoformer.cli import train\n"
        "print(train._process_start() - began)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert -1 < float(told) <= 0.02 or not Path("/proc/self/stat").exists()  # before the first line of the program
    monkeypatch.setattr(train_command, "MAX_LOADING_SECONDS", 0)  # a process that did something else before
    assert train_command._process_start() == pytest.approx(time.monotonic(), abs=0.1)
    monkeypatch.setattr(train_command.Path, "read_text", lambda _: "")  # a system that does not tell
    assert train_command._process_start() == pytest.approx(time.monotonic(), abs=0.1)


def test_too_little_memory_is_one_sentence_that_says_what_takes_less(protoformer, monkeypatch) -> None:
    def out_of_memory(_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(train_command.Trainer, "run", out_of_memory)
    outcome = run(protoformer)
    assert outcome.code == 2 and outcome.err == (
        "protoformer: out of memory; lower data.batch_size, or set model.activation_checkpointing=true, which takes "
        "more time instead.\n"
    )


def test_recipes_are_listed(protoformer) -> None:
    outcome = protoformer("train", "--list")
    assert outcome.code == 0
    assert {"flow-chairs", "flow-synthetic"} <= {line.split()[0] for line in outcome.out.splitlines() if line.strip()}
    assert json.loads(protoformer("train", "--list", "--json").out)["flow-synthetic"]["task"] == "flow"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "a run needs a recipe and a folder"),
        (("toy.yaml",), "a run needs a recipe and a folder"),
        (("flow-synth", "-o", "new"), "nearest known one is 'flow-synthetic'"),
        (("toy.yaml", "-o", "new", "--set", "optimizer.rat=1"), "the nearest one is optimizer.lr"),
        (("toy.yaml", "-o", "new", "--set", "optimizer.lr"), "key=value"),
        (("toy.yaml", "-o", "new", "--minutes", "0"), "run.minutes is 0.0, but it must be null or a number, above 0"),
        (("toy.yaml", "-o", "new", "--device", "tpu"), "the device 'tpu' is not there"),
        (("toy.yaml", "-o", "new", "--validate", "sintel"), "write it such as sintel:data/Sintel"),
        (
            ("toy.yaml", "-o", "new", "--validate", "sintel/val:."),
            "sintel has no split 'val'; choose one of train, test",
        ),
        (("toy.yaml", "-o", "new", "--validate", "lasot:x"), "lasot is a dataset of track, not of flow"),
        (
            ("stabilize-synthetic", "-o", "new", "--validate", "deepstab:."),
            "stabilize is validated on synthetic scenes only",
        ),
        (("toy.yaml", "-o", "new", "--validate", "sintel:nowhere"), "there is no folder nowhere; give the folder of"),
        (("lists.yaml", "-o", "new"), "lists.yaml is not a recipe: line 1: found unhashable key"),
        (("toy.yaml", "-o", "new", "--set", "run.execution=graph", "--device", "cpu"), "needs one process on a GPU"),
        (("toy.yaml", "-o", "new", "--set", "model.init_weights=flow", "--device", "cpu"), "are of another network"),
        (("toy.yaml", "-o", "toy.yaml", "--device", "cpu"), "toy.yaml"),
        (("flow-chairs", "-o", "new", "--device", "cpu"), "root"),
    ],
)
def test_what_cannot_be_is_one_sentence(protoformer, arguments: tuple[str, ...], sentence: str) -> None:
    Path("lists.yaml").write_text("? [a, b]\n: 1\n")
    outcome = protoformer("train", *arguments)
    assert outcome.code == 2 and outcome.out == ""
    assert len(outcome.errors) == 1 and sentence in outcome.errors[0], outcome.err
    assert not Path("new").exists()


def test_a_run_of_another_network_is_not_touched(protoformer) -> None:
    run(protoformer, "--set", "run.validation_scenes=0", "--steps", "2")
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    outcome = run(protoformer, "--set", "model.preset=fast")
    assert outcome.code == 2 and "has model.preset 'tiny', not 'fast'" in outcome.err
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before


def test_the_bar_says_step_loss_error_speed_and_time_left() -> None:
    bar = TrainingBar("toy")
    bar.steps = 200
    progress = TrainingProgress(50, 1.23456, {"epe": 0.5}, 1e-4, 12.34, 60.0, 0.1, 0, 0, None, 3725.0)
    assert bar.format_status(progress) == "step 50 of 200, loss 1.235, EPE 0.50 px, 12.3 pairs/s, 1:02:05 left"
    bar.steps = None
    worse = TrainingProgress(50, None, {}, 1e-4, 12.34, 60.0, 0.1, 50, 2, None, None)
    assert bar.format_status(worse) == "step 50, 12.3 pairs/s, 50 steps and 2 samples skipped"
    assert duration(59.6) == "0:01:00"
