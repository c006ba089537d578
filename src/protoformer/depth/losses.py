"""What training makes small for depth."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.flow.losses import laplace_nll
from protoformer.models.heads.depth import DepthPrediction, canonical_log

FOCUS = 0.85
"""How much of the mean error SILog forgives: 1 would not mind a wrong scale at all, 0 is a plain root mean square."""
STRENGTH = 10.0
LEAST_VARIANCE = 1e-8
"""Below it the root has no gradient to speak of, and at 0 none that is finite."""
SCALES = 4
"""Edges are compared at every pixel, every second, every fourth and every eighth."""
CLOSE = math.log(1.25)


@dataclass(frozen=True)
class DepthLoss:
    """Scalars: the total to minimize and its three parts; of the last estimate the mean |p - g| / g and delta1."""

    total: Tensor
    silog: Tensor
    surprise: Tensor
    edges: Tensor
    abs_rel: Tensor
    delta1: Tensor


def count_valid_depths(depth: Tensor, valid: Tensor, nearest: float, farthest: float) -> Tensor:
    """Pixels that the loss looks at, known ones between two depths in meters: N x 1 x H x W, bool."""
    counted: Tensor = valid & (depth > nearest) & (depth < farthest)
    return counted


def silog(error: Tensor, counted: Tensor) -> Tensor:
    """10 sqrt(mean d^2 - 0.85 (mean d)^2) of errors d of a log depth, over the pixels that count in the whole batch.

    error: N x 1 x H x W, 0 where it does not count; counted: N x 1 x H x W, bool. It is next to 0 where none counts.
    """
    pixels = counted.sum().clamp_min(1)
    mean, square = error.sum() / pixels, error.square().sum() / pixels
    return STRENGTH * (square - FOCUS * mean.square()).clamp_min(LEAST_VARIANCE).sqrt()


def edge_sum(error: Tensor, counted: Tensor) -> Tensor:
    """How differently two log depths change from a pixel to the next: summed over the image, and over four scales.

    A scale looks at every 2^k-th pixel, and weighs each as many times as it stands for, so that divided by the pixels
    that count the sum is that of the scales' means. error, counted: as for `silog`.
    """
    total = error.new_zeros(())
    for scale in range(SCALES):
        step = 2**scale
        values, known = error[..., ::step, ::step], counted[..., ::step, ::step]
        across = (values.diff(dim=3).abs() * (known[..., 1:] & known[..., :-1])).sum()
        down = (values.diff(dim=2).abs() * (known[..., 1:, :] & known[..., :-1, :])).sum()
        total = total + step**2 * (across + down)
    return total


def depth_loss(
    prediction: DepthPrediction,
    depth: Tensor,
    counted: Tensor,
    focal: Tensor,
    gamma: float = 0.8,
    confidence: float = 0.1,
    edges: float = 1.0,
    pixels: Tensor | None = None,
) -> DepthLoss:
    """The sum over updates i of n of gamma^(n - i - 1) SILog_i and as much of the scales' surprise, and the edges.

    depth: N x 1 x H x W, meters; counted: N x 1 x H x W, bool, from `counted_depths`; focal: N, pixels. The errors of a
    canonical log depth are those of the metric one. The surprise, a mean over the pixels, is weighted by `confidence`,
    and the error enters it as a given; the edges are those of the last estimate, weighted by `edges`.

    pixels: scalar above 0, how many pixels to divide by instead of this batch's own. Processes that share a batch each
    take the mean of their counts, so that the mean of their losses is that of the whole batch. SILog is no mean: there
    each process has that of its own samples, weighted by how many of all the pixels that count are its own.
    """
    own = counted.sum()
    pixels = own.clamp_min(1) if pixels is None else pixels
    truth = canonical_log(depth, focal)
    of_silog = surprise = truth.new_zeros(())
    count = len(prediction.logs)
    for index, (log, log_scale) in enumerate(zip(prediction.logs, prediction.log_scales, strict=True)):
        weight = gamma ** (count - index - 1)
        error = torch.where(counted, log - truth, 0.0)
        of_silog = of_silog + weight * silog(error, counted) * own / pixels
        unexpected = (counted * laplace_nll(error.detach(), log_scale)).sum()
        surprise = surprise + weight * unexpected / pixels
    of_edges = edge_sum(error, counted) / pixels if edges else truth.new_zeros(())
    off = error.detach()
    return DepthLoss(
        total=of_silog + confidence * surprise + edges * of_edges,
        silog=of_silog,
        surprise=surprise,
        edges=of_edges,
        abs_rel=(off.exp() - 1).abs().sum() / pixels,
        delta1=(counted & (off.abs() < CLOSE)).sum() / pixels,
    )
