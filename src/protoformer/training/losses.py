"""What training makes small."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoformer.model import FlowPrediction
from protoformer.model.fused import kernels_run_on

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
    """-log p of an error (N x C x H x W) whose components are Laplace distributed: N x 1 x H x W, nats.

    p(e) = exp(-|e| / b) / (2 b) for each component, with b = exp(log_scale), N x 1 x H x W.
    """
    deviation = error.abs().sum(dim=1, keepdim=True)
    return deviation * torch.exp(-log_scale) + error.shape[1] * (log_scale + math.log(2))


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

    A flow that was matched before the updates counts as one more of them, the first.

    flow: N x 2 x H x W, pixels; valid: N x 1 x H x W, bool. Means are over valid pixels that move less than 400 px.
    The surprise is weighted by `confidence`, and the error enters it as a given: estimating how wrong a flow is must
    not change the flow. pixels: scalar above 0, how many pixels to divide by instead of this batch's own. Processes
    that share a batch each take the mean of their counts: the mean of their losses is then that of the whole batch.
    """
    counted = counted_pixels(flow, valid)
    pixels = counted.sum().clamp_min(1) if pixels is None else pixels
    distance = surprise = flow.new_zeros(())
    count = len(prediction.flows)
    for index, (estimate, log_scale) in enumerate(zip(prediction.flows, prediction.log_scales, strict=True)):
        weight = gamma ** (count - index - 1)
        of_distance, of_surprise, of_length = error_sums(estimate, log_scale, flow, counted)
        distance = distance + weight * of_distance / pixels
        surprise = surprise + weight * of_surprise / pixels
    if prediction.matched is not None:
        missed = torch.where(counted, prediction.matched - flow, 0.0).abs().sum()
        distance = distance + gamma**count * missed / pixels
    return FlowLoss(distance + confidence * surprise, distance, surprise, of_length.detach() / pixels)


def error_sums(estimate: Tensor, log_scale: Tensor, flow: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over the pixels that count: of |error|_1, of its surprise, and of its length, which has no gradient.

    estimate, flow: N x 2 x H x W, pixels; log_scale: N x 1 x H x W; counted: N x 1 x H x W, bool.
    """
    lie_in_rows = estimate.stride(3) == log_scale.stride(3) == 1 and flow.is_contiguous() and counted.is_contiguous()
    if kernels_run_on(estimate) and estimate.dtype == log_scale.dtype == flow.dtype == torch.float32 and lie_in_rows:
        return kernel_error_sums(estimate, log_scale, flow, counted)
    error = torch.where(counted, estimate - flow, 0.0)
    surprise = (counted * laplace_surprise(error.detach(), log_scale)).sum()
    return error.abs().sum(), surprise, (error.detach().norm(dim=1, keepdim=True) * counted).sum()


def kernel_error_sums(
    estimate: Tensor, log_scale: Tensor, flow: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `error_sums`, by kernels: float32, flow and counted contiguous, the others along their rows."""
    found: Tensor = _ErrorSums.apply(estimate, log_scale, flow, counted)  # type: ignore[no-untyped-call]
    distance, surprise, length = found.unbind()
    return distance, surprise, length


class _ErrorSums(torch.autograd.Function):
    """The three sums, as one vector."""

    @staticmethod
    def forward(ctx: Any, estimate: Tensor, log_scale: Tensor, flow: Tensor, counted: Tensor) -> Tensor:
        from protoformer.training import loss_kernels

        ctx.save_for_backward(estimate, log_scale, flow, counted)
        with torch.cuda.device_of(flow):
            return loss_kernels.error_sums(estimate, log_scale, flow, counted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.training import loss_kernels

        estimate, log_scale, flow, counted = ctx.saved_tensors
        with torch.cuda.device_of(flow):
            found = loss_kernels.error_sums_gradient(arriving.contiguous(), estimate, log_scale, flow, counted)
        return *found, None, None
