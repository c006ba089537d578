"""Segmentation of an image into moving parts, by its flow and regions such as those of prototypes."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from protoformer.explain.groups import Group, cells_to_pixels, extract_groups
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
from protoformer.geometry.warps import resize, resize_flow, warp_back
from protoformer.viz.report import SummaryRepr, format_count, format_size

TERMS = 6
"""Terms of u and of v in a motion: 1, x, y, x^2, xy, y^2, sufficient for a plane seen by a camera."""
RIDGE = 0.03
"""Ridge penalty of all terms but the constant, pixels; it only matters for parts of few pixels."""
FLOW_JUMP = 0.5
"""Difference of the flow between neighbors, pixels, at which regions are cut."""
MAX_PIECES, MAX_FLOW_JUMP = 8192, 64.0
"""Number of initial pieces above which that difference is doubled, and its upper limit, to bound the time."""
MAX_DISTANT_PARTS = 128
"""Number of largest parts that may be joined without touching, to bound the time."""
TOLERANCE = 0.5
"""Allowed increase of the residual by a join, pixels, root mean square over the smaller part."""
RELATIVE_TOLERANCE = 0.02
"""Added to the tolerance, as a fraction of the speed of the slower part; fast flow is less exact."""
MIN_PART = 1 / 400
"""Smaller parts are treated as having this fraction of the image's pixels, so that they are joined more easily."""
MIN_PIECE = 1 / 2000
"""Pieces of a smaller fraction of the image's pixels are merged into a neighbor."""
MIN_WEIGHT = 0.05
"""Weight of a pixel with confidence 0; with confidence 1 the weight is 1."""
BORDER_ROUNDS = 10
"""Number of refinements of the borders."""
SMOOTHNESS = 0.15
"""Cost of a neighbor in another part for a pixel at a border, pixels squared."""
MAX_RESIDUAL = 4.0
"""Largest residual of a pixel at a border, pixels squared."""


@dataclass(frozen=True, eq=False)
class MotionSums:
    """Weighted sums over each of n parts, from which their least-squares motions follow; float64.

    Attributes:
        moments: n x 6 x 6, products of terms.
        products: n x 6 x 2, products of terms and flow.
        squares: n, squared flow, pixels squared.
        weight: n, sum of the weights.
        pixels: n, number of pixels.
    """

    moments: Tensor
    products: Tensor
    squares: Tensor
    weight: Tensor
    pixels: Tensor

    @classmethod
    def of(cls, labels: Tensor, flow: Tensor, weights: Tensor) -> "MotionSums":
        """Sum over the parts 0 .. n - 1; labels: H x W; flow: 2 x H x W, pixels; weights: H x W."""
        parts, terms = labels.flatten(), motion_terms((labels.shape[0], labels.shape[1]))
        pixel_weights, vectors = weights.flatten().double(), flow.flatten(1).double()
        count = int(parts.max()) + 1

        def total(values: Tensor) -> Tensor:
            return torch.bincount(parts, values, count)

        weighted = terms * pixel_weights
        rows, columns = torch.triu_indices(TERMS, TERMS)
        half = torch.stack([total(weighted[one] * terms[other]) for one, other in zip(rows, columns, strict=True)], 1)
        moments = torch.empty(count, TERMS, TERMS, dtype=torch.float64)
        moments[:, rows, columns] = moments[:, columns, rows] = half
        products = torch.stack([total(one * other) for one in weighted for other in vectors], 1).view(count, TERMS, 2)
        squares = total(vectors.square().sum(dim=0) * pixel_weights)
        return cls(moments, products, squares, total(pixel_weights), torch.bincount(parts, minlength=count).double())

    def __len__(self) -> int:
        return len(self.pixels)

    def at(self, indices: Tensor) -> "MotionSums":
        """Return the sums of some parts."""
        return MotionSums(*(getattr(self, field.name)[indices] for field in fields(self)))

    def __add__(self, other: "MotionSums") -> "MotionSums":
        return MotionSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def joined(self, owner: Tensor) -> "MotionSums":
        """Return the sums of the joined parts; owner: n, int64, new index of each part."""
        count = int(owner.max()) + 1
        values = [getattr(self, field.name) for field in fields(self)]
        return MotionSums(
            *(torch.zeros(count, *each.shape[1:], dtype=each.dtype).index_add_(0, owner, each) for each in values)
        )

    def motions(self) -> Tensor:
        """Return the coefficients of the least-squares motions: n x 6 x 2, pixels."""
        penalty = torch.full((TERMS,), RIDGE, dtype=torch.float64)
        penalty[0] = 1e-9
        solution: Tensor = torch.linalg.solve(self.moments + penalty.diag(), self.products)
        return solution

    def residual(self) -> Tensor:
        """Return the weighted squared residual of the motions, with the penalty: n, pixels squared."""
        return (self.squares - (self.products * self.motions()).sum(dim=(1, 2))).clamp_min(0)

    def speed(self) -> Tensor:
        """Return the root mean squared length of the flow: n, pixels."""
        return (self.squares / self.weight.clamp_min(1e-9)).sqrt()


