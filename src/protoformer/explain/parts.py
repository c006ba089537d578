"""Parts of an image that move as one: regions cut where the flow jumps, joined where one smooth motion suits both."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from protoformer.explain.groups import Group, at_pixels, extract_groups
from protoformer.geometry.regions import (
    adjacent_pairs,
    around,
    connected_components,
    contingency,
    distinct_pairs,
    merge_linked_labels,
    relabel_by_size,
    warp_labels,
)
from protoformer.geometry.resizing import resize, resize_flow
from protoformer.geometry.warps import warp_back
from protoformer.viz.text import SummaryRepr, format_count, format_size

TERMS = 6
"""Of a motion, u and v each: a constant, x, y, and their three products. A plane that a camera sees moves like this."""
STIFFNESS = 0.03
"""Pixels that say a motion has no terms but the constant: next to nothing, but what few pixels have to go by."""


@dataclass(frozen=True, eq=False)
class MotionSums:
    """Of each of n parts, what the motion that suits it best follows from.

    moments: n x 6 x 6, of the terms; products: n x 6 x 2, of terms and flow; squares: n, of the flow, px^2, all three
    weighted. weight: n, the sum of the weights; pixels: n. All float64.
    """

    moments: Tensor
    products: Tensor
    squares: Tensor
    weight: Tensor
    pixels: Tensor

    @classmethod
    def of(cls, labels: Tensor, flow: Tensor, weights: Tensor) -> "MotionSums":
        """Of the parts 0 .. n - 1 of H x W pixels. flow: 2 x H x W, pixels; weights: H x W."""
        parts, terms = labels.flatten(), motion_terms((labels.shape[0], labels.shape[1]))
        chosen, found = weights.flatten().double(), flow.flatten(1).double()
        count = int(parts.max()) + 1

        def total(values: Tensor) -> Tensor:
            return torch.bincount(parts, values, count)

        weighted = terms * chosen
        rows, columns = torch.triu_indices(TERMS, TERMS)
        half = torch.stack([total(weighted[one] * terms[other]) for one, other in zip(rows, columns, strict=True)], 1)
        moments = torch.empty(count, TERMS, TERMS, dtype=torch.float64)
        moments[:, rows, columns] = moments[:, columns, rows] = half
        products = torch.stack([total(one * other) for one in weighted for other in found], 1).view(count, TERMS, 2)
        squares = total(found.square().sum(dim=0) * chosen)
        return cls(moments, products, squares, total(chosen), torch.bincount(parts, minlength=count).double())

    def __len__(self) -> int:
        return len(self.pixels)

    def at(self, places: Tensor) -> "MotionSums":
        """Those of some parts, in that order."""
        return MotionSums(*(getattr(self, field.name)[places] for field in fields(self)))

    def __add__(self, other: "MotionSums") -> "MotionSums":
        """Those of each part of the one and the like of the other, joined."""
        return MotionSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def joined(self, owner: Tensor) -> "MotionSums":
        """Those of the parts that remain when each has become one with `owner` (n, int64, 0 .. count - 1)."""
        count = int(owner.max()) + 1
        sums = []
        for field in fields(self):
            each = getattr(self, field.name)
            sums.append(torch.zeros(count, *each.shape[1:], dtype=each.dtype).index_add_(0, owner, each))
        return MotionSums(*sums)

    def motions(self) -> Tensor:
        """The coefficients of each part's best motion: n x 6 x 2, pixels."""
        stiff = torch.full((TERMS,), STIFFNESS, dtype=torch.float64)
        stiff[0] = 1e-9
        best: Tensor = torch.linalg.solve(self.moments + stiff.diag(), self.products)
        return best

    def residual(self) -> Tensor:
        """What their best motions leave of the flow, and cost by being stiff: n, weighted sums of squares, px^2."""
        return (self.squares - (self.products * self.motions()).sum(dim=(1, 2))).clamp_min(0)

    def speed(self) -> Tensor:
        """The root of the mean squared length of the flow in each part: n, pixels."""
        return (self.squares / self.weight.clamp_min(1e-9)).sqrt()


