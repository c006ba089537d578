"""The weights that the package brings."""

from pathlib import Path

import pytest
import torch

import protoformer as pf
from protoformer.inference.loading import TASKS
from protoformer.inference.weights import packaged_weights
from protoformer.world import World
from protoformer.world.tasks import flow_sample

PACKAGED = {task: path for task in TASKS if (path := packaged_weights(task)) is not None}


def test_all_weights_together_are_small_and_each_has_a_card() -> None:
    assert sum(path.stat().st_size for path in PACKAGED.values()) < 40e6
    for path in PACKAGED.values():
        card = Path(path).with_suffix(".md").read_text()
        assert "licence" in card and "protoformer train" in card


@pytest.mark.parametrize("family", ["objects", "drive", "handheld"])
def test_flow_finds_motion_in_scenes_it_has_not_seen(family: str) -> None:
    model = pf.load("flow", device="cpu")
    assert model.trained
    sample = flow_sample(World(family, seed=11, size=(160, 224)).renderer([2]))
    found = model.flow(sample.first[0], sample.second[0])
    seen = (sample.valid & ~sample.occlusion)[0, 0]
    error, motion = ((each.norm(dim=0))[seen].mean() for each in (found.flow - sample.flow[0], sample.flow[0]))
    assert error < 0.4 * motion


def test_flow_says_where_it_is_wrong() -> None:
    sample = flow_sample(World("objects", seed=11, size=(160, 224)).renderer([3]))
    found = pf.load("flow", device="cpu").flow(sample.first[0], sample.second[0])
    error, sure = (found.flow - sample.flow[0]).norm(dim=0).flatten(), found.confidence.flatten()
    order = sure.argsort()
    third = len(order) // 3
    assert error[order[:third]].mean() > 5 * error[order[-third:]].mean()
    assert torch.isfinite(found.flow).all()