def motion_terms(size: tuple[int, int]) -> Tensor:
    """Return the terms of a motion at the pixels of an image of (H, W) = size: 6 x (H W), float64.

    Positions are relative to the center of the image, in units of half its longer side.
    """
    height, width = size
    unit = max(size) / 2
    y = ((torch.arange(height, dtype=torch.float64) - (height - 1) / 2) / unit)[:, None].expand(size).flatten()
    x = ((torch.arange(width, dtype=torch.float64) - (width - 1) / 2) / unit).expand(size).flatten()
    return torch.stack((torch.ones_like(x), x, y, x * x, x * y, y * y))


JoinRule = Callable[[Tensor, MotionSums, MotionSums], Tensor]
"""Maps the costs of n joins, pixels squared, and the sums of both sides to whether each is allowed: n, bool."""


def segment_motion(regions: Tensor, flow: Tensor, confidence: Tensor | None = None) -> Tensor:
    """Segment an image into parts with one smooth motion each.

    Regions are cut into connected pieces, and where the flow jumps. Neighbors are joined, the cheapest joins first, as
    long as the joins are within the tolerance; small pieces are always merged into a neighbor. Pixels at borders move
    to the side whose motion fits better. Finally large parts that do not touch are joined, such as the background on
    both sides of an object.

    Args:
        regions: H x W, int64, for example the prototypes of the pixels; on the CPU.
        flow: 2 x H x W, pixels, finite.
        confidence: 1 x H x W in [0, 1].

    Returns:
        H x W, int64, parts numbered from 0 by decreasing size.
    """
    weights = torch.ones_like(flow[0]) if confidence is None else confidence[0].clamp_min(MIN_WEIGHT)
    min_pixels, rule = MIN_PIECE * regions.numel(), _within_tolerance(MIN_PART * regions.numel())
    merger = PartMerger.of(_cut(regions, flow), flow, weights)
    merger = merger.joined(rule).without_small_parts(min_pixels).joined(rule)
    parts = _refine_borders(merger.parts, flow, merger.sums.motions())
    merger = PartMerger.of(connected_components(parts), flow, weights).without_small_parts(min_pixels)
    return relabel_by_size(merger.with_distant_pairs().joined(_within_tolerance(0)).parts)


def _cut(regions: Tensor, flow: Tensor) -> Tensor:
    """Cut regions, H x W, into connected pieces, and where the flow jumps; only at larger jumps if there are many."""
    jump = FLOW_JUMP
    while int((pieces := connected_components(regions, flow, jump)).max()) >= MAX_PIECES and jump < MAX_FLOW_JUMP:
        jump *= 2
    return pieces


