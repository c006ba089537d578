"""Several processes train as one does."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError, install_command
from protoformer.flow.losses import flow_loss, valid_pixels
from protoformer.training.distributed import launch
from protoformer.training.run_folder import read_log

START = """
import sys
from pathlib import Path

sys.path.insert(0, {tests!r})
from training_fixtures import Depths, Lines, Noises, RecordingObserver

folder = Path(sys.argv[1])
"""
TRAINING = """
import torch
from protoformer.flow.evaluation import FlowMetric
from protoformer.training.task import ValidationResult


def judge(network):
    metric = FlowMetric()  # which adds up over processes by itself
    metric.update(torch.ones(1, 2, 4, 4), torch.zeros(1, 2, 4, 4), torch.ones(1, 1, 4, 4, dtype=torch.bool))
    return ValidationResult("judge", {{"epe": metric.compute().epe}})


for name, runs in (("lines", Lines()), ("noises", Noises()), ("depths", Depths())):
    recorder = RecordingObserver()
    # Where a gradient is of rounding errors alone, Adam would blow them up to whole steps. Steps are short, since on
    # noise a network is chaotic: after long ones, the order of a sum decides on which side of a ReLU a number falls.
    settings = ["data.batch_size=4", "optimizer.lr=1e-4", "optimizer.eps=1e-5", "schedule.kind=constant"]
    for steps in (3, 5):  # the second go goes on with what the first one saved
        recipe = runs.recipe(steps=steps, log_every=5, validate_every=2).changed(settings)
        runs.trainer(folder / name, recipe, observers=(recorder,), validators=(judge,)).run()
    if recorder.events:
        progress = recorder.of("on_log")[-1]
        print(name, progress.loss, *progress.metrics.values())
"""
REFUSALS = """
import os

from protoformer.errors import InputError
from protoformer.training.prefetch import BrokenSamples

rank, lines = int(os.environ["RANK"]), Lines()


def attempted(what, folder, budget=5, lost=None, settings=()):
    # Process 1 loses its data at a batch, and each process has a sample that it cannot read.
    recipe = lines.recipe(steps=6, log_every=2, checkpoint_every=0).changed(settings)
    recorder = RecordingObserver()
    trainer = lines.trainer(folder, recipe, observers=(recorder,))
    plain = trainer.task.source

    def source(*arguments):
        opened = plain(*arguments)
        opened.broken = BrokenSamples(budget, arguments[-1])
        batches = opened.batches

        def those(start):
            for number, batch in enumerate(batches(start), start):
                if rank == 1 and number == lost:
                    raise InputError("the data are gone.")
                opened.broken.add({{"ab"[rank]: "it is torn"}})
                yield batch

        opened.batches = those
        return opened

    trainer.task.source = source
    try:
        how = f"step {{trainer.run().step}}"
    except InputError as error:
        how = str(error)
    except SystemExit as error:
        how = f"exit {{error.code}}"
    heard = [progress.broken_samples for progress in recorder.of("on_log")], sorted(recorder.of("on_message"))
    with (folder.parent / f"refusals-{{rank}}.txt").open("a") as file:
        print(what, how, *heard, sep="|", file=file)


