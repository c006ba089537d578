"""A first flow by global matching: where in all of the second image each part of the first is found.

A recurrent decoder that begins at zero sees as far as its look-ups reach, and a fast thing is found by luck. Here every
cell of the first image is compared with every cell of the second, at half the resolution of the features. Training asks
how likely the true cell is among all, and that a cell which the second image does not show is said to be nowhere; a
distance to the true place would teach less, because the mean of two places that look alike is a third.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.resizing import Padding, upsample_2x
from protoformer.geometry.warps import pixel_grid
from protoformer.models.heads.correlation import window_index
from protoformer.models.kernels.reference import means
from protoformer.models.prototyping import Prototyping
from protoformer.models.runtime import (
    accumulation_dtype,
    full_precision,
    map_size,
    maps_to_tokens,
    merge_heads,
    split_heads,
    to_autocast_dtype,
    tokens_to_maps,
)

CELL = 2
"""Pixels of the features along a side of what is matched at once."""
COMPARED = 2**22
"""How many pairs of cells are compared at a time where memory is short; it does not change the result."""
SHARPNESS = 15.0
"""What likeness is multiplied by before its softmax, at first: the right place then outweighs a thousand others."""
NOWHERE = 0.4
"""Likeness of nowhere, at first: less than that of a place that shows the same, more than that of a chance."""
WINDOW = 3
"""Cells along a side of the surroundings of the likeliest one, whose mean is where a cell goes."""
REACHES = (15, 7, 3, 1)
"""Cells to each side over which the flow of sure cells is averaged, to reach those that are not sure."""
DOUBT = 0.05
"""How much what is known from farther away weighs where nothing near is sure."""


@dataclass(frozen=True)
class MatchResult:
    """What was found where.

    flow: B x 2 x H x W, pixels of the features, has no gradient. size: rows and columns of cells.
    log_shares: B x n x (n + 1), the logarithm of how likely each cell went to each cell, and last to none of them.
    """

    flow: Tensor
    size: tuple[int, int]
    log_shares: Tensor


class GlobalMatching(nn.Module):
    """Likeness of all cells with all cells, and with nowhere; it is the cosine of what `cells` says of them.

    log_sharpness: the logarithm of what likeness is multiplied by. nowhere: the likeness of nowhere.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(SHARPNESS)))
        self.nowhere = nn.Parameter(torch.tensor(NOWHERE))

    def forward(self, source: Tensor, target: Tensor) -> MatchResult:
        """source, target: B x C x H x W features."""
        cells = self._described(source, target)
        with full_precision(source):
            size = map_size(cells[0])
            log_shares = self._log_shares(*_distinct(*cells))
            return MatchResult(_spread(_reached(log_shares.detach(), size), size, source), size, log_shares)

    def flow(self, source: Tensor, target: Tensor, low_memory: bool = False) -> Tensor:
        """The flow alone; low_memory: never hold all pairs of cells."""
        cells = self._described(source, target)
        with full_precision(source):
            size = map_size(cells[0])
            ours, theirs = _distinct(*cells)
            parts = ours.split(max(1, COMPARED // (len(ours) * ours.shape[1])), dim=1) if low_memory else (ours,)
            reached = [_reached(self._log_shares(some, theirs), size) for some in parts]
            return _spread(torch.cat(reached, dim=1), size, source)

    def _described(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Cells of both maps, B x C x h x w each."""
        padding = Padding.to_multiple(*map_size(source), CELL)
        found = self.cells(F.avg_pool2d(padding.pad(torch.cat((source, target))), CELL))
        return found[: source.shape[0]], found[source.shape[0] :]

    def _log_shares(self, cells: Tensor, target: Tensor) -> Tensor:
        likeness = cells @ target.transpose(1, 2)
        nowhere = self.nowhere.expand(*likeness.shape[:2], 1)
        return (self.log_sharpness.exp() * torch.cat((likeness, nowhere), dim=2)).log_softmax(dim=2)


def _distinct(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Cells of both images as B x n x C, less what those of both have in common, and of length 1."""
    ours, theirs = maps_to_tokens(ours.float()), maps_to_tokens(theirs.float())
    common = (ours.mean(dim=1, keepdim=True) + theirs.mean(dim=1, keepdim=True)) / 2
    return F.normalize(ours - common, dim=2), F.normalize(theirs - common, dim=2)


def _reached(log_shares: Tensor, size: tuple[int, int]) -> Tensor:
    """Where cells went, x and y in cells, and how sure that is, 0 to 1: B x n x 3."""
    # Looked up, not computed from the number of a cell, which an export could not do for a size that it leaves open.
    places = pixel_grid(*size, log_shares.device).flatten(1).T
    corner = places[log_shares[..., :-1].argmax(dim=2)].long() - WINDOW // 2
    index, within = window_index(corner, WINDOW, size)
    near = log_shares.gather(2, index).masked_fill(within == 0, -math.inf)
    # Shares that are all too small to be told from 0 have a mean all the same, since the likeliest is in the window.
    shares, trust = near.softmax(dim=2), near.exp().sum(dim=2, keepdim=True)
    return torch.cat(((shares[..., None] * places[index]).sum(dim=2), trust), dim=2)


def _spread(reached: Tensor, size: tuple[int, int], features: Tensor) -> Tensor:
    """The flow of every pixel of the features: cells that are not sure go with the sure ones around, or stay."""
    flow = tokens_to_maps(reached[..., :2], size) - pixel_grid(*size, reached.device)
    # Squared: many unsure cells must not outvote a sure one.
    trust = tokens_to_maps(reached[..., 2:], size) ** 2
    known = torch.cat((flow * trust, trust), dim=1)
    filled = torch.zeros_like(flow)
    for reach in (*REACHES, 0):
        around = F.avg_pool2d(known, 2 * reach + 1, stride=1, padding=reach)
        doubt = DOUBT * (1 - around[:, 2:])
        filled = (around[:, :2] + doubt * filled) / (around[:, 2:] + doubt)
    return Padding.to_multiple(*map_size(features), CELL).crop(upsample_2x(CELL * filled))


class PixelAggregation(nn.Module):
    """Global motion aggregation (GMA): attention between all pixels by the likeness of their context."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Linear(channels, channels, bias=False)
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What stays the same over the updates of a pair: queries and keys, B x 1 x HW x C."""
        tokens = maps_to_tokens(context)
        return split_heads(self.query(tokens), 1), split_heads(self.key(tokens), 1)

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """motion: B x C x H x W; returns it with what its like see added."""
        query, key = prepared
        gathered = F.scaled_dot_product_attention(query, key, split_heads(self.value(maps_to_tokens(motion)), 1))
        return motion + self.strength * tokens_to_maps(merge_heads(gathered), map_size(motion))


class PrototypeAggregation(nn.Module):
    """The same through prototypes of the context: motion is averaged over each group, and handed back to its members.

    Cost is linear in the pixels, where attention between all of them is quadratic.
    """

    def __init__(self, channels: int, prototyping: Prototyping) -> None:
        super().__init__()
        self.prototyping = prototyping
        self.value = nn.Linear(channels, channels, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What stays the same over the updates of a pair: memberships in the final groups, and their mass.

        B x heads x K x HW, and their sums over the pixels, B x heads x K.
        """
        tokens, size = maps_to_tokens(context), map_size(context)
        keys, _ = self.prototyping.keys_and_values(tokens)
        # Every update multiplies by them twice: they are brought to the precision of products once.
        shares = to_autocast_dtype(self.prototyping.memberships(self.prototyping(tokens, size).centers, keys, size))
        return shares, shares.sum(dim=-1, dtype=accumulation_dtype(shares.dtype))

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """motion: B x C x H x W; returns it with what its group sees added."""
        shares, mass = prepared
        values = split_heads(self.value(maps_to_tokens(motion)), shares.shape[1])
        groups = means(shares.to(values.dtype) @ values, mass)
        shared = merge_heads(shares.transpose(-2, -1) @ groups.to(shares.dtype))
        return motion + self.strength * tokens_to_maps(shared, map_size(motion))
