"""Cross-Attention Prototyping: the prototypes of an image, found by a few steps of expectation and maximization."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry import cell_of_pixel, cells, grid_shape
from protoformer.model.tokens import maps_of, merge_heads, split_heads, tokens_of


@dataclass(frozen=True)
class Prototypes:
    """What prototyping finds in a batch of images.

    centres: B x K x C, the prototypes.
    memberships: B x heads x K x HW, how much of each pixel (row by row) belongs to each prototype, by the last
        expectation, from which `centres` were made.
    size: (H, W) of the map that was prototyped.
    """

    centres: Tensor
    memberships: Tensor
    size: tuple[int, int]

    def first(self, count: int) -> "Prototypes":
        """Those of the first images of the batch."""
        return Prototypes(self.centres[:count], self.memberships[:count], self.size)

    def cpu(self) -> "Prototypes":
        """The same in main memory."""
        return Prototypes(self.centres.cpu(), self.memberships.cpu(), self.size)


@dataclass(frozen=True)
class Layout:
    """Where pixels and prototypes lie: the (H, W) of the map and the (rows, columns) of the prototypes' cells."""

    size: tuple[int, int]
    grid: tuple[int, int]


LEAST_MASS = 1e-6

UpdateRule = Callable[[Tensor, Tensor, Layout], Tensor]
"""The expectation: queries (B x heads x K x d) and keys (B x heads x HW x d) to memberships (B x heads x K x HW)."""


def similarities(queries: Tensor, keys: Tensor) -> Tensor:
    """Scaled dot products, queries x keys: B x heads x K x HW."""
    width = queries.shape[-1]
    return queries / math.sqrt(width) @ keys.transpose(-2, -1)


def cosine_similarities(queries: Tensor, keys: Tensor) -> Tensor:
    """By direction alone, sqrt(d) cos(q, k), which has the spread of a scaled product of unit normals."""
    width = queries.shape[-1]
    return similarities(F.normalize(queries, dim=-1) * width, F.normalize(keys, dim=-1))


def cap(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """The paper's rule: prototypes compete for each pixel, so a pixel's memberships sum to 1."""
    return similarities(queries, keys).softmax(dim=-2)


def cosine(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """As `cap`, by direction alone: the expectation of a mixture of von Mises-Fisher distributions over unit keys."""
    return cosine_similarities(queries, keys).softmax(dim=-2)


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


def maximize(memberships: Tensor, values: Tensor, normalize: bool) -> Tensor:
    """The maximization: sums of values weighted by memberships, or, with `normalize`, their means.

    memberships: B x heads x K x HW; values: B x heads x HW x d; returns B x heads x K x d. A prototype without members
    has the sum, and the mean, zero.
    """
    sums = memberships @ values
    if not normalize:
        return sums
    mass = memberships.sum(dim=-1, keepdim=True, dtype=torch.float32)
    # Without members there is no mean; dividing by next to nothing would also blow up the gradient.
    return torch.where(mass > LEAST_MASS, sums / mass.clamp_min(LEAST_MASS), 0.0)


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
        centres = self.pool(features, size) if start is None else start
        if not self.iterations:
            return Prototypes(centres, self._cell_memberships(features, size), size)
        keys, values = self.keys_and_values(features)
        for _ in range(self.iterations):
            centres, memberships = self.step(centres, keys, values, size)
        return Prototypes(centres, memberships, size)

    def pool(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """The starting prototypes, the mean of each cell: B x K x C."""
        return tokens_of(F.adaptive_avg_pool2d(maps_of(features, size), self.grid))

    def keys_and_values(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Projections of the pixels, which serve every step: B x heads x HW x d each."""
        return split_heads(self.key(features), self.heads), split_heads(self.value(features), self.heads)

    def step(self, centres: Tensor, keys: Tensor, values: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """One expectation and one maximization: the new centres (B x K x C) and the memberships they come from.

        keys, values: B x heads x HW x d, as `keys_and_values` gives them.
        """
        memberships = self.memberships(centres, keys, size)
        update = merge_heads(maximize(memberships, values, self.normalize))
        return (centres + update if self.residual else update), memberships

    def memberships(self, centres: Tensor, keys: Tensor, size: tuple[int, int]) -> Tensor:
        """The expectation alone: how much of each pixel belongs to each of these centres, B x heads x K x HW."""
        queries = split_heads(self.query(centres), self.heads)
        return UPDATE_RULES[self.update](queries, keys, Layout(size, self.grid))

    def _cell_memberships(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        cell = cell_of_pixel(size, self.grid, features.device)
        one_hot = F.one_hot(cell, self.grid[0] * self.grid[1]).T.to(features.dtype)
        return one_hot.expand(features.shape[0], 1, -1, -1)
