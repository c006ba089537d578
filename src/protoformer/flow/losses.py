"""What training makes small."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoformer.geometry.warps import pixel_grid
from protoformer.models.heads.correlation import window_index
from protoformer.models.heads.flow import FlowPrediction
from protoformer.models.heads.matching import CELL, MatchResult
from protoformer.models.heads.update import FACTOR
from protoformer.models.kernels.dispatch import kernels_run_on
from protoformer.models.runtime import maps_to_tokens

LONGEST = 400.0
"""Pixels that move farther than this do not count, as is usual in training flow."""


@dataclass(frozen=True)
class FlowLoss:
    """Scalars: the total to minimize, its parts, and the end-point error (pixels) of the last estimate.

    matching: 0 where nothing was matched.
    """

    total: Tensor
    distance: Tensor
    surprise: Tensor
    matching: Tensor
    epe: Tensor


def laplace_nll(error: Tensor, log_scale: Tensor) -> Tensor:
    """-log p of an error (N x C x H x W) whose components are Laplace distributed: N x 1 x H x W, nats.

    p(e) = exp(-|e| / b) / (2 b) for each component, with b = exp(log_scale), N x 1 x H x W.
    """
    deviation = error.abs().sum(dim=1, keepdim=True)
    return deviation * torch.exp(-log_scale) + error.shape[1] * (log_scale + math.log(2))


def valid_pixels(flow: Tensor, valid: Tensor) -> Tensor:
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
    hidden: Tensor | None = None,
    matching: float = 1.0,
) -> FlowLoss:
    """The sum over updates i of n of gamma^(n - i - 1) |flow_i - truth|_1, and as much of the scales' surprise.

    To it comes, weighted by `matching`, the surprise at where cells are found that were matched before the updates.

    flow: N x 2 x H x W, pixels; valid: N x 1 x H x W, bool. Means are over valid pixels that move less than 400 px.
    The surprise is weighted by `confidence`, and the error enters it as a given: estimating how wrong a flow is must
    not change the flow. pixels: scalar above 0, how many pixels to divide by instead of this batch's own. Processes
    that share a batch each take the mean of their counts: the mean of their losses is then that of the whole batch.
    hidden: N x 1 x H x W, bool, what the second image does not show, where that is known.
    """
    counted = valid_pixels(flow, valid)
    pixels = counted.sum().clamp_min(1) if pixels is None else pixels
    distance = surprise = flow.new_zeros(())
    count = len(prediction.flows)
    for index, (estimate, log_scale) in enumerate(zip(prediction.flows, prediction.log_scales, strict=True)):
        weight = gamma ** (count - index - 1)
        of_distance, of_surprise, of_length = error_sums(estimate, log_scale, flow, counted)
        distance = distance + weight * of_distance / pixels
        surprise = surprise + weight * of_surprise / pixels
    found = flow.new_zeros(())
    if prediction.matches is not None:
        found = matching_nll(prediction.matches, flow, counted, hidden) / pixels
    total = distance + confidence * surprise + matching * found
    return FlowLoss(total, distance, surprise, found, of_length.detach() / pixels)


def matching_nll(matches: MatchResult, flow: Tensor, counted: Tensor, hidden: Tensor | None = None) -> Tensor:
    """The sum over cells of -log p of where they are truly found, each times the pixels of a cell.

    A cell is where the pixel at its middle goes, which lies between four cells: the mean of their -log p by how near
    they are. One that leaves the image, or is hidden, is truly nowhere. Shapes as in `flow_loss`.
    """
    side = FACTOR * CELL
    (rows, columns), (height, width) = matches.size, flow.shape[2:]
    y = (torch.arange(rows, device=flow.device) * side + side // 2).clamp_max(height - 1)
    x = (torch.arange(columns, device=flow.device) * side + side // 2).clamp_max(width - 1)

    def at_middles(maps: Tensor) -> Tensor:
        return maps_to_tokens(maps[:, :, y][:, :, :, x])

    counts = at_middles(counted)[..., 0]
    places = at_middles(pixel_grid(height, width, flow.device)[None]) + at_middles(torch.where(counted, flow, 0.0))
    across, down = places.unbind(dim=2)
    shown = (across >= 0) & (across <= width - 1) & (down >= 0) & (down <= height - 1)
    if hidden is not None:
        shown = shown & ~at_middles(hidden)[..., 0]
    between = (places + 0.5) / side - 0.5
    corner = between.floor()
    index, within = window_index(corner.long(), 2, matches.size)
    right, below = (between - corner).unbind(dim=2)
    near = torch.stack(((1 - right) * (1 - below), right * (1 - below), (1 - right) * below, right * below), dim=2)
    # Between the outermost cells and the border there are none beyond.
    near = near * within
    near = near / near.sum(dim=2, keepdim=True).clamp_min(1e-6)
    somewhere = -(near * matches.log_shares.gather(2, index)).sum(dim=2)
    surprise = torch.where(shown, somewhere, -matches.log_shares[..., -1])
    return side * side * torch.where(counts, surprise, 0.0).sum()


def error_sums(estimate: Tensor, log_scale: Tensor, flow: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over the pixels that count: of |error|_1, of its surprise, and of its length, which has no gradient.

    estimate, flow: N x 2 x H x W, pixels; log_scale: N x 1 x H x W; counted: N x 1 x H x W, bool.
    """
    lie_in_rows = estimate.stride(3) == log_scale.stride(3) == 1 and flow.is_contiguous() and counted.is_contiguous()
    if kernels_run_on(estimate) and estimate.dtype == log_scale.dtype == flow.dtype == torch.float32 and lie_in_rows:
        return kernel_error_sums(estimate, log_scale, flow, counted)
    error = torch.where(counted, estimate - flow, 0.0)
    surprise = (counted * laplace_nll(error.detach(), log_scale)).sum()
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
        from protoformer.flow import loss_kernels

        ctx.save_for_backward(estimate, log_scale, flow, counted)
        with torch.cuda.device_of(flow):
            return loss_kernels.error_sums(estimate, log_scale, flow, counted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.flow import loss_kernels

        estimate, log_scale, flow, counted = ctx.saved_tensors
        with torch.cuda.device_of(flow):
            found = loss_kernels.error_sums_gradient(arriving.contiguous(), estimate, log_scale, flow, counted)
        return *found, None, None