def _within_tolerance(min_weight: float) -> JoinRule:
    """Return the rule that one motion fits both sides nearly as well as two; smaller weights count as `min_weight`."""

    def rule(cost: Tensor, one: MotionSums, other: MotionSums) -> Tensor:
        smaller = torch.minimum(one.weight, other.weight).clamp_min(min_weight)
        tolerance = TOLERANCE + RELATIVE_TOLERANCE * torch.minimum(one.speed(), other.speed())
        return cost < tolerance.square() * smaller

    return rule


@dataclass(frozen=True, eq=False)
class PartMerger:
    """State of a hierarchical merge of parts.

    Attributes:
        parts: H x W, int64, 0 .. n - 1.
        sums: Their sums.
        pairs: Pairs of parts that may be joined, 2 x m.
    """

    parts: Tensor
    sums: MotionSums
    pairs: Tensor

    @classmethod
    def of(cls, parts: Tensor, flow: Tensor, weights: Tensor) -> "PartMerger":
        """Start with parts that may be joined where they touch."""
        return cls(parts, MotionSums.of(parts, flow, weights), adjacent_pairs(parts))

    def with_distant_pairs(self) -> "PartMerger":
        """Allow joins between any two of the largest parts."""
        largest = self.sums.pixels.argsort(descending=True, stable=True)[:MAX_DISTANT_PARTS].sort().values
        return replace(self, pairs=torch.combinations(largest).T)

    def joined(self, rule: JoinRule) -> "PartMerger":
        """Join parts as long as the rule allows.

        The cost of a join is the increase of the residual, as in Ward's method. Every round joins all pairs that are
        each other's cheapest.
        """
        merger = self
        while True:
            sides = merger._sides()
            cost = merger._cost(*sides)
            allowed = rule(cost, *sides)
            if not bool(allowed.any()):
                return merger
            pairs = merger.pairs[:, allowed]
            cheapest = _cheapest(pairs, cost[allowed], len(merger.sums))
            merger = merger._linked(pairs[:, cheapest.all(dim=0)])

    def without_small_parts(self, min_pixels: float) -> "PartMerger":
        """Merge every part of fewer pixels into the neighbor of least cost."""
        merger = self
        while bool((small := merger.sums.pixels[merger.pairs] < min_pixels).any()):
            cheapest = _cheapest(merger.pairs, merger._cost(*merger._sides()), len(merger.sums))
            merger = merger._linked(merger.pairs[:, (cheapest & small).any(dim=0)])
        return merger

    def _sides(self) -> tuple[MotionSums, MotionSums]:
        return self.sums.at(self.pairs[0]), self.sums.at(self.pairs[1])

    def _cost(self, one: MotionSums, other: MotionSums) -> Tensor:
        """Return the increase of the residual by joining each pair: m, pixels squared."""
        separate = self.sums.residual()
        return (one + other).residual() - separate[self.pairs[0]] - separate[self.pairs[1]]

    def _linked(self, links: Tensor) -> "PartMerger":
        """Join the connected components of pairs, 2 x n."""
        owner: Tensor = merge_linked_labels(len(self.sums), links).unique(return_inverse=True)[1]
        sums = self.sums.joined(owner)
        return PartMerger(owner[self.parts], sums, distinct_pairs(owner[self.pairs], len(sums)))


def _cheapest(pairs: Tensor, cost: Tensor, count: int) -> Tensor:
    """Return whether each pair (2 x m) is the cheapest one of its first and of its second part: 2 x m, bool.

    Ties are broken by a fixed permutation: with the order of the pairs, one part would grow along a row step by step.
    """
    order = torch.randperm(len(cost), generator=torch.Generator().manual_seed(0))
    rank = torch.empty_like(order)
    rank[order[cost[order].argsort(stable=True)]] = torch.arange(len(rank))
    best = torch.full((count,), len(rank))
    for side in pairs:
        best.scatter_reduce_(0, side, rank, "amin")
    return best[pairs] == rank


