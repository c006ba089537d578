"""What `protoformer train` needs of each task: how to draw an example, and how to score on a dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from protoformer.data import open_dataset
from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.inference import DepthModel, FlowModel, TrackModel
from protoformer.inference.depth_evaluation import depth_method, evaluate_depth
from protoformer.inference.evaluation import evaluate_flow, model_method
from protoformer.inference.track_evaluation import evaluate_track
from protoformer.model import FlowNetwork, TrackNetwork
from protoformer.model.depth import DepthNetwork
from protoformer.show.depth_evaluation import depth_comparison
from protoformer.show.evaluation import comparison
from protoformer.show.stabilize_windows import window_picture
from protoformer.show.track_pairs import pair_picture
from protoformer.training.task import Drawing, Validated, Validator

Scoring = Callable[[nn.Module, Dataset[Any], str, Path], dict[str, float]]
"""From a network, the samples of a dataset, its name and its folder to scores by name."""


@dataclass(frozen=True)
class TaskTools:
    """draw: an example as a picture. caption: of such pictures. score: a network on a dataset, by its rules;
    None of a task that is judged on scenes of the world alone.
    """

    draw: Drawing
    caption: str
    score: Scoring | None


def _flow_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    assert isinstance(network, FlowNetwork)
    model = FlowModel(network, trained=True, device=next(network.parameters()).device)
    found = evaluate_flow(samples, model_method(model, zoom=1), names=(name, "run"), root=root, compare=False)
    several = len(found.groups) > 1
    return {
        f"{group} {metric}" if several else metric: getattr(each, metric)
        for group, each in found.groups.items()
        for metric in ("epe", "fl")
    }


def _depth_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    assert isinstance(network, DepthNetwork)
    model = DepthModel(network, trained=True, device=next(network.parameters()).device)
    found = evaluate_depth(samples, depth_method(model, mirrored=False), names=(name, "run")).table.metric
    return {metric: getattr(found, metric) for metric in ("abs_rel", "rmse", "delta1")}


def _track_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    assert isinstance(network, TrackNetwork)
    model = TrackModel(network, trained=True, device=next(network.parameters()).device)
    found = evaluate_track(samples, {"run": model.tracker}, name=name, root=root, compare=False)
    scores = found.methods["run"].scores
    return {figure: getattr(scores, figure) for figure in ("success", "precision", "normalised_precision")}


TOOLS: dict[str, TaskTools] = {
    "flow": TaskTools(
        draw=lambda example: comparison(example.sample, example.predicted),
        caption="scenes not trained on: image and true motion above, motion found and its error below (white is 10 px)",
        score=_flow_scores,
    ),
    "depth": TaskTools(
        draw=lambda example: depth_comparison(example.sample, example.predicted),
        caption="scenes not trained on: image and true depth above, depth found and its error below (white is half)",
        score=_depth_scores,
    ),
    "track": TaskTools(
        draw=lambda example: pair_picture(example.sample, example.predicted),
        caption="targets not trained on: known (white, left); true box (green), found box and score (red, right)",
        score=_track_scores,
    ),
    "stabilize": TaskTools(
        draw=lambda example: window_picture(example.sample, example.predicted),
        caption="frames not trained on: shaky and steady above; moved by the warp found, and how it differs, below",
        score=None,
    ),
}


def dataset_validator(task: str, name: str, root: Path, split: str | None = None) -> Validator:
    """Scores a network of a task on a dataset; split: None is the one that evaluation reads."""
    score = scoring_of(task)
    samples = open_dataset(name, root, split)
    return lambda network: Validated(name, score(network, samples, name, root))


def scoring_of(task: str) -> Scoring:
    """How networks of a task are scored on datasets while they train, if they are."""
    score = TOOLS[task].score
    if score is None:
        raise InputError(f"a run of {task} is judged on scenes of the world and on no dataset; leave the dataset out.")
    return score