attempted("data", folder / "lost", lost=3)
attempted("other network", folder / "lost", settings=["model.preset=fast"])
attempted("broken", folder / "broken")
attempted("too many", folder / "many", budget=1)
"""


TWICE = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def written(folder: Path, script: str) -> Path:
    path = folder / "train.py"
    path.write_text(script.format(tests=str(Path(__file__).parents[1] / "support")))
    return path


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two processes, started once for all tests, train and refuse: where they wrote, and what they printed."""
    folder = tmp_path_factory.mktemp("together")
    script = written(folder, START + TRAINING + REFUSALS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    command = [sys.executable, *TWICE, str(script), str(folder / "two")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder, ended.stdout


def figures(printed: str) -> dict[str, list[float]]:
    """The loss and metrics that were logged, by the kind of run."""
    found = (line.split() for line in printed.splitlines() if line.startswith(("lines", "noises", "depths")))
    return {name: [float(value) for value in values] for name, *values in found}


def refusals(folder: Path) -> dict[tuple[str, str], list[str]]:
    """How attempts ended, by what was attempted and the process."""
    found = {}
    for rank in "01":
        for line in (folder / f"refusals-{rank}.txt").read_text().splitlines():
            what, *rest = line.split("|")
            found[what, rank] = rest
    return found


def test_an_error_in_one_process_ends_both(lines, together: tuple[Path, str]) -> None:
    folder = together[0] / "two"
    found = refusals(folder)
    assert found["data", "1"][0] == "the data are gone." and found["data", "0"][0] == "exit 2"
    assert lines.last(folder / "lost").step == 3  # saved, though not by the one that refused
    assert "has model.preset 'tiny', not 'fast'" in found["other network", "0"][0]
    assert found["other network", "1"][0] == "exit 2"
    sentences = "['a is left out: it is torn.', 'b is left out: it is torn.']"
    assert found["broken", "0"] == ["step 6", "[2, 2, 2]", sentences]
    assert found["broken", "1"] == ["step 6", "[]", "[]"]
    assert lines.last(folder / "broken").record["broken"] == dict.fromkeys("ab", "it is torn")
    assert found["too many", "0"][0].startswith("2 samples cannot be read, and data.max_broken_samples allows 1: ")
    assert found["too many", "1"][0] == "exit 2"
    assert lines.last(folder / "many").step == 2


def test_two_processes_end_with_the_weights_of_one(
    lines,
    together: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, printed = together
    script = written(tmp_path, START + TRAINING)
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "one")])
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the script changes
    runpy.run_path(str(script))
    alone, both = figures(capsys.readouterr().out), figures(printed)
    for kind in ("lines", "noises", "depths"):
        assert both[kind] == pytest.approx(alone[kind], rel=1e-4)
        judged = [
            record for record in read_log(folder / "two" / kind / "log.jsonl") if record.get("dataset") == "judge"
        ]
        assert [(record["step"], record["epe"]) for record in judged] == [
            (step, pytest.approx(2**0.5)) for step in (2, 3, 4, 5)
        ]
        one, two = lines.last(tmp_path / "one" / kind), lines.last(folder / "two" / kind)
        assert one.tensors.keys() == two.tensors.keys()
        for name, tensor in one.tensors.items():
            if name.startswith(("model.", "ema.")):
                assert (tensor - two.tensors[name]).abs().max() < 1e-5, name
        moments = [tensor for name, tensor in one.tensors.items() if name.endswith("exp_avg_sq")]
        assert max(float(moment.max()) for moment in moments) > 0  # something was learned


def test_the_mean_of_the_losses_of_parts_is_the_loss_of_the_whole() -> None:
    from protoformer.models.heads.flow import FlowPrediction

    torch.manual_seed(0)
    flow, estimate = 5 * torch.randn(2, 4, 2, 8, 8)
    valid = torch.rand(4, 1, 8, 8) < torch.tensor([0.1, 0.3, 0.8, 0.9]).view(-1, 1, 1, 1)
    scale = torch.zeros(4, 1, 8, 8)

    def loss(part: slice, pixels: torch.Tensor | None):
        prediction = FlowPrediction((estimate[part],), (scale[part],), ())
        return flow_loss(prediction, flow[part], valid[part], pixels=pixels)

    whole, count = loss(slice(0, 4), None), valid_pixels(flow, valid).sum()
    halves = [loss(part, count / 2) for part in (slice(0, 2), slice(2, 4))]
    for name in ("total", "distance", "nll", "epe"):
        mean = sum(getattr(half, name) for half in halves) / 2
        assert torch.allclose(mean, getattr(whole, name), rtol=1e-5)


def test_without_lightning_one_sentence_says_what_is_missing(monkeypatch) -> None:
    for name in ("lightning.fabric", "lightning_fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=re.escape(install_command("train"))):
        launch("cpu")
