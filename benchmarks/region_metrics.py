"""Agreement of regions with true segments: adjusted Rand index, boundary recall and best merge."""

import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.regions import boundaries, contingency

TOLERANCE = 2
"""Tolerance of the boundary recall, in pixels per axis."""


def adjusted_rand_index(labels: Tensor, truth: Tensor, mask: Tensor | None = None) -> float:
    """Compute the adjusted Rand index (Hubert and Arabie, 1985).

    Args:
        labels: H x W, int64.
        truth: H x W, int64.
        mask: H x W, bool, pixels to compare; None: all.

    Returns:
        1 for equal partitions, about 0 for random ones. Two partitions of one region each give 1.
    """
    table = contingency(labels, truth, mask).double()
    both, in_labels, in_truth = (_num_pairs(counts).sum() for counts in (table, table.sum(dim=1), table.sum(dim=0)))
    expected = in_labels * in_truth / _num_pairs(table.sum()).clamp_min(1)
    maximum = (in_labels + in_truth) / 2
    return 1.0 if float(maximum - expected) == 0 else float((both - expected) / (maximum - expected))


def boundary_recall(labels: Tensor, truth: Tensor, tolerance: int = TOLERANCE) -> float:
    """Compute the fraction of true boundary pixels with a predicted boundary nearby.

    Small regions have boundaries everywhere, so this is only meaningful together with `boundary_fraction`.

    Args:
        labels: H x W, int64.
        truth: H x W, int64.
        tolerance: Maximum distance per axis, in pixels.

    Returns:
        Recall in [0, 1]; NaN if there are no true boundaries.
    """
    target = boundaries(truth)
    near = (
        F.max_pool2d(boundaries(labels)[None, None].float(), 2 * tolerance + 1, stride=1, padding=tolerance)[0, 0] > 0
    )
    return float(near[target].float().mean()) if bool(target.any()) else float("nan")


def boundary_fraction(labels: Tensor) -> float:
    """Compute the fraction of pixels that are boundary pixels."""
    return float(boundaries(labels).float().mean())


def best_merge(labels: Tensor, truth: Tensor) -> Tensor:
    """Assign each region to the true segment with the largest overlap, the best that merging whole regions can do.

    Returns:
        H x W, int64, the rank of the true label among all true labels.
    """
    best = contingency(labels, truth).argmax(dim=1)
    return best[labels.unique(return_inverse=True)[1]]


def _num_pairs(counts: Tensor) -> Tensor:
    return counts * (counts - 1) / 2
