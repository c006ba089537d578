"""Losses and training."""

from protoformer.training.depth_losses import DepthLoss, depth_loss
from protoformer.training.depth_task import DepthTask
from protoformer.training.flow_task import FlowTask
from protoformer.training.loop import Ended, Trainer
from protoformer.training.losses import FlowLoss, flow_loss
from protoformer.training.observer import Observer, Progress
from protoformer.training.recipe import Recipe, packaged_recipes, read_recipe
from protoformer.training.short import fit_flow

__all__ = [
    "DepthLoss",
    "DepthTask",
    "Ended",
    "FlowLoss",
    "FlowTask",
    "Observer",
    "Progress",
    "Recipe",
    "Trainer",
    "depth_loss",
    "fit_flow",
    "flow_loss",
    "packaged_recipes",
    "read_recipe",
]
