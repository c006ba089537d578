"""Partitions of an image, H x W, int64, a number for every pixel: their pieces, who touches whom, and moving them.

All of it on the CPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import pixel_grid

UNASSIGNED = -1
"""The number of pixels that are in no part."""
VOTES = 3
"""Times that the pixels of a moved partition take the number that most have around them, so that gaps close."""


def connected_components(labels: Tensor, values: Tensor | None = None, jump: float = torch.inf) -> Tensor:
    """Every label cut into its connected pieces, numbered from 0 in reading order of their first pixels: H x W.

    Pixels hang together that touch by a side, have one label, and whose values (C x H x W) differ by less than `jump`.
    """
    height, width = labels.shape
    number = torch.arange(height * width).view(height, width)
    links = []
    for one, other in _beside(labels.shape):
        together = labels[one] == labels[other]
        if values is not None:
            together &= (values[:, *one] - values[:, *other]).square().sum(dim=0) < jump**2
        links.append(torch.stack((number[one][together], number[other][together])))
    pieces: Tensor = merge_linked_labels(height * width, torch.cat(links, dim=1)).unique(return_inverse=True)[1]
    return pieces.view(height, width)


def merge_linked_labels(count: int, links: Tensor) -> Tensor:
    """The lowest of all that each of `count` numbers is linked with, straight or through others: count, int64.

    links: 2 x n, int64.
    """
    lowest = torch.arange(count)
    while True:
        ends = lowest[links]
        low = torch.minimum(ends[0], ends[1])
        lower = lowest.scatter_reduce(0, ends[0], low, "amin").scatter_reduce_(0, ends[1], low, "amin")
        while not torch.equal(further := lower[lower], lower):
            lower = further
        if torch.equal(lower, lowest):
            return lowest
        lowest = lower


def adjacent_pairs(labels: Tensor) -> Tensor:
    """Which labels have pixels that touch by a side: 2 x n, int64, each pair once, the lower first, in rising order."""
    ends = [torch.stack((labels[one].flatten(), labels[other].flatten())) for one, other in _beside(labels.shape)]
    return distinct_pairs(torch.cat(ends, dim=1), int(labels.max()) + 1)


def distinct_pairs(pairs: Tensor, count: int) -> Tensor:
    """Pairs (2 x n) of numbers below `count`, each once, the lower number first, none with itself: 2 x n, int64."""
    low, high = torch.minimum(pairs[0], pairs[1]), torch.maximum(pairs[0], pairs[1])
    keys = (low * count + high)[low != high].unique()
    return torch.stack((torch.div(keys, count, rounding_mode="floor"), keys % count))


def relabel_by_size(labels: Tensor) -> Tensor:
    """The same partition with the largest label as 0; of equals, that of the first pixel in reading order: H x W."""
    flat = labels.unique(return_inverse=True)[1].flatten()
    sizes = torch.bincount(flat)
    first = torch.full_like(sizes, len(flat)).scatter_reduce_(0, flat, torch.arange(len(flat)), "amin")
    order = first.argsort()
    order = order[sizes[order].argsort(descending=True, stable=True)]
    return order.argsort()[flat].view(labels.shape)


def warp_labels(labels: Tensor, flow: Tensor, misfit: Tensor) -> Tensor:
    """Where labels are once every pixel has moved along the flow (2 x H x W, pixels), to the nearest: H x W, int64.

    Where several meet, the one of the least misfit (H x W, such as the difference of color) stays. Then pixels
    take the number of most around them, so that gaps close and specks go; where nothing arrives is NOBODY.
    """
    height, width = labels.shape
    x, y = (pixel_grid(height, width) + flow).round().long()
    lands = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    index, cost, moving = (y * width + x)[lands], misfit[lands], labels[lands]
    order = cost.argsort(stable=True)
    place = torch.arange(len(order))
    first = torch.full((height * width,), len(order)).scatter_reduce_(0, index[order], place, "amin")
    reached = first < len(order)
    moved = torch.full((height * width,), UNASSIGNED)
    moved[reached] = moving[order][first[reached]]
    moved = moved.view(height, width)
    for _ in range(VOTES):
        near = around(moved)
        mixed = (near != near[0]).any(dim=0).nonzero().flatten()
        near = near[:, mixed]
        votes = (near[:, None] == near).sum(dim=1)
        most = near.gather(0, votes.argmax(dim=0)[None])[0]  # of equals its own, which comes first
        moved = moved.flatten().scatter(0, mixed, most).view(height, width)
    return moved


def around(labels: Tensor) -> Tensor:
    """Of every pixel its own label and those of the eight around it, the border going on beyond itself: 9 x (H W)."""
    height, width = labels.shape
    rows, columns = (torch.arange(-1, side + 1).clamp(0, side - 1) for side in (height, width))
    padded = labels[rows][:, columns]
    steps = sorted(((down, across) for down in range(3) for across in range(3)), key=lambda each: each != (1, 1))
    return torch.stack([padded[down : down + height, across : across + width] for down, across in steps]).flatten(1)


def _beside(shape: torch.Size) -> tuple[tuple[tuple[slice, slice], tuple[slice, slice]], ...]:
    """Of pixels that touch, sideways and downwards, the one and the other."""
    every = slice(None)
    return (
        ((every, slice(None, shape[1] - 1)), (every, slice(1, None))),
        ((slice(None, shape[0] - 1), every), (slice(1, None), every)),
    )


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
    """Pixels whose right or lower neighbor has another label: H x W, bool."""
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


def best_merge(labels: Tensor, truth: Tensor) -> Tensor:
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
