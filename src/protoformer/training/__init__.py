"""Losses and training."""

from protoformer.training.depth_losses import DepthLoss, depth_loss
from protoformer.training.depth_task import DepthTask
from protoformer.training.flow_task import FlowTask
from protoformer.training.loop import Ended, Trainer
from protoformer.training.losses import FlowLoss, flow_loss
from protoformer.training.observer import Observer, Progress
from protoformer.training.recipe import Recipe, packaged_recipes, read_recipe
from protoformer.training.short import fit_flow
from protoformer.training.stabilize_losses import StabilizeLoss, stabilize_loss
from protoformer.training.stabilize_task import StabilizeTask
from protoformer.training.track_losses import TrackLoss, track_loss
from protoformer.training.track_task import TrackTask

__all__ = [
    "DepthLoss",
    "DepthTask",
    "Ended",
    "FlowLoss",
    "FlowTask",
    "Observer",
    "Progress",
    "Recipe",
    "StabilizeLoss",
    "StabilizeTask",
    "TrackLoss",
    "TrackTask",
    "Trainer",
    "depth_loss",
    "fit_flow",
    "flow_loss",
    "packaged_recipes",
    "read_recipe",
    "stabilize_loss",
    "track_loss",
]
