"""Cross-Attention Prototyping: the prototypes of an image, found by a few steps of expectation and maximization."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import cell_of_pixel, cells, grid_shape
from protoformer.models.kernels import dispatch as fused
from protoformer.models.kernels.reference import competing, means, member_sums, similarities
from protoformer.models.runtime import merge_heads, split_heads, to_autocast_dtype


@dataclass(frozen=True)
class Layout:
    """Where pixels and prototypes lie: the (H, W) of the map and the (rows, columns) of the prototypes' cells."""

    size: tuple[int, int]
    grid: tuple[int, int]


UpdateRule = Callable[[Tensor, Tensor, Layout], Tensor]
"""The expectation: queries (B x heads x K x d) and keys (B x heads x HW x d) to memberships (B x heads x K x HW)."""


def normalize_directions(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose scaled product is sqrt(d) cos(q, k), which has the spread of that of unit normals."""
    return F.normalize(queries, dim=-1) * queries.shape[-1], F.normalize(keys, dim=-1)


def cosine_similarities(queries: Tensor, keys: Tensor) -> Tensor:
    """By direction alone, sqrt(d) cos(q, k): B x heads x K x HW."""
    return similarities(*normalize_directions(queries, keys))


def cap(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """The paper's rule: prototypes compete for each pixel, so a pixel's memberships sum to 1."""
    return competing(similarities(queries, keys))


def cosine(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """As `cap`, by direction alone: the expectation of a mixture of von Mises-Fisher distributions over unit keys."""
    return competing(cosine_similarities(queries, keys))


def cross_attention(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """Vanilla cross-attention: pixels compete for each prototype, so a prototype's memberships sum to 1."""
    return similarities(queries, keys).softmax(dim=-1)


def criss_cross(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """Cross-attention of each prototype to the rows and the columns that pass through its cell, and nothing else."""
    (height, width), (rows, columns) = layout.size, layout.grid
    in_rows = cells(height, rows, queries.device).view(rows, 1, height, 1)
    in_columns = cells(width, columns, queries.device).view(1, columns, 1, width)
    reached = (in_rows | in_columns).view(rows * columns, height * width)
    return similarities(queries, keys).masked_fill(~reached, -torch.inf).softmax(dim=-1)


def k_means(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """Each pixel belongs to the most similar prototype alone (0 or 1).

    The choice has no gradient, so the backward pass takes that of `cap`'s soft memberships.
    """
    soft = similarities(queries, keys).softmax(dim=-2)
    hard = torch.zeros_like(soft).scatter_(-2, soft.argmax(dim=-2, keepdim=True), 1.0)
    return hard + soft - soft.detach() if soft.requires_grad else hard


UPDATE_RULES: dict[str, UpdateRule] = {
    "cap": cap,
    "cosine": cosine,
    "cross_attention": cross_attention,
    "criss_cross": criss_cross,
    "k_means": k_means,
}


@dataclass(frozen=True)
class Expectation:
    """One step's expectation, of which the memberships are computed when someone asks.

    queries: B x heads x K x d, of the prototypes; keys: B x heads x HW x d, of the pixels; update: the rule.
    """

    queries: Tensor
    keys: Tensor
    update: str
    layout: Layout

    def memberships(self) -> Tensor:
        """B x heads x K x HW: the matrix that prototyping itself does without."""
        return UPDATE_RULES[self.update](self.queries, self.keys, self.layout)

    def first(self, count: int) -> "Expectation":
        """That of the first images of the batch."""
        return replace(self, queries=self.queries[:count], keys=self.keys[:count])

    def cpu(self) -> "Expectation":
        """The same in main memory."""
        return replace(self, queries=self.queries.cpu(), keys=self.keys.cpu())


@dataclass(frozen=True)
class Prototypes:
    """What prototyping finds in a batch of images.

    centers: B x K x C, the prototypes.
    expectation: the last one, from which `centers` were made; or the memberships themselves, where they are known.
    size: (H, W) of the map that was prototyped.
    assignment: B x HW, int64, the one prototype that synchronization gave each pixel; None where none was given.
    """

    centers: Tensor
    expectation: Expectation | Tensor
    size: tuple[int, int]
    assignment: Tensor | None = None

    @property
    def memberships(self) -> Tensor:
        """How much of each pixel (row by row) belongs to each prototype: B x heads x K x HW, computed when asked.

        To look at, not to learn from: on a GPU they have no gradient.
        """
        return self.expectation if isinstance(self.expectation, Tensor) else self.expectation.memberships()

    @property
    def owners(self) -> Tensor:
        """The one prototype that each pixel belongs to: B x HW, int64.

        It is the one that it was assigned; where none was, that of which it is most a member, averaged over heads.
        """
        return self.memberships.mean(dim=1).argmax(dim=1) if self.assignment is None else self.assignment

    def first(self, count: int) -> "Prototypes":
        """Those of the first images of the batch."""
        expectation = self.expectation
        some = expectation[:count] if isinstance(expectation, Tensor) else expectation.first(count)
        assigned = None if self.assignment is None else self.assignment[:count]
        return Prototypes(self.centers[:count], some, self.size, assigned)

    def cpu(self) -> "Prototypes":
        """The same in main memory."""
        assigned = None if self.assignment is None else self.assignment.cpu()
        return Prototypes(self.centers.cpu(), self.expectation.cpu(), self.size, assigned)


def maximization_step(memberships: Tensor, values: Tensor, normalize: bool) -> Tensor:
    """The maximization: sums of values weighted by memberships, or, with `normalize`, their means.

    memberships: B x heads x K x HW; values: B x heads x HW x d; returns B x heads x K x d. A prototype without members
    has the sum, and the mean, zero.
    """
    sums, mass = member_sums(memberships, values)
    return means(sums, mass) if normalize else sums


class Prototyping(nn.Module):
    """K prototypes of a feature map by N steps of EM, written as cross-attention from prototypes to pixels.

    The start is the mean of each of K cells. Keys and values are projected once; queries come from the current
    prototypes through the same weights in every step. With no iterations the prototypes stay as pooled, each pixel
    belongs to its cell, and the module has no parameters.

    update: a name in UPDATE_RULES. normalize: maximize by the mean (EM), not the sum (the paper's equation 5).
    residual: add what a step finds to the prototype rather than put it in its place.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        prototypes: int = 100,
        iterations: int = 3,
        update: str = "cap",
        normalize: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"{channels} channels cannot be split into {heads} heads")
        if iterations < 0:
            raise ValueError(f"EM cannot run {iterations} iterations")
        self.heads = heads
        self.grid = grid_shape(prototypes)
        self.iterations = iterations
        self.update = update
        self.normalize = normalize
        self.residual = residual
        if iterations:
            self.query = nn.Linear(channels, channels)
            self.key = nn.Linear(channels, channels)
            self.value = nn.Linear(channels, channels)

    def forward(self, features: Tensor, size: tuple[int, int], start: Tensor | None = None) -> Prototypes:
        """features: B x HW x C of a map of (H, W) = size; start: B x K x C instead of the pooled prototypes."""
        centers = self.pool(features, size) if start is None else start
        if not self.iterations:
            return Prototypes(centers, self._cell_memberships(features, size), size)
        keys, values = self.keys_and_values(features)
        for _ in range(self.iterations):
            centers, expectation = self.step(centers, keys, values, size)
        return Prototypes(centers, expectation, size)

    def pool(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """The starting prototypes, the mean of each cell: B x K x C."""
        return fused.cell_means(features, size, self.grid)

    def keys_and_values(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Projections of the pixels, which serve every step: B x heads x HW x d each."""
        features = to_autocast_dtype(features)
        return split_heads(self.key(features), self.heads), split_heads(self.value(features), self.heads)

    def step(self, centers: Tensor, keys: Tensor, values: Tensor, size: tuple[int, int]) -> tuple[Tensor, Expectation]:
        """One expectation and one maximization: the new centers (B x K x C) and the expectation they come from.

        keys, values: B x heads x HW x d, as `keys_and_values` gives them.
        """
        expectation = self.expectation(centers, keys, size)
        update = merge_heads(self._maximized(expectation, values))
        return (centers + update if self.residual else update), expectation

    def expectation(self, centers: Tensor, keys: Tensor, size: tuple[int, int]) -> Expectation:
        """How pixels belong to these centers."""
        queries = split_heads(self.query(centers), self.heads)
        return Expectation(queries, keys, self.update, Layout(size, self.grid))

    def expectation_of(self, queries: Tensor, keys: Tensor, size: tuple[int, int]) -> Expectation:
        """How pixels belong by these queries, B x K x C, and keys, B x HW x C."""
        queries, keys = split_heads(queries.to(keys.dtype), self.heads), split_heads(keys, self.heads)
        return Expectation(queries, keys, self.update, Layout(size, self.grid))

    def memberships(self, centers: Tensor, keys: Tensor, size: tuple[int, int]) -> Tensor:
        """The expectation alone: how much of each pixel belongs to each of these centers, B x heads x K x HW."""
        return self.expectation(centers, keys, size).memberships()

    def _maximized(self, expectation: Expectation, values: Tensor) -> Tensor:
        if self.update not in ("cap", "cosine"):
            return maximization_step(expectation.memberships(), values, self.normalize)
        queries, keys = expectation.queries, expectation.keys
        if self.update == "cosine":
            queries, keys = normalize_directions(queries, keys)
        sums, mass = fused.prototype_sums(queries, keys, values)
        return means(sums, mass) if self.normalize else sums

    def _cell_memberships(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        cell = cell_of_pixel(size, self.grid, features.device)
        one_hot = F.one_hot(cell, self.grid[0] * self.grid[1]).T.to(features.dtype)
        return one_hot.expand(features.shape[0], 1, -1, -1)