def _refine_borders(parts: Tensor, flow: Tensor, motions: Tensor) -> Tensor:
    """Assign pixels at borders to the neighboring part whose motion (n x 6 x 2) fits best, with smooth borders."""
    height, width = parts.shape
    terms, vectors = motion_terms((height, width)).T, flow.flatten(1).T.double()
    for _ in range(BORDER_ROUNDS):
        neighborhood = around(parts)
        border = (neighborhood != neighborhood[0]).any(dim=0).nonzero().flatten()
        candidates = neighborhood[:, border]  # 9 x m: the current part first, so that it wins ties
        predicted = torch.einsum("cmtk,mt->cmk", motions[candidates], terms[border])
        residual = (predicted - vectors[border]).square().sum(dim=2).clamp(max=MAX_RESIDUAL)
        disagreeing = (candidates[:, None] != candidates[1:]).sum(dim=1)
        best = (residual + SMOOTHNESS * disagreeing).argmin(dim=0)
        assigned = candidates.gather(0, best[None])[0]
        if torch.equal(assigned, candidates[0]):
            break
        parts = parts.flatten().scatter(0, border, assigned).view(height, width)
    return parts


@dataclass(frozen=True)
class MovingPart:
    """Pixels of the first image with one smooth motion.

    Attributes:
        part: Index, by decreasing size at the size of the network's input.
        pixels: Number of pixels.
        share: Fraction of the image's pixels.
        center: Mean position (x, y), pixels.
        mean: Mean flow (u, v), pixels.
        spread: Root mean squared distance of the flow from its mean, pixels.
        prototypes: Index and number of pixels of each prototype in the part, largest first.
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
    """The moving parts of two images of H x W pixels.

    Attributes:
        labels: Part of each pixel of the first image, H x W, int64.
        second: Part of each pixel of the second image, moved along the flow; -1 where no pixel arrives, as in
            disoccluded regions.
        parts: In order of their index.
    """

    labels: Tensor
    second: Tensor
    parts: tuple[MovingPart, ...]

    def _repr_parts(self) -> tuple[str, ...]:
        return (format_size(*self.labels.shape), format_count(len(self.parts), "part"))


def find_moving_parts(
    images: tuple[Tensor, Tensor],
    labels: Tensor,
    flow: Tensor,
    confidence: Tensor | None,
    working_size: tuple[int, int],
) -> MovingParts:
    """Segment two images into moving parts.

    Args:
        images: 3 x H x W in [0, 1] each.
        labels: H x W, prototypes of the pixels of the first image.
        flow: 2 x H x W, pixels.
        confidence: 1 x H x W in [0, 1], or None.
        working_size: (height, width) at which the segmentation is computed.
    """
    size = (labels.shape[0], labels.shape[1])
    weights = torch.ones_like(flow[:1]) if confidence is None else confidence
    small_flow = resize_flow(torch.cat((flow, weights))[None].float().cpu(), working_size)[0]
    small = [resize(image[None].cpu(), working_size) for image in images]
    regions = cells_to_pixels(labels, working_size, size, 1)
    segmented = segment_motion(regions, small_flow[:2], small_flow[2:])
    difference = (small[0] - warp_back(small[1], small_flow[None, :2])).abs().mean(dim=1)[0]
    moved = warp_labels(segmented, small_flow[:2], difference)
    first, second = (cells_to_pixels(each, size, working_size, 1) for each in (segmented, moved))
    used, groups = labels.unique(), extract_groups(first, flow)
    shared = contingency(first, labels)
    parts = [_moving_part(group, used, counts) for group, counts in zip(groups, shared, strict=True)]
    return MovingParts(first, second, tuple(parts))


def _moving_part(group: Group, used: Tensor, counts: Tensor) -> MovingPart:
    """Describe a part; used: indices of n prototypes; counts: n, their numbers of pixels in the part."""
    order = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
    prototypes = tuple(zip(used[order].tolist(), counts[order].tolist(), strict=True))
    assert group.spread is not None  # as there is a flow
    return MovingPart(group.prototype, group.pixels, group.share, group.center, group.mean, group.spread, prototypes)
