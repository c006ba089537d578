"""Tracking on a GPU: no synchronization, graphed steps equal eager steps, and outputs equal those on a CPU."""

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
from protoformer.training.engine import WARM_UP
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection

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
def test_graphed_steps_equal_eager_steps(
    precision: str, graph_equals_eager: Callable[[Recipe, list[dict[str, Tensor]]], None]
) -> None:
    recipe = dataclasses.replace(RECIPE, run=RunSection(precision=precision))
    graph_equals_eager(recipe, batches(WARM_UP + 4))


@gpu
def test_the_loss_does_not_synchronize(sync_refused: Callable[[], AbstractContextManager[None]]) -> None:
    task, (tensors,) = TrackTask(RECIPE), batches(1)
    network = task.build().cuda().train()
    task.loss(network, tensors, torch.ones((), device="cuda")).total.backward()  # compiles kernels
    torch.cuda.synchronize()
    with sync_refused():
        weight = task.weight(tensors).float().clamp_min(1)
        task.loss(network, tensors, weight).total.backward()


@gpu
@pytest.mark.parametrize("family", ["chase", "objects"])
def test_sampling_does_not_synchronize(family: str, sync_refused: Callable[[], AbstractContextManager[None]]) -> None:
    scenes = SyntheticScenes(family, seed=5, size=(48, 64), bank=procedural_bank(64, 3)).on("cuda")
    sample = SyntheticPairs(RECIPE.model.config())
    for _ in range(2):  # the first run compiles kernels
        sample(scenes.renderer([3, 4, 5, 6], "cuda"), "final")
    with sync_refused():
        sample(scenes.renderer([3, 4, 5, 6], "cuda"), "final")


BOXES = [(20.0, 12.0, 16.0, 14.0), (50.0, 30.0, 10.0, 18.0)]
FRAMES = np.random.default_rng(0).integers(0, 256, (UPDATE_INTERVAL + 3, 60, 90, 3), dtype=np.uint8)
BOX_TOLERANCE, SCORE_TOLERANCE, TEMPLATE_TOLERANCE = 3e-3, 1e-5, 1e-4
"""Tolerances of boxes (pixels), scores and templates (relative) of one frame; errors are 2e-5, 1e-7 and 1e-6.

With weights changed by 1 %, or with another frame, differences are at least ten times the tolerance. Only outputs for
equal inputs are compared, frame by frame: over a clip, a network with random weights amplifies rounding.
"""


def confident_network() -> ProtoFormer:
    """Return a deterministic network with high scores, so that boxes move and templates are updated."""
    torch.manual_seed(0)
    network = build_network(preset("tiny", tracking={"search_size": 64, "template_size": 48}), "track")
    torch.nn.init.constant_(network.tracking_head.score_head.roi_head.out_proj.bias, 5.0)
    return network


def max_box_difference(boxes1: Sequence[TrackedBox], boxes2: Sequence[TrackedBox]) -> float:
    """Return the largest difference of two boxes, pixels."""
    assert [each.lost for each in boxes1] == [each.lost for each in boxes2] == [False] * len(BOXES)
    first, second = (torch.tensor([each.box for each in boxes]) for boxes in (boxes1, boxes2))
    return float((first - second).abs().max())


def next_boxes(model: TrackingPredictor, frame: np.ndarray) -> Sequence[TrackedBox]:
    """Return the boxes of a new tracker, initialized in the first frame, in another frame."""
    return model.tracker(FRAMES[0], BOXES, precision="full").update(frame)


