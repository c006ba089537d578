"""Parts of an image that move as one: regions cut where the flow jumps, joined where one smooth motion suits both."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.geometry.partitions import around, connected_pieces, distinct_pairs, numbered_by_size, touching
from protoformer.inference.smooth_motions import MotionSums, motion_terms

JUMP = 0.5
"""Pixels by which the flow differs between two neighbours that do not hang together."""
MOST_PIECES, MOST_JUMP = 8192, 64.0
"""Pieces to begin with, above which that difference is doubled, and pixels up to which it is: for the sake of time."""
MOST_DISTANT = 128
"""Parts, the largest, that may be joined though they do not touch, for the sake of time as well."""
TOLERANCE = 0.5
"""Pixels, root mean square over the smaller of two parts, by which one motion for both may suit them worse."""
RELATIVE = 0.02
"""What is added to that, as a share of the speed of the slower one: fast motion is found less exactly."""
WEIGHTY = 1 / 400
"""Of an image's pixels: a part with fewer is held to have this many, so it has to differ the more from neighbours."""
SLIVER = 1 / 2000
"""Of an image's pixels: a piece with fewer goes to the neighbour whose motion suits it best."""
LEAST_WEIGHT = 0.05
"""Of a pixel in whose flow there is no confidence; with full confidence it weighs 1."""
ROUNDS = 10
"""Times that pixels at a border may change sides."""
SMOOTHNESS = 0.15
"""Pixels, squared, that a neighbour in another part costs a pixel at a border."""
WORST = 4.0
"""Pixels, squared: at a border no part suits a pixel worse than this."""

Allowed = Callable[[Tensor, MotionSums, MotionSums], Tensor]
"""From what joins cost, n, px^2, and the sums of their two sides, to whether they are to be: n, bool."""


def moving_parts(regions: Tensor, flow: Tensor, confidence: Tensor | None = None) -> Tensor:
    """Parts that move as one: H x W, int64, numbered from 0 by falling size.

    regions: H x W, int64, such as the prototypes of pixels; flow: 2 x H x W, pixels; confidence: 1 x H x W in [0, 1].
    Regions are cut into connected pieces, and where the flow jumps. Neighbours are joined, those first that lose least
    by having one motion, until none of the joins left is within the tolerance. Pixels at a border go to the side whose
    motion suits them, and at last parts are joined that do not touch, such as what is seen of a background to the left
    and to the right of a thing.
    """
    weights = torch.ones_like(flow[0]) if confidence is None else confidence[0].clamp_min(LEAST_WEIGHT)
    least, alike = SLIVER * regions.numel(), _alike(WEIGHTY * regions.numel())
    joining = Joining.of(_pieces(regions, flow), flow, weights)
    joining = joining.joined(alike).joined(_slivers(least)).joined(alike)
    parts = _with_better_borders(joining.parts, flow, joining.sums.motions())
    joining = Joining.of(connected_pieces(parts), flow, weights).joined(_slivers(least))
    return numbered_by_size(joining.with_distant_pairs().joined(_alike(0)).parts)


def _pieces(regions: Tensor, flow: Tensor) -> Tensor:
    """Connected pieces of regions, H x W, cut where the flow jumps; only where it jumps more if they would be many."""
    jump = JUMP
    while int((pieces := connected_pieces(regions, flow, jump)).max()) >= MOST_PIECES and jump < MOST_JUMP:
        jump *= 2
    return pieces


def _alike(least: float) -> Allowed:
    """Joins that one motion suits; a part of less weight is held to have this much."""

    def allowed(cost: Tensor, one: MotionSums, other: MotionSums) -> Tensor:
        smaller = torch.minimum(one.weight, other.weight).clamp_min(least)
        tolerance = TOLERANCE + RELATIVE * torch.minimum(one.speed(), other.speed())
        return cost < tolerance.square() * smaller

    return allowed


def _slivers(least: float) -> Allowed:
    """Joins of pieces that have fewer pixels."""
    return lambda cost, one, other: torch.minimum(one.pixels, other.pixels) < least


@dataclass(frozen=True, eq=False)
class Joining:
    """Parts on their way to fewer: H x W, int64, 0 .. n - 1, with their sums, and the pairs that may join, 2 x m."""

    parts: Tensor
    sums: MotionSums
    pairs: Tensor

    @classmethod
    def of(cls, parts: Tensor, flow: Tensor, weights: Tensor) -> "Joining":
        """Of parts that may join where they touch."""
        return cls(parts, MotionSums.of(parts, flow, weights), touching(parts))

    def with_distant_pairs(self) -> "Joining":
        """The same, where any two of the largest may join."""
        largest = self.sums.pixels.argsort(descending=True, stable=True)[:MOST_DISTANT].sort().values
        return replace(self, pairs=torch.combinations(largest).T)

    def joined(self, allowed: Allowed) -> "Joining":
        """After all joins that are allowed.

        What a join costs is how much more is left of the flow by one motion than by two, as in Ward's method. In every
        round all pairs are joined that are each other's cheapest.
        """
        sums, pairs, owner = self.sums, self.pairs, torch.arange(len(self.sums))
        while pairs.shape[1]:
            one, other, alone = sums.at(pairs[0]), sums.at(pairs[1]), sums.residual()
            cost = (one + other).residual() - alone[pairs[0]] - alone[pairs[1]]
            good = allowed(cost, one, other)
            if not bool(good.any()):
                break
            chosen = good & _mutual(pairs, torch.where(good, cost, torch.inf), len(sums))
            onto = torch.arange(len(sums))
            onto[pairs[1, chosen]] = pairs[0, chosen]
            onto = onto.unique(return_inverse=True)[1]
            sums, owner = sums.joined(onto), onto[owner]
            pairs = distinct_pairs(onto[pairs], len(sums))
        return Joining(owner[self.parts], sums, pairs)


def _mutual(pairs: Tensor, cost: Tensor, count: int) -> Tensor:
    """Which pairs (2 x m) of `count` parts are the cheapest of both their sides; of equals the first: m, bool."""
    rank = torch.empty_like(pairs[0])
    rank[cost.argsort(stable=True)] = torch.arange(len(rank))
    best = torch.full((count,), len(rank))
    for side in pairs:
        best.scatter_reduce_(0, side, rank, "amin")
    return (best[pairs[0]] == rank) & (best[pairs[1]] == rank)


def _with_better_borders(parts: Tensor, flow: Tensor, motions: Tensor) -> Tensor:
    """Pixels at borders given to that part among those around them whose motion, n x 6 x 2, suits their flow best.

    It costs a pixel something, too, to be in another part than its neighbours, so that borders are smooth: H x W.
    """
    height, width = parts.shape
    terms, found = motion_terms((height, width)).T, flow.flatten(1).T.double()
    for _ in range(ROUNDS):
        every = around(parts)
        border = (every != every[0]).any(dim=0).nonzero().flatten()
        near = every[:, border]  # 9 x m: its own part first, so that it stays where nothing is better
        predicted = torch.einsum("cmtk,mt->cmk", motions[near], terms[border])
        misfit = (predicted - found[border]).square().sum(dim=2).clamp(max=WORST)
        strangers = (near[:, None] != near[1:]).sum(dim=1)
        best = (misfit + SMOOTHNESS * strangers).argmin(dim=0)
        chosen = near.gather(0, best[None])[0]
        if torch.equal(chosen, near[0]):
            break
        parts = parts.flatten().scatter(0, border, chosen).view(height, width)
    return parts
