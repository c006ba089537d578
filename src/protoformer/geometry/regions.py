"""Label maps (H x W, int64): connected components, adjacency, warping and merging.

All functions run on the CPU.
"""

import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid

UNASSIGNED = -1
"""Label of pixels without a region."""
VOTES = 3
"""Number of majority filters after warping labels, which close gaps."""


def connected_components(labels: Tensor, values: Tensor | None = None, jump: float = torch.inf) -> Tensor:
    """Split labels, H x W, into 4-connected components, numbered from 0 in raster order of the first pixels.

    With values, C x H x W, neighbors of one label are connected if the distance of their values is less than `jump`.
    """
    height, width = labels.shape
    index = torch.arange(height * width).view(height, width)
    links = []
    for one, other in _neighbor_slices(labels.shape):
        connected = labels[one] == labels[other]
        if values is not None:
            connected &= (values[:, *one] - values[:, *other]).square().sum(dim=0) < jump**2
        links.append(torch.stack((index[one][connected], index[other][connected])))
    components: Tensor = merge_linked_labels(height * width, torch.cat(links, dim=1)).unique(return_inverse=True)[1]
    return components.view(height, width)


def merge_linked_labels(count: int, links: Tensor) -> Tensor:
    """Find the lowest label that each of `count` labels is linked with, directly or through others; links: 2 x n."""
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
    """Return the pairs of 4-adjacent labels: 2 x n, int64, unique and sorted, the lower label first."""
    ends = [
        torch.stack((labels[one].flatten(), labels[other].flatten())) for one, other in _neighbor_slices(labels.shape)
    ]
    return distinct_pairs(torch.cat(ends, dim=1), int(labels.max()) + 1)


def distinct_pairs(pairs: Tensor, count: int) -> Tensor:
    """Return the unique pairs of different labels below `count`: 2 x n to 2 x m, int64, sorted, the lower first."""
    low, high = torch.minimum(pairs[0], pairs[1]), torch.maximum(pairs[0], pairs[1])
    keys = (low * count + high)[low != high].unique()
    return torch.stack((torch.div(keys, count, rounding_mode="floor"), keys % count))


def relabel_by_size(labels: Tensor) -> Tensor:
    """Renumber labels by decreasing size, equal sizes in raster order of their first pixels: H x W, int64."""
    flat = labels.unique(return_inverse=True)[1].flatten()
    sizes = torch.bincount(flat)
    first = torch.full_like(sizes, len(flat)).scatter_reduce_(0, flat, torch.arange(len(flat)), "amin")
    order = first.argsort()
    order = order[sizes[order].argsort(descending=True, stable=True)]
    return order.argsort()[flat].view(labels.shape)


def warp_labels(labels: Tensor, flow: Tensor, misfit: Tensor) -> Tensor:
    """Warp labels forward along a flow to the nearest pixels, then apply majority filters to close gaps.

    Args:
        labels: H x W, int64.
        flow: 2 x H x W, pixels.
        misfit: H x W, such as a color difference; of several labels at one pixel the one with the lowest misfit wins.

    Returns:
        H x W, int64; `UNASSIGNED` where no label arrives.
    """
    height, width = labels.shape
    x, y = (pixel_grid(height, width) + flow).round().long()
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    index, cost, source = (y * width + x)[inside], misfit[inside], labels[inside]
    order = cost.argsort(stable=True)
    rank = torch.arange(len(order))
    first = torch.full((height * width,), len(order)).scatter_reduce_(0, index[order], rank, "amin")
    reached = first < len(order)
    moved = torch.full((height * width,), UNASSIGNED)
    moved[reached] = source[order][first[reached]]
    moved = moved.view(height, width)
    for _ in range(VOTES):
        neighbors = around(moved)
        mixed = (neighbors != neighbors[0]).any(dim=0).nonzero().flatten()
        neighbors = neighbors[:, mixed]
        votes = (neighbors[:, None] == neighbors).sum(dim=1)
        majority = neighbors.gather(0, votes.argmax(dim=0)[None])[0]  # its own label, the first, wins ties
        moved = moved.flatten().scatter(0, mixed, majority).view(height, width)
    return moved


def around(labels: Tensor) -> Tensor:
    """Return the label of each pixel and of its eight neighbors, with replicated borders: 9 x (H W), its own first."""
    height, width = labels.shape
    rows, columns = (torch.arange(-1, side + 1).clamp(0, side - 1) for side in (height, width))
    padded = labels[rows][:, columns]
    steps = sorted(((down, across) for down in range(3) for across in range(3)), key=lambda step: step != (1, 1))
    return torch.stack([padded[down : down + height, across : across + width] for down, across in steps]).flatten(1)


def _neighbor_slices(shape: torch.Size) -> tuple[tuple[tuple[slice, slice], tuple[slice, slice]], ...]:
    """Return pairs of slices that select horizontally and vertically neighboring pixels."""
    every = slice(None)
    return (
        ((every, slice(None, shape[1] - 1)), (every, slice(1, None))),
        ((slice(None, shape[0] - 1), every), (slice(1, None), every)),
    )


def contingency(labels: Tensor, truth: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the contingency table: number of pixels per label and true label, both in increasing order, int64."""
    if labels.shape != truth.shape:
        raise ValueError(f"labels of {tuple(labels.shape)} cannot be compared with those of {tuple(truth.shape)}")
    if counted is not None:
        labels, truth = labels[counted], truth[counted]
    row, column = (partition.unique(return_inverse=True)[1].flatten() for partition in (labels, truth))
    if not len(row):
        return torch.zeros(0, 0, dtype=torch.int64)
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    return torch.bincount(row * columns + column, minlength=rows * columns).view(rows, columns)


def boundaries(labels: Tensor) -> Tensor:
    """Return the boundary pixels, whose right or lower neighbor has another label: H x W, bool."""
    edge = torch.zeros_like(labels, dtype=torch.bool)
    edge[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    edge[:-1] |= labels[:-1] != labels[1:]
    return edge


def join_order(means: Tensor, sizes: Tensor) -> list[tuple[int, int]]:
    """Merge regions one pair at a time by Ward's method until one is left.

    The cost of merging regions of a and b pixels is the squared distance of their means times a b / (a + b).

    Args:
        means: n x C, mean features.
        sizes: n, pixels.

    Returns:
        The merges in order: (lower index, which remains; higher index, which is merged into it).
    """
    means, sizes, order = means.double(), sizes.double(), []
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist").square()
    cost = distances * (sizes[:, None] * sizes) / (sizes[:, None] + sizes).clamp_min(1)
    cost.fill_diagonal_(torch.inf)
    means, sizes = means.clone(), sizes.clone()
    for _ in range(len(sizes) - 1):
        target, other = sorted(divmod(int(cost.argmin()), len(sizes)))
        order.append((target, other))
        both = sizes[target] + sizes[other]
        means[target] = (means[target] * sizes[target] + means[other] * sizes[other]) / both.clamp_min(1)
        sizes[target] = both
        row = (means - means[target]).square().sum(dim=1) * (sizes * both) / (sizes + both).clamp_min(1)
        row[cost[target].isinf() & (torch.arange(len(row)) != other)] = torch.inf
        row[other] = torch.inf
        cost[target], cost[:, target], cost[other], cost[:, other] = row, row, torch.inf, torch.inf
    return order


def owners(count: int, joins: list[tuple[int, int]]) -> Tensor:
    """Return the region that each of `count` regions belongs to after the merges of `join_order`: count, int64."""
    owner = torch.arange(count)
    for target, other in joins:
        owner[owner == other] = target
    return owner
