"""The weights that the package brings."""

from pathlib import Path

import pytest
import torch

import protoformer as pf
from protoformer.datasets.registry import open_dataset
from protoformer.depth.evaluation import depth_method
from protoformer.depth.metrics import depth_scores
from protoformer.loading import TASKS
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample

NYU = Path(__file__).parents[2].parent / "shared" / "data" / "NYUv2"

PACKAGED = sorted(Path(pf.__file__).parent.glob("weights/*.safetensors"))


def test_all_weights_together_are_small_and_each_has_a_card() -> None:
    assert {path.stem for path in PACKAGED} == {*TASKS, "stabilize-grid"}
    assert sum(path.stat().st_size for path in PACKAGED) < 40e6
    for path in PACKAGED:
        task = path.stem.split("-")[0]  # the card of a task tells of all its weights
        card = path.with_name(f"{task}.md").read_text()
        assert path.name in card and "license" in card and "protoformer train" in card and "| **protoformer" in card


@pytest.mark.parametrize("family", ["objects", "drive", "handheld"])
def test_flow_finds_motion_in_scenes_it_has_not_seen(family: str) -> None:
    model = pf.load("flow", device="cpu")
    assert model.trained
    sample = flow_sample(SyntheticScenes(family, seed=11, size=(160, 224)).renderer([2]))
    found = model.flow(sample.first[0], sample.second[0])
    seen = (sample.valid & ~sample.occlusion)[0, 0]
    error, motion = ((each.norm(dim=0))[seen].mean() for each in (found.flow - sample.flow[0], sample.flow[0]))
    assert error < 0.4 * motion


def test_flow_says_where_it_is_wrong() -> None:
    sample = flow_sample(SyntheticScenes("objects", seed=11, size=(160, 224)).renderer([3]))
    found = pf.load("flow", device="cpu").flow(sample.first[0], sample.second[0])
    error, sure = (found.flow - sample.flow[0]).norm(dim=0).flatten(), found.confidence.flatten()
    order = sure.argsort()
    third = len(order) // 3
    assert error[order[:third]].mean() > 5 * error[order[-third:]].mean()
    assert torch.isfinite(found.flow).all()


def test_depth_finds_rooms_it_has_not_seen() -> None:
    model = pf.load("depth", device="cpu")
    assert model.trained
    sample = depth_sample(SyntheticScenes("room", seed=11, size=(240, 320)).renderer(range(4)))
    assert sample.intrinsics is not None
    errors = []
    for image, camera, depth, valid in zip(sample.image, sample.intrinsics, sample.depth, sample.valid, strict=True):
        found = model.depth(image, intrinsics=camera).depth
        errors.append(float(((found - depth).abs() / depth)[valid].mean()))
    assert sum(errors) / len(errors) < 0.25


@pytest.mark.skipif(not NYU.exists(), reason="the benchmark samples are not beside this checkout")
def test_depth_of_photographs_is_better_than_a_guess() -> None:
    photographs, model = open_dataset("nyuv2", NYU, "val"), pf.load("depth", device="cpu")
    chosen = [photographs[number] for number in range(0, len(photographs), 12)]
    scores = [depth_scores(depth_method(model)(each)[None], each.depth, each.valid).metric for each in chosen]
    assert sum(each.abs_rel for each in scores) / len(scores) < 0.22
