"""Loss functions for optical flow."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoformer.geometry.warps import pixel_grid
from protoformer.models.heads.correlation import window_index
from protoformer.models.heads.flow import FlowPrediction
from protoformer.models.heads.matching import BLOCK, MatchResult
from protoformer.models.heads.update import FLOW_STRIDE
from protoformer.models.kernels.dispatch import use_kernels
from protoformer.models.runtime import maps_to_tokens

MAX_FLOW = 400.0
"""Pixels with a larger motion are excluded from the loss, as is usual in flow training."""


@dataclass(frozen=True)
class FlowLoss:
    """Loss of a batch; all values are scalars.

    Attributes:
        total: weighted sum to minimize.
        distance: L1 error, summed over updates with decaying weights.
        nll: negative log-likelihood of the error under the predicted scales, summed likewise.
        matching: negative log-likelihood of the coarse matches; 0 for networks without matching.
        epe: end-point error of the last update, pixels.
    """

    total: Tensor
    distance: Tensor
    nll: Tensor
    matching: Tensor
    epe: Tensor


def laplace_nll(error: Tensor, log_scale: Tensor) -> Tensor:
    """Negative log-likelihood of N x C x H x W errors with independent Laplace components: N x 1 x H x W, nats.

    p(e) = exp(-|e| / b) / (2 b) for each component, with b = exp(log_scale), N x 1 x H x W.
    """
    deviation = error.abs().sum(dim=1, keepdim=True)
    return deviation * torch.exp(-log_scale) + error.shape[1] * (log_scale + math.log(2))


def valid_pixels(flow: Tensor, valid: Tensor) -> Tensor:
    """Return the pixels that enter the loss, N x 1 x H x W: valid ones that move less than `MAX_FLOW`.

    `flow` is the true flow, N x 2 x H x W, pixels; `valid` is N x 1 x H x W, bool.
    """
    mask: Tensor = valid & (flow.norm(dim=1, keepdim=True) < MAX_FLOW)
    return mask


def flow_loss(
    prediction: FlowPrediction,
    flow: Tensor,
    valid: Tensor,
    gamma: float = 0.8,
    confidence: float = 0.1,
    pixels: Tensor | None = None,
    occlusion: Tensor | None = None,
    matching: float = 1.0,
) -> FlowLoss:
    """Compute the sequence loss of all updates, with confidence and matching terms.

    The L1 error and the Laplace negative log-likelihood (NLL) of update i of n have weight gamma^(n - i - 1). The NLL
    takes the error as a constant, so that learning the confidence does not change the flow. Means are over valid pixels
    that move less than `MAX_FLOW`.

    Args:
        prediction: flows and log scales of every update.
        flow: true flow, N x 2 x H x W, pixels.
        valid: N x 1 x H x W, bool.
        gamma: decay of the weights of earlier updates.
        confidence: weight of the NLL.
        pixels: scalar above 0, divisor of the sums instead of this batch's number of pixels. In distributed training
            it is the mean count over processes, so that the mean of their losses is the loss of the whole batch.
        occlusion: pixels that are not visible in the second image, N x 1 x H x W, bool, if known.
        matching: weight of the matching NLL.
    """
    mask = valid_pixels(flow, valid)
    pixels = mask.sum().clamp_min(1) if pixels is None else pixels
    distance = nll = flow.new_zeros(())
    num_updates = len(prediction.flows)
    for index, (estimate, log_scale) in enumerate(zip(prediction.flows, prediction.log_scales, strict=True)):
        weight = gamma ** (num_updates - index - 1)
        distance_sum, nll_sum, epe_sum = error_sums(estimate, log_scale, flow, mask)
        distance = distance + weight * distance_sum / pixels
        nll = nll + weight * nll_sum / pixels
    match_nll = flow.new_zeros(())
    if prediction.matches is not None:
        match_nll = matching_nll(prediction.matches, flow, mask, occlusion) / pixels
    total = distance + confidence * nll + matching * match_nll
    return FlowLoss(total, distance, nll, match_nll, epe_sum.detach() / pixels)


def matching_nll(matches: MatchResult, flow: Tensor, mask: Tensor, occlusion: Tensor | None = None) -> Tensor:
    """Sum the negative log-likelihood of the true matches of all blocks, times the pixels of a block.

    The target of a block is where its center pixel moves to: a point between four blocks, whose log-likelihoods are
    interpolated bilinearly. A block that leaves the image or is occluded has the target "no match".

    Args:
        matches: match probabilities of all blocks.
        flow: true flow, N x 2 x H x W, pixels.
        mask: pixels that enter the loss, N x 1 x H x W, bool.
        occlusion: pixels that are not visible in the second image, N x 1 x H x W, bool, if known.

    Returns:
        Scalar, nats times pixels.
    """
    side = FLOW_STRIDE * BLOCK
    (rows, columns), (height, width) = matches.size, flow.shape[2:]
    y = (torch.arange(rows, device=flow.device) * side + side // 2).clamp_max(height - 1)
    x = (torch.arange(columns, device=flow.device) * side + side // 2).clamp_max(width - 1)

    def sample_centers(maps: Tensor) -> Tensor:
        return maps_to_tokens(maps[:, :, y][:, :, :, x])

    block_mask = sample_centers(mask)[..., 0]
    targets = sample_centers(pixel_grid(height, width, flow.device)[None]) + sample_centers(
        torch.where(mask, flow, 0.0)
    )
    target_x, target_y = targets.unbind(dim=2)
    visible = (target_x >= 0) & (target_x <= width - 1) & (target_y >= 0) & (target_y <= height - 1)
    if occlusion is not None:
        visible = visible & ~sample_centers(occlusion)[..., 0]
    coords = (targets + 0.5) / side - 0.5
    corner = coords.floor()
    index, inside = window_index(corner.long(), 2, matches.size)
    dx, dy = (coords - corner).unbind(dim=2)
    weights = torch.stack(((1 - dx) * (1 - dy), dx * (1 - dy), (1 - dx) * dy, dx * dy), dim=2)
    # Targets between the outermost block centers and the image border have fewer than four neighboring blocks.
    weights = weights * inside
    weights = weights / weights.sum(dim=2, keepdim=True).clamp_min(1e-6)
    visible_nll = -(weights * matches.log_probs.gather(2, index)).sum(dim=2)
    nll = torch.where(visible, visible_nll, -matches.log_probs[..., -1])
    return side * side * torch.where(block_mask, nll, 0.0).sum()


def error_sums(estimate: Tensor, log_scale: Tensor, flow: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum L1 error, its NLL and end-point error (without gradient) over masked pixels, by a kernel where possible.

    Flows are N x 2 x H x W, pixels; `log_scale`, N x 1 x H x W, is the logarithm of the predicted Laplace scale.
    """
    has_row_layout = estimate.stride(3) == log_scale.stride(3) == 1 and flow.is_contiguous() and mask.is_contiguous()
    is_float32 = estimate.dtype == log_scale.dtype == flow.dtype == torch.float32
    if use_kernels(estimate, "loss") and is_float32 and has_row_layout:
        return kernel_error_sums(estimate, log_scale, flow, mask)
    error = torch.where(mask, estimate - flow, 0.0)
    nll = (mask * laplace_nll(error.detach(), log_scale)).sum()
    return error.abs().sum(), nll, (error.detach().norm(dim=1, keepdim=True) * mask).sum()


def kernel_error_sums(estimate: Tensor, log_scale: Tensor, flow: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `error_sums`, with the Triton kernel.

    All tensors are float32 except the bool mask; flow and mask are contiguous, the others along their rows.
    """
    sums: Tensor = _ErrorSums.apply(estimate, log_scale, flow, mask)  # type: ignore[no-untyped-call]
    distance, nll, epe = sums.unbind()
    return distance, nll, epe


class _ErrorSums(torch.autograd.Function):
    """The three sums of `error_sums` as one vector."""

    @staticmethod
    def forward(ctx: Any, estimate: Tensor, log_scale: Tensor, flow: Tensor, mask: Tensor) -> Tensor:
        from protoformer.flow import loss_kernels

        ctx.save_for_backward(estimate, log_scale, flow, mask)
        with torch.cuda.device_of(flow):
            return loss_kernels.error_sums(estimate, log_scale, flow, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        from protoformer.flow import loss_kernels

        estimate, log_scale, flow, mask = ctx.saved_tensors
        with torch.cuda.device_of(flow):
            grads = loss_kernels.error_sums_gradient(grad_output.contiguous(), estimate, log_scale, flow, mask)
        return *grads, None, None
