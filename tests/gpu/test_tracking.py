"""Tracking on a GPU: nothing waits for it, a recorded step is the step itself, and boxes are those of a CPU."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch import Tensor

from protoformer.inference import TrackModel
from protoformer.inference.track_memory import EVERY
from protoformer.model import build_track, preset
from protoformer.training import Recipe, TrackTask
from protoformer.training.graph import WARM_UP
from protoformer.training.recipe import DataSection, ModelSection, RunSection, ScheduleSection
from protoformer.training.track_sources import WorldPairs
from protoformer.world import World, procedural_bank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECIPE = Recipe(
    task="track",
    model=ModelSection("tiny", {"search_side": 64, "reference_side": 48}),
    data=DataSection(batch=4, crop=(48, 64), families={"chase": 1.0}),
    schedule=ScheduleSection("constant", warm_up=4),
)


def batches(count: int) -> list[dict[str, Tensor]]:
    task = TrackTask(RECIPE)
    source = task.source(0, 1, torch.device("cuda"), pytest.fail).batches(0)
    return [task.tensors(next(source)) for _ in range(count)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_steps_are_the_steps_themselves(
    precision: str, recorded_is_eager: Callable[[Recipe, list[dict[str, Tensor]]], None]
) -> None:
    recipe = dataclasses.replace(RECIPE, run=RunSection(precision=precision))
    recorded_is_eager(recipe, batches(WARM_UP + 4))


def test_the_loss_waits_for_nothing(waiting_refused: Callable[[], AbstractContextManager[None]]) -> None:
    task, (tensors,) = TrackTask(RECIPE), batches(1)
    network = task.build().cuda().train()
    task.loss(network, tensors, torch.ones((), device="cuda")).total.backward()  # kernels are made
    torch.cuda.synchronize()
    with waiting_refused():
        weight = task.weight(tensors).float().clamp_min(1)
        task.loss(network, tensors, weight).total.backward()


@pytest.mark.parametrize("family", ["chase", "objects"])
def test_sampling_waits_for_nothing(family: str, waiting_refused: Callable[[], AbstractContextManager[None]]) -> None:
    world = World(family, seed=5, size=(48, 64), bank=procedural_bank(64, 3)).on("cuda")
    sample = WorldPairs(RECIPE.model.config())
    for _ in range(2):  # the first time kernels are compiled
        sample(world.renderer([3, 4, 5, 6], "cuda"), "final")
    with waiting_refused():
        sample(world.renderer([3, 4, 5, 6], "cuda"), "final")


def test_trackers_of_one_model_share_a_graph() -> None:
    network = build_track(preset("tiny", search_side=64, reference_side=48))
    model = TrackModel(network, False, torch.device("cuda"))
    frames = np.random.default_rng(0).integers(0, 256, (6, 60, 90, 3), dtype=np.uint8)
    first, second = (model.track(frames, (20, 12, 16, 14))[0] for _ in range(2))
    assert torch.allclose(first.boxes, second.boxes, atol=0.1)
    (engine,) = model._engines.values()
    assert len(engine._locate._recorded) == 1


def test_targets_are_where_a_cpu_finds_them() -> None:
    """Sure of whatever is found, so that boxes move and targets are looked at again."""
    torch.manual_seed(0)
    network = build_track(preset("tiny", search_side=64, reference_side=48))
    torch.nn.init.constant_(network.score.inside.say.bias, 5.0)
    frames = np.random.default_rng(0).integers(0, 256, (EVERY + 3, 60, 90, 3), dtype=np.uint8)
    boxes = [(20, 12, 16, 14), (50, 30, 10, 18)]
    found = [
        TrackModel(network, False, torch.device(device)).track(frames, boxes, precision="full")
        for device in ("cpu", "cuda")
    ]
    for by_cpu, by_gpu in zip(*found, strict=True):
        assert not by_cpu.lost.any() and torch.equal(by_cpu.lost, by_gpu.lost)
        assert torch.allclose(by_cpu.boxes, by_gpu.boxes, atol=0.1)
        assert torch.allclose(by_cpu.scores, by_gpu.scores, atol=1e-2)
