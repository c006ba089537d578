"""Stabilization on a GPU: no synchronization, graphed steps equal eager steps, and windows equal those on a CPU."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from protoformer.stabilization.data import SyntheticWindows
from protoformer.stabilization.training import StabilizeTask
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.engine import WARM_UP
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECIPE = Recipe(
    task="stabilize",
    model=ModelSection("tiny", {"stabilization": {"field_window": 6, "grid_window": 6}}),
    data=DataSection(batch_size=2, crop_size=(48, 64), families={"handheld": 1.0}),
    schedule=ScheduleSection("constant", warm_up=4),
)


def batches(count: int) -> list[dict[str, Tensor]]:
    task = StabilizeTask(RECIPE)
    source = task.source(0, 1, torch.device("cuda"), pytest.fail).batches(0)
    return [task.tensors(next(source)) for _ in range(count)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_graphed_steps_equal_eager_steps(
    precision: str, graph_equals_eager: Callable[[Recipe, list[dict[str, Tensor]]], None]
) -> None:
    recipe = dataclasses.replace(RECIPE, run=RunSection(precision=precision))
    graph_equals_eager(recipe, batches(WARM_UP + 4))


@pytest.mark.parametrize("regressor", ["field", "grid"])
def test_the_loss_does_not_synchronize(
    regressor: str, sync_refused: Callable[[], AbstractContextManager[None]]
) -> None:
    task = StabilizeTask(RECIPE.changed([f"model.overrides.stabilization.regressor={regressor}"]))
    tensors = task.tensors(next(task.source(0, 1, torch.device("cuda"), pytest.fail).batches(0)))
    network = task.build().cuda().train()
    task.loss(network, tensors, torch.ones((), device="cuda")).total.backward()  # compiles kernels
    torch.cuda.synchronize()
    with sync_refused():
        task.loss(network, tensors, task.weight(tensors)).total.backward()


def test_sampling_does_not_synchronize(sync_refused: Callable[[], AbstractContextManager[None]]) -> None:
    scenes = SyntheticScenes("handheld", seed=5, size=(48, 64), bank=procedural_bank(64, 3)).on("cuda")
    sample = SyntheticWindows(RECIPE.model.config())
    for _ in range(2):  # the first run compiles kernels
        sample(scenes.renderer([3, 4], "cuda"), "final")
    with sync_refused():
        sample(scenes.renderer([3, 4], "cuda"), "final")


def test_windows_equal_those_on_a_cpu() -> None:
    scenes = SyntheticScenes("handheld", seed=5, size=(48, 64), bank=procedural_bank(64, 3))
    sample = SyntheticWindows(RECIPE.model.config())
    on_cpu, on_gpu = (sample(scenes.renderer([3, 4], device), "clean") for device in ("cpu", "cuda"))
    assert torch.allclose(on_cpu.warp, on_gpu.warp.cpu(), atol=0.01)
    valid = (on_cpu.confidence > 0).expand_as(on_cpu.displacements) & (on_gpu.confidence.cpu() > 0)
    assert (
        torch.allclose(on_cpu.displacements[valid], on_gpu.displacements.cpu()[valid], atol=0.05)
        and valid.float().mean() > 0.5
    )
