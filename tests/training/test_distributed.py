"""Several processes train as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError
from protoformer.training import flow_loss
from protoformer.training.distributed import launched
from protoformer.training.log import read_log
from protoformer.training.losses import counted_pixels

SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, {tests!r})
from conftest import Lines, Noises, Told

import torch
from protoformer.metrics import FlowMetric
from protoformer.training.task import Validated


def judge(network):
    metric = FlowMetric()  # which adds up over processes by itself
    metric.update(torch.ones(1, 2, 4, 4), torch.zeros(1, 2, 4, 4), torch.ones(1, 1, 4, 4, dtype=torch.bool))
    return Validated("judge", {{"epe": metric.compute().epe}})


folder = Path(sys.argv[1])
for name, runs in (("lines", Lines()), ("noises", Noises())):
    told = Told()
    # Some biases have no effect and a gradient of rounding errors alone, which Adam would blow up to whole steps.
    settings = ["data.batch=4", "optimizer.rate=1e-3", "optimizer.epsilon=1e-5", "schedule.kind=constant"]
    for steps in (3, 5):  # the second go goes on with what the first one saved
        recipe = runs.recipe(steps=steps, log_every=5, validate_every=2).changed(settings)
        runs.trainer(folder / name, recipe, observers=(told,), validators=(judge,)).run()
    if told.heard:
        progress = told.of("logged")[-1]
        print(name, progress.loss, *progress.metrics.values())
"""


def run(script: Path, folder: Path, *launcher: str) -> dict[str, list[float]]:
    """Run it; return the loss and metrics that it logged, by the kind of run."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    command = [sys.executable, *launcher, str(script), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = (line.split() for line in ended.stdout.splitlines() if line.startswith(("lines", "noises")))
    return {name: [float(value) for value in values] for name, *values in figures}


def test_two_processes_end_with_the_weights_of_one(lines, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    alone = run(script, tmp_path / "one")
    together = run(script, tmp_path / "two", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    for kind in ("lines", "noises"):
        assert together[kind] == pytest.approx(alone[kind], rel=1e-4)
        judged = [record for record in read_log(tmp_path / "two" / kind / "log.jsonl") if record.get("on") == "judge"]
        assert [(record["step"], record["epe"]) for record in judged] == [
            (step, pytest.approx(2**0.5)) for step in (2, 3, 4, 5)
        ]
        one, two = (lines.last(tmp_path / count / kind) for count in ("one", "two"))
        assert one.tensors.keys() == two.tensors.keys()
        for name, tensor in one.tensors.items():
            if name.startswith(("model.", "ema.")):
                assert (tensor - two.tensors[name]).abs().max() < 1e-5, name
        moments = [tensor for name, tensor in one.tensors.items() if name.endswith("exp_avg_sq")]
        assert max(float(moment.max()) for moment in moments) > 0  # something was learned


def test_the_mean_of_the_losses_of_parts_is_the_loss_of_the_whole() -> None:
    from protoformer.model import FlowPrediction

    torch.manual_seed(0)
    flow, estimate = 5 * torch.randn(2, 4, 2, 8, 8)
    valid = torch.rand(4, 1, 8, 8) < torch.tensor([0.1, 0.3, 0.8, 0.9]).view(-1, 1, 1, 1)
    scale = torch.zeros(4, 1, 8, 8)

    def loss(part: slice, pixels: torch.Tensor | None):
        prediction = FlowPrediction((estimate[part],), (scale[part],), ())
        return flow_loss(prediction, flow[part], valid[part], pixels=pixels)

    whole, count = loss(slice(0, 4), None), counted_pixels(flow, valid).sum()
    halves = [loss(part, count / 2) for part in (slice(0, 2), slice(2, 4))]
    for name in ("total", "distance", "surprise", "epe"):
        mean = sum(getattr(half, name) for half in halves) / 2
        assert torch.allclose(mean, getattr(whole, name), rtol=1e-5)


def test_without_lightning_one_sentence_says_what_is_missing(monkeypatch) -> None:
    for name in ("lightning.fabric", "lightning_fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install lightning"):
        launched("cpu")
