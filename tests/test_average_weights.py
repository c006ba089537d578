"""The program that averages the weights of two networks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import protoformer as pf

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "average_weights.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_every_weight_is_a_weighted_mean(tmp_path: Path) -> None:
    first, second = (pf.load("tiny", device="cpu", task="flow") for _ in range(2))
    with torch.no_grad():
        for parameter in second.network.parameters():
            parameter.add_(1.0)
    first.save(tmp_path / "first.safetensors")
    second.save(tmp_path / "second.safetensors")
    paths = (tmp_path / "first.safetensors", tmp_path / "second.safetensors")
    result = run(*paths, "--fraction", 0.25, "-o", tmp_path / "mean.safetensors")
    assert result.returncode == 0, result.stderr
    mean = pf.load(tmp_path / "mean.safetensors", device="cpu").network.state_dict()
    for name, tensor in first.network.named_parameters():
        expected = 0.75 * tensor + 0.25 * second.network.state_dict()[name]
        assert torch.allclose(mean[name], expected, atol=1e-5), name


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_networks_of_different_tasks_are_refused(tmp_path: Path) -> None:
    for task in ("flow", "depth"):
        pf.load("tiny", device="cpu", task=task).save(tmp_path / f"{task}.safetensors")
    result = run(tmp_path / "flow.safetensors", tmp_path / "depth.safetensors", "-o", tmp_path / "mean.safetensors")
    assert result.returncode != 0 and "differ in their task" in result.stderr