def motion_terms(size: tuple[int, int]) -> Tensor:
    """What a motion is made of at the pixels of an image of (H, W) = size: 6 x (H W), float64.

    Places count from the middle of the image, in units of half its longer side.
    """
    height, width = size
    unit = max(size) / 2
    y = ((torch.arange(height, dtype=torch.float64) - (height - 1) / 2) / unit)[:, None].expand(size).flatten()
    x = ((torch.arange(width, dtype=torch.float64) - (width - 1) / 2) / unit).expand(size).flatten()
    return torch.stack((torch.ones_like(x), x, y, x * x, x * y, y * y))


JUMP = 0.5
"""Pixels by which the flow differs between two neighbors that do not hang together."""
MOST_PIECES, MOST_JUMP = 8192, 64.0
"""Pieces to begin with, above which that difference is doubled, and pixels up to which it is: for the sake of time."""
MOST_DISTANT = 128
"""Parts, the largest, that may be joined though they do not touch, for the sake of time as well."""
TOLERANCE = 0.5
"""Pixels, root mean square over the smaller of two parts, by which one motion for both may suit them worse."""
RELATIVE = 0.02
"""What is added to that, as a share of the speed of the slower one: fast motion is found less exactly."""
WEIGHTY = 1 / 400
"""Of an image's pixels: a part with fewer is held to have this many, so it has to differ the more from neighbors."""
SLIVER = 1 / 2000
"""Of an image's pixels: a piece with fewer goes to the neighbor whose motion suits it best."""
LEAST_WEIGHT = 0.05
"""Of a pixel in whose flow there is no confidence; with full confidence it weighs 1."""
ROUNDS = 10
"""Times that pixels at a border may change sides."""
SMOOTHNESS = 0.15
"""Pixels, squared, that a neighbor in another part costs a pixel at a border."""
WORST = 4.0
"""Pixels, squared: at a border no part suits a pixel worse than this."""

MergeTolerance = Callable[[Tensor, MotionSums, MotionSums], Tensor]
"""From what joins cost, n, px^2, and the sums of their two sides, to whether they are to be: n, bool."""


def segment_motion(regions: Tensor, flow: Tensor, confidence: Tensor | None = None) -> Tensor:
    """Parts that move as one: H x W, int64, numbered from 0 by falling size.

    regions: H x W, int64, such as the prototypes of pixels; flow: 2 x H x W, pixels; confidence: 1 x H x W in [0, 1];
    all of them finite, and on the CPU. Regions are cut into connected pieces, and where the flow jumps. Neighbors are
    joined, those first that lose least by having one motion, until none of the joins left is within the tolerance;
    slivers go to a neighbor in any case. Pixels at a border go to the side whose motion suits them, and at last large
    parts are joined that do not touch, such as what is seen of a background to the left and to the right of a thing.
    """
    weights = torch.ones_like(flow[0]) if confidence is None else confidence[0].clamp_min(LEAST_WEIGHT)
    least, alike = SLIVER * regions.numel(), _alike(WEIGHTY * regions.numel())
    joining = PartMerger.of(_pieces(regions, flow), flow, weights)
    joining = joining.joined(alike).without_slivers(least).joined(alike)
    parts = _with_better_borders(joining.parts, flow, joining.sums.motions())
    joining = PartMerger.of(connected_components(parts), flow, weights).without_slivers(least)
    return relabel_by_size(joining.with_distant_pairs().joined(_alike(0)).parts)


def _pieces(regions: Tensor, flow: Tensor) -> Tensor:
    """Connected pieces of regions, H x W, cut where the flow jumps; only where it jumps more if they would be many."""
    jump = JUMP
    while int((pieces := connected_components(regions, flow, jump)).max()) >= MOST_PIECES and jump < MOST_JUMP:
        jump *= 2
    return pieces


def _alike(least: float) -> MergeTolerance:
    """Joins that one motion suits; a part of less weight is held to have this much."""

    def allowed(cost: Tensor, one: MotionSums, other: MotionSums) -> Tensor:
        smaller = torch.minimum(one.weight, other.weight).clamp_min(least)
        tolerance = TOLERANCE + RELATIVE * torch.minimum(one.speed(), other.speed())
        return cost < tolerance.square() * smaller

    return allowed