class RecordingEngine(TrackingEngine):
    """An engine that records its inputs and outputs."""

    def __init__(self, network: ProtoFormer) -> None:
        super().__init__(network, torch.device("cpu"), half=False)
        self.embedded: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
        self.located: list[tuple[tuple[Any, ...], tuple[Tensor, Tensor]]] = []

    def embed(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.embedded.append((inputs, super().embed(*inputs)))
        return self.embedded[-1][1]

    def locate(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        self.located.append((inputs, super().locate(*inputs)))
        return self.located[-1][1]


def record_on_cpu() -> RecordingEngine:
    """Return the recorded inputs and outputs of an engine on a CPU that tracked the targets through all frames."""
    model = TrackingPredictor(confident_network(), False, torch.device("cpu"))
    recording = model._engines[False] = RecordingEngine(model.network)
    results = model.track(FRAMES, BOXES, precision="full")
    assert not any(each.lost.any() for each in results)
    assert all((each.boxes[1:] - each.boxes[:-1]).abs().amax(dim=1).min() > 10 * BOX_TOLERANCE for each in results)
    assert (len(recording.embedded), len(recording.located)) == (2, len(FRAMES) - 1)
    return recording


def assert_equal_outputs(recording: RecordingEngine, engine: TrackingEngine, device: str) -> None:
    """Assert that an engine has the recorded output for each recorded input on its own."""
    for inputs, template in recording.embedded:
        for actual, expected in zip(engine.embed(*inputs), template, strict=True):
            assert (actual.cpu() - expected).norm() < TEMPLATE_TOLERANCE * expected.norm()
    for (*inputs, template), (boxes, scores) in recording.located:
        actual_boxes, actual_scores = engine.locate(*inputs, tuple(each.to(device) for each in template))
        assert (actual_boxes - boxes).abs().max() < BOX_TOLERANCE
        assert (actual_scores - scores).abs().max() < SCORE_TOLERANCE


@gpu
def test_trackers_of_one_model_share_a_graph(exact_convolutions: None) -> None:
    network = confident_network()
    shared = TrackingPredictor(network, False, torch.device("cuda"))
    for frame in FRAMES[1:]:
        eager = TrackingPredictor(network, False, torch.device("cuda"))  # has no graph yet
        assert max_box_difference(next_boxes(shared, frame), next_boxes(eager, frame)) < BOX_TOLERANCE
    (engine,) = shared._engines.values()
    assert len(FRAMES) - 1 > graphs.WARM_UP + 2 and len(engine._locate._recorded) == 1


@gpu
def test_single_frame_outputs_equal_those_on_a_cpu(exact_convolutions: None) -> None:
    recording = record_on_cpu()
    network = confident_network().eval().cuda()
    assert_equal_outputs(recording, TrackingEngine(network, torch.device("cuda"), half=False), "cuda")


def perturbed(network: ProtoFormer) -> ProtoFormer:
    """Change every weight by about 1 %."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in network.parameters():
            each.mul_(1 + 0.01 * torch.randn(each.shape, generator=generator))
    return network


def test_the_comparison_of_outputs_detects_weights_changed_by_one_percent() -> None:
    recording, cpu = record_on_cpu(), torch.device("cpu")
    assert_equal_outputs(recording, TrackingEngine(confident_network().eval(), cpu, half=False), "cpu")
    off = TrackingEngine(perturbed(confident_network()).eval(), cpu, half=False)
    with pytest.raises(AssertionError):
        assert_equal_outputs(recording, off, "cpu")
    recording.embedded.clear()  # so that boxes and scores have to differ
    with pytest.raises(AssertionError):
        assert_equal_outputs(recording, off, "cpu")


def test_the_comparison_of_boxes_detects_another_frame_and_weights_changed_by_one_percent() -> None:
    models = [
        TrackingPredictor(network, False, torch.device("cpu"))
        for network in (confident_network(), confident_network(), perturbed(confident_network()))
    ]
    one, same, off = (next_boxes(model, FRAMES[1]) for model in models)
    assert max_box_difference(one, same) < BOX_TOLERANCE
    assert max_box_difference(one, off) > 10 * BOX_TOLERANCE
    for earlier, later in itertools.pairwise(FRAMES[1:]):
        assert max_box_difference(next_boxes(models[0], earlier), next_boxes(models[0], later)) > 10 * BOX_TOLERANCE
