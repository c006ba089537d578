"""Partitions of an image, H x W, int64, a number for every pixel: their pieces, who touches whom, and moving them.

All of it on the CPU.
"""

import torch
from torch import Tensor

from protoformer.geometry.grids import pixel_grid

NOBODY = -1
"""The number of pixels that are in no part."""
VOTES = 3
"""Times that the pixels of a moved partition take the number that most have around them, so that gaps close."""


def connected_pieces(labels: Tensor, values: Tensor | None = None, jump: float = torch.inf) -> Tensor:
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
    pieces: Tensor = lowest_linked(height * width, torch.cat(links, dim=1)).unique(return_inverse=True)[1]
    return pieces.view(height, width)


def lowest_linked(count: int, links: Tensor) -> Tensor:
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


def touching(labels: Tensor) -> Tensor:
    """Which labels have pixels that touch by a side: 2 x n, int64, each pair once, the lower first, in rising order."""
    ends = [torch.stack((labels[one].flatten(), labels[other].flatten())) for one, other in _beside(labels.shape)]
    return distinct_pairs(torch.cat(ends, dim=1), int(labels.max()) + 1)


def distinct_pairs(pairs: Tensor, count: int) -> Tensor:
    """Pairs (2 x n) of numbers below `count`, each once, the lower number first, none with itself: 2 x n, int64."""
    low, high = torch.minimum(pairs[0], pairs[1]), torch.maximum(pairs[0], pairs[1])
    keys = (low * count + high)[low != high].unique()
    return torch.stack((torch.div(keys, count, rounding_mode="floor"), keys % count))


def numbered_by_size(labels: Tensor) -> Tensor:
    """The same partition with the largest label as 0; of equals, that of the first pixel in reading order: H x W."""
    flat = labels.unique(return_inverse=True)[1].flatten()
    sizes = torch.bincount(flat)
    first = torch.full_like(sizes, len(flat)).scatter_reduce_(0, flat, torch.arange(len(flat)), "amin")
    order = first.argsort()
    order = order[sizes[order].argsort(descending=True, stable=True)]
    return order.argsort()[flat].view(labels.shape)


def moved_along(labels: Tensor, flow: Tensor, misfit: Tensor) -> Tensor:
    """Where labels are once every pixel has moved along the flow (2 x H x W, pixels), to the nearest: H x W, int64.

    Where several meet, the one of the least misfit (H x W, such as the difference of colour) stays. Then pixels
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
    moved = torch.full((height * width,), NOBODY)
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
