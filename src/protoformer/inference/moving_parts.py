"""Parts of an image that move as one: regions cut where the flow jumps, joined where one smooth motion suits both."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.geometry.partitions import (
    around,
    connected_pieces,
    distinct_pairs,
    lowest_linked,
    numbered_by_size,
    touching,
)
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

    regions: H x W, int64, such as the prototypes of pixels; flow: 2 x H x W, pixels; confidence: 1 x H x W in [0, 1];
    all of them finite, and on the CPU. Regions are cut into connected pieces, and where the flow jumps. Neighbours are
    joined, those first that lose least by having one motion, until none of the joins left is within the tolerance;
    slivers go to a neighbour in any case. Pixels at a border go to the side whose motion suits them, and at last large
    parts are joined that do not touch, such as what is seen of a background to the left and to the right of a thing.
    """
    weights = torch.ones_like(flow[0]) if confidence is None else confidence[0].clamp_min(LEAST_WEIGHT)
    least, alike = SLIVER * regions.numel(), _alike(WEIGHTY * regions.numel())
    joining = Joining.of(_pieces(regions, flow), flow, weights)
    joining = joining.joined(alike).without_slivers(least).joined(alike)
    parts = _with_better_borders(joining.parts, flow, joining.sums.motions())
    joining = Joining.of(connected_pieces(parts), flow, weights).without_slivers(least)
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
        joining = self
        while True:
            sides = joining._sides()
            cost = joining._cost(*sides)
            good = allowed(cost, *sides)
            if not bool(good.any()):
                return joining
            pairs = joining.pairs[:, good]
            cheapest = _cheapest(pairs, cost[good], len(joining.sums))
            joining = joining._linked(pairs[:, cheapest.all(dim=0)])

    def without_slivers(self, least: float) -> "Joining":
        """After every part of fewer pixels has gone to the neighbour that costs least."""
        joining = self
        while bool((small := joining.sums.pixels[joining.pairs] < least).any()):
            cheapest = _cheapest(joining.pairs, joining._cost(*joining._sides()), len(joining.sums))
            joining = joining._linked(joining.pairs[:, (cheapest & small).any(dim=0)])
        return joining

    def _sides(self) -> tuple[MotionSums, MotionSums]:
        return self.sums.at(self.pairs[0]), self.sums.at(self.pairs[1])

    def _cost(self, one: MotionSums, other: MotionSums) -> Tensor:
        """Of each pair that may join, by its two sides: m, px^2."""
        alone = self.sums.residual()
        return (one + other).residual() - alone[self.pairs[0]] - alone[self.pairs[1]]

    def _linked(self, links: Tensor) -> "Joining":
        """After these pairs, 2 x n, have become one, and all that hang together by them."""
        onto: Tensor = lowest_linked(len(self.sums), links).unique(return_inverse=True)[1]
        sums = self.sums.joined(onto)
        return Joining(onto[self.parts], sums, distinct_pairs(onto[self.pairs], len(sums)))


def _cheapest(pairs: Tensor, cost: Tensor, count: int) -> Tensor:
    """Of `count` parts, whether a pair (2 x m) is the cheapest of its one side, and of its other: 2 x m, bool.

    Of equals, one that is drawn, in the same way every time: were it the first, one part would grow along a row of
    them step by step.
    """
    drawn = torch.randperm(len(cost), generator=torch.Generator().manual_seed(0))
    rank = torch.empty_like(drawn)
    rank[drawn[cost[drawn].argsort(stable=True)]] = torch.arange(len(rank))
    best = torch.full((count,), len(rank))
    for side in pairs:
        best.scatter_reduce_(0, side, rank, "amin")
    return best[pairs] == rank


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
