"""Registry of the tasks that can be trained."""

from collections.abc import Callable
from typing import Any

from protoformer.depth.training import DepthTask
from protoformer.flow.training import FlowTask
from protoformer.models.protoformer import ProtoFormer
from protoformer.stabilization.training import StabilizeTask
from protoformer.tracking.training import TrackTask
from protoformer.training.recipe import Recipe
from protoformer.training.task import Task

TASKS: dict[str, Callable[[Recipe, ProtoFormer | None], Task[Any]]] = {
    "flow": FlowTask,
    "depth": DepthTask,
    "track": TrackTask,
    "stabilize": StabilizeTask,
}
"""Constructors by name, from a recipe and a network with the initial weights, or None for random weights."""


def task_of(recipe: Recipe, start: ProtoFormer | None = None) -> Task[Any]:
    """Build the task of a recipe.

    Args:
        recipe: Recipe of the run.
        start: Network with the initial weights; None starts from random weights.
    """
    return TASKS[recipe.task](recipe, start)
