"""How well regions of an image agree with its true parts: maps of labels, H x W, int64, in any numbering."""

import torch
import torch.nn.functional as F
from torch import Tensor

REACH = 2
"""Pixels, each way, within which a true boundary counts as found."""


def adjusted_rand_index(labels: Tensor, truth: Tensor, counted: Tensor | None = None) -> float:
    """How often two partitions agree on whether two pixels belong together: 1 if always, 0 as often as by chance.

    Hubert and Arabie (1985). counted: H x W, bool, the pixels that count. Two partitions of one part each agree.
    """
    table = contingency(labels, truth, counted).double()
    together, ours, theirs = (_pairs(counts).sum() for counts in (table, table.sum(dim=1), table.sum(dim=0)))
    expected = ours * theirs / _pairs(table.sum()).clamp_min(1)
    most = (ours + theirs) / 2
    return 1.0 if float(most - expected) == 0 else float((together - expected) / (most - expected))


def contingency(labels: Tensor, truth: Tensor, counted: Tensor | None = None) -> Tensor:
    """How many pixels each label shares with each true one: labels x true labels, int64, both in rising order."""
    if labels.shape != truth.shape:
        raise ValueError(f"labels of {tuple(labels.shape)} cannot be compared with those of {tuple(truth.shape)}")
    if counted is not None:
        labels, truth = labels[counted], truth[counted]
    ours, theirs = (each.unique(return_inverse=True)[1].flatten() for each in (labels, truth))
    if not len(ours):
        return torch.zeros(0, 0, dtype=torch.int64)
    rows, columns = int(ours.max()) + 1, int(theirs.max()) + 1
    return torch.bincount(ours * columns + theirs, minlength=rows * columns).view(rows, columns)


def boundaries(labels: Tensor) -> Tensor:
    """Pixels whose right or lower neighbour has another label: H x W, bool."""
    edge = torch.zeros_like(labels, dtype=torch.bool)
    edge[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    edge[:-1] |= labels[:-1] != labels[1:]
    return edge


def boundary_recall(labels: Tensor, truth: Tensor, reach: int = REACH) -> float:
    """The share of true boundary pixels that have a boundary of the labels within `reach` pixels each way; NaN: none.

    Regions in small pieces have boundaries everywhere, so look at `boundary_share` beside it.
    """
    wanted = boundaries(truth)
    near = F.max_pool2d(boundaries(labels)[None, None].float(), 2 * reach + 1, stride=1, padding=reach)[0, 0] > 0
    return float(near[wanted].float().mean()) if bool(wanted.any()) else float("nan")


def boundary_share(labels: Tensor) -> float:
    """The share of an image's pixels that lie at a boundary."""
    return float(boundaries(labels).float().mean())


def best_joined(labels: Tensor, truth: Tensor) -> Tensor:
    """Every region given to the true part that it shares most pixels with: the best that joining regions can reach.

    H x W, int64, the number of the true part among those there are, in rising order.
    """
    winner = contingency(labels, truth).argmax(dim=1)
    return winner[labels.unique(return_inverse=True)[1]]


def join_order(means: Tensor, sizes: Tensor) -> list[tuple[int, int]]:
    """Which parts are joined one after the other, (the lower number, that stays; the other), until one is left.

    means: n x C; sizes: n, pixels. As in Ward's method, what a join costs is the squared distance of the means times
    a b / (a + b) for parts of a and b pixels, so that small ones are joined before large ones.
    """
    means, sizes, order = means.double(), sizes.double(), []
    gaps = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist").square()
    cost = gaps * (sizes[:, None] * sizes) / (sizes[:, None] + sizes).clamp_min(1)
    cost.fill_diagonal_(torch.inf)
    means, sizes = means.clone(), sizes.clone()
    for _ in range(len(sizes) - 1):
        kept, gone = sorted(divmod(int(cost.argmin()), len(sizes)))
        order.append((kept, gone))
        both = sizes[kept] + sizes[gone]
        means[kept] = (means[kept] * sizes[kept] + means[gone] * sizes[gone]) / both.clamp_min(1)
        sizes[kept] = both
        row = (means - means[kept]).square().sum(dim=1) * (sizes * both) / (sizes + both).clamp_min(1)
        row[cost[kept].isinf() & (torch.arange(len(row)) != gone)] = torch.inf
        row[gone] = torch.inf
        cost[kept], cost[:, kept], cost[gone], cost[:, gone] = row, row, torch.inf, torch.inf
    return order


def owners(count: int, joins: list[tuple[int, int]]) -> Tensor:
    """The part that each of `count` parts has become one with after these joins: count, int64."""
    owner = torch.arange(count)
    for kept, gone in joins:
        owner[owner == gone] = kept
    return owner


def _pairs(counts: Tensor) -> Tensor:
    return counts * (counts - 1) / 2
