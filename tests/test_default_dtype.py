"""Predictors compute in float32, whatever the caller's default type of torch is."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import protoformer as pf
from protoformer.explain.result import Explanation

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")

FIRST = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
FRAMES = [np.roll(FIRST, shift, axis=1) for shift in range(4)]


def explained_by(explanation: Explanation) -> list[Tensor]:
    explanation.matches()
    explanation.parts()
    layers = [layer for image in explanation.images for layer in image.layers]
    return [each for layer in layers for each in (layer.labels(), layer.families(), layer.maps)]


def flow(**fields: Any) -> list[Tensor]:
    model = pf.load("tiny", "cpu", task="flow", **fields)
    found = model.flow(FRAMES[0], FRAMES[1], occlusion=True)
    video = [step.flow for step in model.flow_video(FRAMES[:3])]
    explained = explained_by(found.explain())
    return [found.flow, found.confidence, *video, *explained]


def depth(**fields: Any) -> list[Tensor]:
    model = pf.load("tiny", "cpu", task="depth", **fields)
    found = model.depth(FRAMES[0])
    video = [step.depth for step in model.depth_video(FRAMES[:3])]
    explained = explained_by(found.explain())
    return [
        found.depth,
        found.confidence,
        found.intrinsics,
        torch.from_numpy(found.points().points),
        *video,
        *explained,
    ]


def track(**fields: Any) -> list[Tensor]:
    model = pf.load("tiny", "cpu", task="track", **fields)
    return [
        each
        for found in model.track(FRAMES, [(10, 10, 20, 20), (40, 20, 30, 20)])
        for each in (found.boxes, found.scores)
    ]


def stabilize(**fields: Any) -> list[Tensor]:
    model = pf.load("tiny", "cpu", task="stabilize", **fields)
    found = model.stabilize(FRAMES)
    drawings = [torch.from_numpy(steady) for _, _, steady in model.frames(FRAMES, found)]
    return [torch.from_numpy(found.path_before), torch.from_numpy(found.path_after), *drawings]


CASES: dict[str, Callable[[], list[Tensor]]] = {
    "flow": flow,
    "flow, memory decoder": lambda: flow(flow={"decoder": "memory", "global_matching": True, "aggregation": "pixels"}),
    "depth": depth,
    "depth, patches": lambda: depth(encoder={"embedding": "patches"}),
    "track": track,
    "stabilize": stabilize,
    "stabilize, grid": lambda: stabilize(stabilization={"regressor": "grid"}),
}


@pytest.fixture
def double() -> Iterator[Callable[[], None]]:
    """Makes float64 torch's default, until the end of the test."""
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(before)


@pytest.mark.parametrize("case", CASES)
def test_a_default_of_float64_changes_nothing(case: str, double: Callable[[], None]) -> None:
    expected = CASES[case]()
    double()
    found = CASES[case]()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
