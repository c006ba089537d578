"""Tracking on a GPU: nothing waits for it, a recorded step is the step itself, and boxes are those of a CPU."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protoformer.models import runtime as graphs
from protoformer.models.config import preset
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.tracking.data import SyntheticPairs
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.tracking.result import TrackedBox
from protoformer.tracking.tracker import UPDATE_INTERVAL
from protoformer.tracking.training import TrackTask
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection
from protoformer.training.step import WARM_UP

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECIPE = Recipe(
    task="track",
    model=ModelSection("tiny", {"tracking": {"search_size": 64, "template_size": 48}}),
    data=DataSection(batch_size=4, crop_size=(48, 64), families={"chase": 1.0}),
    schedule=ScheduleSection("constant", warm_up=4),
)


def batches(count: int) -> list[dict[str, Tensor]]:
    task = TrackTask(RECIPE)
    source = task.source(0, 1, torch.device("cuda"), pytest.fail).batches(0)
    return [task.tensors(next(source)) for _ in range(count)]


@gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_steps_are_the_steps_themselves(
    precision: str, recorded_is_eager: Callable[[Recipe, list[dict[str, Tensor]]], None]
) -> None:
    recipe = dataclasses.replace(RECIPE, run=RunSection(precision=precision))
    recorded_is_eager(recipe, batches(WARM_UP + 4))


@gpu
def test_the_loss_waits_for_nothing(waiting_refused: Callable[[], AbstractContextManager[None]]) -> None:
    task, (tensors,) = TrackTask(RECIPE), batches(1)
    network = task.build().cuda().train()
    task.loss(network, tensors, torch.ones((), device="cuda")).total.backward()  # kernels are made
    torch.cuda.synchronize()
    with waiting_refused():
        weight = task.weight(tensors).float().clamp_min(1)
        task.loss(network, tensors, weight).total.backward()


@gpu
@pytest.mark.parametrize("family", ["chase", "objects"])
def test_sampling_waits_for_nothing(family: str, waiting_refused: Callable[[], AbstractContextManager[None]]) -> None:
    world = SyntheticScenes(family, seed=5, size=(48, 64), bank=procedural_bank(64, 3)).on("cuda")
    sample = SyntheticPairs(RECIPE.model.config())
    for _ in range(2):  # the first time kernels are compiled
        sample(world.renderer([3, 4, 5, 6], "cuda"), "final")
    with waiting_refused():
        sample(world.renderer([3, 4, 5, 6], "cuda"), "final")


BOXES = [(20.0, 12.0, 16.0, 14.0), (50.0, 30.0, 10.0, 18.0)]
FRAMES = np.random.default_rng(0).integers(0, 256, (UPDATE_INTERVAL + 3, 60, 90, 3), dtype=np.uint8)
PIXELS, SCORES, SHARE = 3e-3, 1e-5, 1e-4
"""How far apart boxes, scores and templates of one frame may be in float32, where they are 2e-5, 1e-7 and 1e-6.

