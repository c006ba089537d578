"""The tasks that the loop can train."""

from collections.abc import Callable
from typing import Any

from torch import nn

from protoformer.depth.training import DepthTask
from protoformer.flow.training import FlowTask
from protoformer.stabilization.training import StabilizeTask
from protoformer.tracking.training import TrackTask
from protoformer.training.recipe import Recipe
from protoformer.training.task import Task

TASKS: dict[str, Callable[[Recipe, nn.Module | None], Task[Any]]] = {
    "flow": FlowTask,
    "depth": DepthTask,
    "track": TrackTask,
    "stabilize": StabilizeTask,
}
"""By name: from a recipe, and a network whose weights it begins with (None: random ones)."""


def task_of(recipe: Recipe, start: nn.Module | None = None) -> Task[Any]:
    """The task that a recipe trains."""
    return TASKS[recipe.task](recipe, start)