@dataclass(frozen=True, eq=False)
class PartMerger:
    """Parts on their way to fewer: H x W, int64, 0 .. n - 1, with their sums, and the pairs that may join, 2 x m."""

    parts: Tensor
    sums: MotionSums
    pairs: Tensor

    @classmethod
    def of(cls, parts: Tensor, flow: Tensor, weights: Tensor) -> "PartMerger":
        """Of parts that may join where they touch."""
        return cls(parts, MotionSums.of(parts, flow, weights), adjacent_pairs(parts))

    def with_distant_pairs(self) -> "PartMerger":
        """The same, where any two of the largest may join."""
        largest = self.sums.pixels.argsort(descending=True, stable=True)[:MOST_DISTANT].sort().values
        return replace(self, pairs=torch.combinations(largest).T)

    def joined(self, allowed: MergeTolerance) -> "PartMerger":
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

    def without_slivers(self, least: float) -> "PartMerger":
        """After every part of fewer pixels has gone to the neighbor that costs least."""
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

    def _linked(self, links: Tensor) -> "PartMerger":
        """After these pairs, 2 x n, have become one, and all that hang together by them."""
        onto: Tensor = merge_linked_labels(len(self.sums), links).unique(return_inverse=True)[1]
        sums = self.sums.joined(onto)
        return PartMerger(onto[self.parts], sums, distinct_pairs(onto[self.pairs], len(sums)))


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

    It costs a pixel something, too, to be in another part than its neighbors, so that borders are smooth: H x W.
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


@dataclass(frozen=True)
class MovingPart:
    """Pixels of the first image that one smooth motion suits.

    part: its number, from 0 by falling size as the network sees the image. pixels, share: of the image's. center:
    (x, y), pixels, the mean of where they are. mean: of their flow, (u, v), pixels. spread: the root of the mean
    squared distance from that, pixels. prototypes: each one that pixels of it belong to, and how many do, most first.
    """

    part: int
    pixels: int
    share: float
    center: tuple[float, float]
    mean: tuple[float, ...]
    spread: float
    prototypes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, repr=False)
class MovingParts(SummaryRepr):
    """All that move in two images of H x W pixels.

    labels: the part of each pixel of the first, H x W, int64. second: that of each pixel of the second, by moving the
    first's along the flow; -1 where none arrives, as where something has come into view. parts: by number.
    """

    labels: Tensor
    second: Tensor
    parts: tuple[MovingPart, ...]

    def _facts(self) -> tuple[str, ...]:
        return (format_size(*self.labels.shape), format_count(len(self.parts), "part"))


def find_moving_parts(
    images: tuple[Tensor, Tensor], labels: Tensor, flow: Tensor, confidence: Tensor | None, seen: tuple[int, int]
) -> MovingParts:
    """From two images (3 x H x W in [0, 1]), the prototypes of the first's pixels (H x W) and its flow (2 x H x W).

    confidence: 1 x H x W in [0, 1], or None; seen: the (height, width) at which parts are looked for, and pixels count.
    """
    size = (labels.shape[0], labels.shape[1])
    sure = torch.ones_like(flow[:1]) if confidence is None else confidence
    known = resize_flow(torch.cat((flow, sure))[None].float().cpu(), seen)[0]
    small = [resize(image[None].cpu(), seen) for image in images]
    found = segment_motion(at_pixels(labels, seen, size, 1), known[:2], known[2:])
    gap = (small[0] - warp_back(small[1], known[None, :2])).abs().mean(dim=1)[0]
    moved = warp_labels(found, known[:2], gap)
    whole, arrived = (at_pixels(each, size, seen, 1) for each in (found, moved))
    used, groups = labels.unique(), extract_groups(whole, flow)
    shared = contingency(whole, labels)
    records = [_record(group, used, counts) for group, counts in zip(groups, shared, strict=True)]
    return MovingParts(whole, arrived, tuple(records))


def _record(group: Group, used: Tensor, counts: Tensor) -> MovingPart:
    """Of a part's pixels as a group. used: numbers of prototypes, n; counts: how many of these pixels each has, n."""
    order = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
    prototypes = tuple(zip(used[order].tolist(), counts[order].tolist(), strict=True))
    assert group.spread is not None  # as there is a flow
    return MovingPart(group.prototype, group.pixels, group.share, group.center, group.mean, group.spread, prototypes)