Networks whose weights are 1 % off, or the boxes of another frame, are further apart by an order of magnitude or more.
Only frames that are given the same are compared: from frame to frame a network with random weights amplifies rounding.
"""


def network_sure_of_all() -> ProtoFormer:
    """The same one each time, which is sure of whatever it finds: boxes move and targets are looked at again."""
    torch.manual_seed(0)
    network = build_network(preset("tiny", tracking={"search_size": 64, "template_size": 48}), "track")
    torch.nn.init.constant_(network.tracking_head.score_head.roi_head.out_proj.bias, 5.0)
    return network


def boxes_apart(ours: Sequence[TrackedBox], theirs: Sequence[TrackedBox]) -> float:
    """The largest distance of two edges, pixels."""
    assert [each.lost for each in ours] == [each.lost for each in theirs] == [False] * len(BOXES)
    return float((torch.tensor([each.box for each in ours]) - torch.tensor([each.box for each in theirs])).abs().max())


def next_boxes(model: TrackingPredictor, frame: np.ndarray) -> Sequence[TrackedBox]:
    """Where a new tracker of a model, which begins with the first frame, finds the targets in another one."""
    return model.tracker(FRAMES[0], BOXES, precision="full").update(frame)


class Noted(TrackingEngine):
    """An engine that keeps what it was asked and what it answered."""

    def __init__(self, network: ProtoFormer) -> None:
        super().__init__(network, torch.device("cpu"), half=False)
        self.embedded: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
        self.located: list[tuple[tuple[Any, ...], tuple[Tensor, Tensor]]] = []

    def embed(self, *given: Tensor) -> tuple[Tensor, ...]:
        self.embedded.append((given, super().embed(*given)))
        return self.embedded[-1][1]

    def locate(self, *given: Any) -> tuple[Tensor, Tensor]:
        self.located.append((given, super().locate(*given)))
        return self.located[-1][1]


def noted_on_cpu() -> Noted:
    """What the engine of a CPU was asked, and answered, while it followed the targets through all frames."""
    model = TrackingPredictor(network_sure_of_all(), False, torch.device("cpu"))
    noted = model._engines[False] = Noted(model.network)
    results = model.track(FRAMES, BOXES, precision="full")
    assert not any(each.lost.any() for each in results)
    assert all((each.boxes[1:] - each.boxes[:-1]).abs().amax(dim=1).min() > 10 * PIXELS for each in results)
    assert (len(noted.embedded), len(noted.located)) == (2, len(FRAMES) - 1)
    return noted


def assert_answers_alike(noted: Noted, engine: TrackingEngine, device: str) -> None:
    """Assert that an engine answers the same to the same questions, each by itself."""
    for given, template in noted.embedded:
        for mine, right in zip(engine.embed(*given), template, strict=True):
            assert (mine.cpu() - right).norm() < SHARE * right.norm()
    for (*given, template), (boxes, scores) in noted.located:
        found, sure = engine.locate(*given, tuple(each.to(device) for each in template))
        assert (found - boxes).abs().max() < PIXELS and (sure - scores).abs().max() < SCORES


@gpu
def test_trackers_of_one_model_share_a_graph(exact_convolutions: None) -> None:
    network = network_sure_of_all()
    shared = TrackingPredictor(network, False, torch.device("cuda"))
    for frame in FRAMES[1:]:
        eager = TrackingPredictor(network, False, torch.device("cuda"))  # has recorded nothing yet
        assert boxes_apart(next_boxes(shared, frame), next_boxes(eager, frame)) < PIXELS
    (engine,) = shared._engines.values()
    assert len(FRAMES) - 1 > graphs.WARM_UP + 2 and len(engine._locate._recorded) == 1


@gpu
def test_targets_are_where_a_cpu_finds_them(exact_convolutions: None) -> None:
    noted = noted_on_cpu()
    network = network_sure_of_all().eval().cuda()
    assert_answers_alike(noted, TrackingEngine(network, torch.device("cuda"), half=False), "cuda")


def slightly_off(network: ProtoFormer) -> ProtoFormer:
    """Change every weight by about 1 %."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in network.parameters():
            each.mul_(1 + 0.01 * torch.randn(each.shape, generator=generator))
    return network


def test_the_comparison_of_answers_finds_weights_that_are_one_percent_off() -> None:
    noted, cpu = noted_on_cpu(), torch.device("cpu")
    assert_answers_alike(noted, TrackingEngine(network_sure_of_all().eval(), cpu, half=False), "cpu")
    off = TrackingEngine(slightly_off(network_sure_of_all()).eval(), cpu, half=False)
    with pytest.raises(AssertionError):
        assert_answers_alike(noted, off, "cpu")
    noted.embedded.clear()  # so that boxes and scores have to show it
    with pytest.raises(AssertionError):
        assert_answers_alike(noted, off, "cpu")


def test_the_comparison_of_boxes_finds_another_frame_and_weights_that_are_one_percent_off() -> None:
    models = [
        TrackingPredictor(network, False, torch.device("cpu"))
        for network in (network_sure_of_all(), network_sure_of_all(), slightly_off(network_sure_of_all()))
    ]
    one, same, off = (next_boxes(model, FRAMES[1]) for model in models)
    assert boxes_apart(one, same) < PIXELS
    assert boxes_apart(one, off) > 10 * PIXELS
    for earlier, later in itertools.pairwise(FRAMES[1:]):
        assert boxes_apart(next_boxes(models[0], earlier), next_boxes(models[0], later)) > 10 * PIXELS
