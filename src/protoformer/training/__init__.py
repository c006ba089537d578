"""Losses and training."""

from protoformer.training.losses import FlowLoss, flow_loss
from protoformer.training.short import fit_flow

__all__ = ["FlowLoss", "fit_flow", "flow_loss"]
