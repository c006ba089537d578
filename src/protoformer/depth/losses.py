"""Loss functions for depth."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.flow.losses import laplace_nll
from protoformer.models.heads.depth import DepthPrediction, canonical_log_depth

VARIANCE_FOCUS = 0.85
"""Lambda of SILog: 1 makes it invariant to scale, 0 makes it a root mean square error."""
SILOG_WEIGHT = 10.0
MIN_VARIANCE = 1e-8
"""Lower limit under the square root, whose gradient is not finite at 0."""
NUM_SCALES = 4
"""Scales of the gradient term, with strides 1, 2, 4 and 8."""
DELTA1_LIMIT = math.log(1.25)


@dataclass(frozen=True)
class DepthLoss:
    """Loss of a batch; all values are scalars.

    Attributes:
        total: weighted sum to minimize.
        silog: scale-invariant log error, summed over updates with decaying weights.
        nll: negative log-likelihood of the error under the predicted scales, summed likewise.
        edges: multi-scale gradient error of the last update.
        abs_rel: mean |p - g| / g of the last update.
        delta1: fraction of pixels of the last update with max(p / g, g / p) < 1.25.
    """

    total: Tensor
    silog: Tensor
    nll: Tensor
    edges: Tensor
    abs_rel: Tensor
    delta1: Tensor


def valid_depth_mask(depth: Tensor, valid: Tensor, nearest: float, farthest: float) -> Tensor:
    """Return the pixels that enter the loss, N x 1 x H x W: valid ones with a depth between two bounds, exclusive.

    `depth` is the true depth, N x 1 x H x W, and the bounds are in meters; `valid` is N x 1 x H x W, bool.
    """
    mask: Tensor = valid & (depth > nearest) & (depth < farthest)
    return mask


def silog(error: Tensor, mask: Tensor) -> Tensor:
    """Scale-invariant log loss, 10 sqrt(mean d^2 - 0.85 (mean d)^2), over the masked pixels of the batch: scalar.

    `error` is the error d of the log depth, N x 1 x H x W, 0 outside the mask. Close to 0 if the mask is empty.
    """
    pixels = mask.sum().clamp_min(1)
    mean, square = error.sum() / pixels, error.square().sum() / pixels
    return SILOG_WEIGHT * (square - VARIANCE_FOCUS * mean.square()).clamp_min(MIN_VARIANCE).sqrt()


def edge_sum(error: Tensor, mask: Tensor) -> Tensor:
    """Sum the absolute gradients of the log depth error over the image and over four scales.

    Scale k samples with stride 2^k and has weight 4^k, so that the sum divided by the masked pixels is the sum of the
    scales' means.

    Args:
        error: error of the log depth, N x 1 x H x W, 0 outside the mask.
        mask: N x 1 x H x W, bool.
    """
    total = error.new_zeros(())
    for scale in range(NUM_SCALES):
        stride = 2**scale
        values, valid = error[..., ::stride, ::stride], mask[..., ::stride, ::stride]
        grad_x = (values.diff(dim=3).abs() * (valid[..., 1:] & valid[..., :-1])).sum()
        grad_y = (values.diff(dim=2).abs() * (valid[..., 1:, :] & valid[..., :-1, :])).sum()
        total = total + stride**2 * (grad_x + grad_y)
    return total


def depth_loss(
    prediction: DepthPrediction,
    depth: Tensor,
    mask: Tensor,
    focal: Tensor,
    gamma: float = 0.8,
    confidence: float = 0.1,
    edges: float = 1.0,
    pixels: Tensor | None = None,
) -> DepthLoss:
    """Compute the sequence loss of all updates, with confidence and gradient terms.

    SILog and the Laplace negative log-likelihood (NLL) of update i of n have weight gamma^(n - i - 1). The NLL takes
    the error as a constant, so that learning the confidence does not change the depth. Errors of the canonical log
    depth equal those of the metric one.

    Args:
        prediction: log depths and log scales of every update.
        depth: true depth, N x 1 x H x W, meters.
        mask: pixels that enter the loss, N x 1 x H x W, bool, from `valid_depth_mask`.
        focal: focal lengths, N, pixels.
        gamma: decay of the weights of earlier updates.
        confidence: weight of the NLL.
        edges: weight of the gradient term of the last update.
        pixels: scalar above 0, divisor of the sums instead of this batch's number of pixels. In distributed training
            it is the mean count over processes, so that the mean of their losses is the loss of the whole batch. SILog
            is not a mean: each process computes it for its own samples, weighted by its fraction of the pixels.
    """
    own_pixels = mask.sum()
    pixels = own_pixels.clamp_min(1) if pixels is None else pixels
    truth = canonical_log_depth(depth, focal)
    silog_loss = nll = truth.new_zeros(())
    num_updates = len(prediction.log_depths)
    for index, (log, log_scale) in enumerate(zip(prediction.log_depths, prediction.log_scales, strict=True)):
        weight = gamma ** (num_updates - index - 1)
        error = torch.where(mask, log - truth, 0.0)
        silog_loss = silog_loss + weight * silog(error, mask) * own_pixels / pixels
        nll_sum = (mask * laplace_nll(error.detach(), log_scale)).sum()
        nll = nll + weight * nll_sum / pixels
    edge_loss = edge_sum(error, mask) / pixels if edges else truth.new_zeros(())
    final_error = error.detach()
    return DepthLoss(
        total=silog_loss + confidence * nll + edges * edge_loss,
        silog=silog_loss,
        nll=nll,
        edges=edge_loss,
        abs_rel=(final_error.exp() - 1).abs().sum() / pixels,
        delta1=(mask & (final_error.abs() < DELTA1_LIMIT)).sum() / pixels,
    )
