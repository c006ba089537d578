"""What training makes small."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.model import FlowPrediction

LONGEST = 400.0
"""Pixels that move farther than this do not count, as is usual in training flow."""


@dataclass(frozen=True)
class FlowLoss:
    """Scalars: the total to minimise, its two parts, and the end-point error (pixels) of the last estimate."""

    total: Tensor
    distance: Tensor
    surprise: Tensor
    epe: Tensor


def laplace_surprise(error: Tensor, log_scale: Tensor) -> Tensor:
    """-log p of an error (N x 2 x H x W, pixels) whose components are Laplace distributed: N x 1 x H x W, nats.

    p(e) = exp(-|e| / b) / (2 b) for each component, with b = exp(log_scale), N x 1 x H x W.
    """
    deviation = error.abs().sum(dim=1, keepdim=True)
    return deviation * torch.exp(-log_scale) + 2 * (log_scale + math.log(2))


def counted_pixels(flow: Tensor, valid: Tensor) -> Tensor:
    """Pixels that the loss is a mean over, those that are valid and move less than 400 px: N x 1 x H x W, bool."""
    counted: Tensor = valid & (flow.norm(dim=1, keepdim=True) < LONGEST)
    return counted


def flow_loss(
    prediction: FlowPrediction,
    flow: Tensor,
    valid: Tensor,
    gamma: float = 0.8,
    confidence: float = 0.1,
    pixels: Tensor | None = None,
) -> FlowLoss:
    """The sum over updates i of n of gamma^(n - i - 1) |flow_i - truth|_1, and as much of the scales' surprise.

    flow: N x 2 x H x W, pixels; valid: N x 1 x H x W, bool. Means are over valid pixels that move less than 400 px.
    The surprise is weighted by `confidence`, and the error enters it as a given: estimating how wrong a flow is must
    not change the flow. pixels: scalar above 0, how many pixels to divide by instead of this batch's own. Processes
    that share a batch each take the mean of their counts: the mean of their losses is then that of the whole batch.
    """
    counted = counted_pixels(flow, valid).to(flow.dtype)
    pixels = counted.sum().clamp_min(1) if pixels is None else pixels
    distance = surprise = flow.new_zeros(())
    count = len(prediction.flows)
    for index, (estimate, log_scale) in enumerate(zip(prediction.flows, prediction.log_scales, strict=True)):
        weight = gamma ** (count - index - 1)
        error = torch.where(counted > 0, estimate - flow, 0.0)
        distance = distance + weight * error.abs().sum() / pixels
        surprise = surprise + weight * (counted * laplace_surprise(error.detach(), log_scale)).sum() / pixels
    epe = (error.detach().norm(dim=1, keepdim=True) * counted).sum() / pixels
    return FlowLoss(distance + confidence * surprise, distance, surprise, epe)
