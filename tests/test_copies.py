"""Models, trackers, results and configurations can be pickled and copied, as sending them to another process needs."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import protoformer as pf

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")

FIRST = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
FRAMES = [np.roll(FIRST, shift, axis=1) for shift in range(3)]
BOX = (10, 10, 20, 20)
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
USES: dict[str, Callable[[Any], Any]] = {
    "flow": lambda model: model.flow(FRAMES[0], FRAMES[1]),
    "depth": lambda model: model.depth(FRAMES[0]),
    "track": lambda model: model.track(FRAMES, BOX)[0],
    "stabilize": lambda model: model.stabilize(FRAMES),
}

TASKS = {
    pf.FlowPredictor: "flow",
    pf.DepthPredictor: "depth",
    pf.TrackingPredictor: "track",
    pf.StabilizationPredictor: "stabilize",
}


@pytest.fixture(scope="module", params=USES)
def model(request: pytest.FixtureRequest) -> Any:
    """A model that has been used, so that whatever it keeps between calls is there."""
    found = pf.load("tiny", "cpu", task=request.param)
    USES[request.param](found)
    return found


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_model_finds_the_same(model: Any, copied: Callable[[Any], Any]) -> None:
    use = USES[TASKS[type(model)]]
    again = copied(model)
    assert repr(again) == repr(model) and again.network.config == model.network.config
    assert repr(use(again)) == repr(use(model))


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_result_can_be_copied(model: Any, copied: Callable[[Any], Any]) -> None:
    result = USES[TASKS[type(model)]](model)
    assert repr(copied(result)) == repr(result)


@pytest.mark.parametrize("copied", [COPIES["pickle"], COPIES["deepcopy"]], ids=["pickle", "deepcopy"])
def test_a_copied_tracker_goes_on_by_itself(copied: Callable[[Any], Any]) -> None:
    tracker = pf.load("tiny", "cpu", task="track").tracker(FRAMES[0], BOX)
    tracker.update(FRAMES[1])
    again = copied(tracker)
    expected = tracker.update(FRAMES[2])
    assert again.update(FRAMES[2]) == expected


def test_a_deep_copy_has_weights_of_its_own(model: Any) -> None:
    again = copy.deepcopy(model)
    reference = next(model.network.parameters()).clone()
    with torch.no_grad():
        next(again.network.parameters()).add_(1)
    assert torch.equal(next(model.network.parameters()), reference)


def test_configurations_and_recipes_can_be_copied() -> None:
    from protoformer.training.recipe import read_recipe

    for each in (pf.preset("tiny"), read_recipe("flow-synthetic")):
        assert COPIES["pickle"](each) == each == copy.deepcopy(each)
