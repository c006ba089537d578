"""Template memory: means of the first and the latest embedding."""

import pytest
import torch

import protoformer as pf
from protoformer.synthetic.textures import noise
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.tracker import LATEST_WEIGHT, MIN_UPDATE_SCORE, UPDATE_INTERVAL, Target, TemplateMemory

TARGETS = (Target((20.0, 12.0, 16.0, 14.0)), Target((50.0, 30.0, 10.0, 18.0)))


@pytest.fixture(scope="module")
def engine() -> TrackingEngine:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", task="track", tracking={"search_size": 64, "template_size": 48})
    return TrackingEngine(model.network, torch.device("cpu"), half=False)


@pytest.fixture(scope="module")
def frames() -> tuple[torch.Tensor, torch.Tensor]:
    """Two frames that have nothing in common."""
    first, second = (noise(60, 90, torch.Generator().manual_seed(seed), falloff=0.5) for seed in (1, 2))
    return first, second


def seen_often(memory: TemplateMemory, frame: torch.Tensor, targets: tuple[Target, ...], score: float) -> None:
    for _ in range(UPDATE_INTERVAL):
        memory.update(frame, targets, [score] * len(targets))


def test_what_is_sought_is_the_mean_of_the_first_look_and_the_latest(
    engine: TrackingEngine, frames: tuple[torch.Tensor, torch.Tensor]
) -> None:
    boxes = torch.tensor([target.box for target in TARGETS])
    first, latest = (engine.embed(frame, boxes) for frame in frames)
    memory = TemplateMemory(engine, frames[0], TARGETS)
    seen_often(memory, frames[1], TARGETS, 1.0)
    tokens, parts, summary = memory.template
    assert torch.allclose(tokens, (1 - LATEST_WEIGHT) * first[0] + LATEST_WEIGHT * latest[0], atol=1e-5)
    assert torch.allclose(summary, (1 - LATEST_WEIGHT) * first[2] + LATEST_WEIGHT * latest[2], atol=1e-5)
    assert torch.allclose(parts.norm(dim=2), torch.ones_like(parts[..., 0]), atol=1e-5)
    seen_often(memory, frames[0], TARGETS, 1.0)  # looks as it first did again: what came between is forgotten
    assert all(torch.allclose(now, then, atol=1e-5) for now, then in zip(memory.template, first, strict=True))


def test_only_what_is_surely_there_is_looked_at_again(
    engine: TrackingEngine, frames: tuple[torch.Tensor, torch.Tensor]
) -> None:
    memory = TemplateMemory(engine, frames[0], TARGETS)
    before = memory.template
    seen_often(memory, frames[1], TARGETS, MIN_UPDATE_SCORE - 0.01)
    assert memory.template is before
    gone = Target(TARGETS[0].box, frames_lost=1)
    seen_often(memory, frames[1], (gone, TARGETS[1]), 1.0)
    changed = [(now != then).flatten(1).any(dim=1).tolist() for now, then in zip(memory.template, before, strict=True)]
    assert changed == [[False, True]] * 3


def test_a_look_is_taken_every_few_frames(engine: TrackingEngine, frames: tuple[torch.Tensor, torch.Tensor]) -> None:
    memory = TemplateMemory(engine, frames[0], TARGETS)
    before = memory.template
    for _ in range(UPDATE_INTERVAL - 1):
        memory.update(frames[1], TARGETS, [1.0, 1.0])
    assert memory.template is before
    memory.update(frames[1], TARGETS, [1.0, 1.0])
    assert memory.template is not before
