"""Cross-Attention Prototyping (CAP): cluster the features of one image into K prototypes by N EM iterations.

The input is the feature map I of one image as tokens, HW x C; the two images of a pair are clustered separately. The
output is K prototypes P, K x C, and the memberships M, K x HW, of each head.

1. Initialization: P = adaptive average pooling of I onto a grid of K cells (K = 100 is 10 x 10).
2. Once: keys and values are linear projections of I.
3. N times (N = 3 by default), with the same query weights in every iteration:
   Q = linear(P);
   E-step: M = softmax over the K prototypes of Q keys^T / sqrt(d), so that the memberships of a pixel sum to 1;
   M-step: P <- P + (M values) / mass, where the mass of prototype k is the sum of M_ki over the pixels i.

There are several heads of d = C / heads channels (32 in the presets). The cost is O(N K HW C), linear in the number of
pixels.

The M-step of the paper is M V in Eq. 5, an average in Eq. 4, and has a residual in Algorithm 1. The default here is the
residual average, as EM requires; `normalize=False` is the literal Eq. 5 and `residual=False` drops the residual. The
other entries of `UPDATE_RULES` replace the E-step, for the rows "prototype update" of the paper's ablation.

`Prototyping` is the module and `Prototypes` its output. M is many times larger than the features, so it is not stored:
the M-step accumulates its two sums over blocks of pixels (`protoformer.models.kernels`), and `Prototypes.memberships`
computes M on access.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import cell_of_pixel, cells, grid_shape
from protoformer.models.kernels import fused
from protoformer.models.kernels.reference import competing, means, member_sums, similarities
from protoformer.models.runtime import merge_heads, split_heads, to_autocast_dtype


@dataclass(frozen=True)
class Layout:
    """Spatial layout of a feature map and of its prototypes.

    Attributes:
        size: (H, W) of the feature map.
        grid: (rows, columns) of the grid of cells that the prototypes are initialized from; rows * columns = K.
    """

    size: tuple[int, int]
    grid: tuple[int, int]


UpdateRule = Callable[[Tensor, Tensor, Layout], Tensor]
"""An E-step: maps queries (B x heads x K x d) and keys (B x heads x HW x d) to memberships (B x heads x K x HW)."""


def normalize_directions(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Rescale queries and keys so that their scaled dot product is sqrt(d) cos(q, k).

    The factor sqrt(d) gives the logits the variance of the scaled dot product of standard normal vectors.

    Args:
        queries: B x heads x K x d.
        keys: B x heads x HW x d.

    Returns:
        The rescaled queries and keys, of the same shapes.
    """
    return F.normalize(queries, dim=-1) * queries.shape[-1], F.normalize(keys, dim=-1)


def cosine_similarities(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the logits sqrt(d) cos(q, k) of queries (B x heads x K x d) and keys (B x heads x HW x d).

    Returns:
        B x heads x K x HW.
    """
    return similarities(*normalize_directions(queries, keys))


def cap(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """E-step of the paper: softmax over the prototypes, so that the memberships of each pixel sum to 1."""
    return competing(similarities(queries, keys))


def cosine(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """`cap` with cosine similarity: the E-step of a mixture of von Mises-Fisher distributions over unit keys."""
    return competing(cosine_similarities(queries, keys))


def cross_attention(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """Vanilla cross-attention: softmax over the pixels, so that the memberships of each prototype sum to 1."""
    return similarities(queries, keys).softmax(dim=-1)


def criss_cross(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """Criss-cross attention: `cross_attention` of each prototype to the rows and columns through its cell only."""
    (height, width), (rows, columns) = layout.size, layout.grid
    in_row = cells(height, rows, queries.device).view(rows, 1, height, 1)
    in_column = cells(width, columns, queries.device).view(1, columns, 1, width)
    visible = (in_row | in_column).view(rows * columns, height * width)
    return similarities(queries, keys).masked_fill(~visible, -torch.inf).softmax(dim=-1)


def k_means(queries: Tensor, keys: Tensor, layout: Layout) -> Tensor:
    """K-means: one-hot memberships, 1 for the most similar prototype of a pixel.

    The argmax has no gradient, so the backward pass uses the gradient of the soft memberships (straight-through).
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
"""E-steps by the name that the configuration field `update` gives them."""


@dataclass(frozen=True)
class Expectation:
    """Inputs of one E-step, from which the memberships are computed on demand.

    Attributes:
        queries: B x heads x K x d, projections of the prototypes.
        keys: B x heads x HW x d, projections of the pixels.
        update: Name of the E-step in `UPDATE_RULES`.
        layout: Sizes of the feature map and of the grid of prototypes.
    """

    queries: Tensor
    keys: Tensor
    update: str
    layout: Layout

    def memberships(self) -> Tensor:
        """Compute the memberships, B x heads x K x HW."""
        return UPDATE_RULES[self.update](self.queries, self.keys, self.layout)

    def first(self, count: int) -> "Expectation":
        """Return the expectation of the first `count` images of the batch."""
        return replace(self, queries=self.queries[:count], keys=self.keys[:count])

    def cpu(self) -> "Expectation":
        """Return a copy in CPU memory."""
        return replace(self, queries=self.queries.cpu(), keys=self.keys.cpu())


@dataclass(frozen=True)
class Prototypes:
    """Prototypes of a batch of feature maps, with the memberships of the pixels.

    Attributes:
        centers: B x K x C, the prototypes P.
        expectation: The E-step of the last iteration, from which `centers` were computed, or its memberships M
            themselves, B x heads x K x HW.
        size: (H, W) of the feature map.
        assignment: B x HW, int64, index of the prototype that Latent Synchronization assigned to each pixel; None if
            the synchronization makes no hard assignment.
        features: B x HW x C, the features that were clustered, for losses; None in copies on the CPU.
    """

    centers: Tensor
    expectation: Expectation | Tensor
    size: tuple[int, int]
    assignment: Tensor | None = None
    features: Tensor | None = None

    @property
    def memberships(self) -> Tensor:
        """Soft memberships M, B x heads x K x HW with the pixels in row-major order, computed on access.

        They are meant for inspection: on a GPU they carry no gradient.
        """
        return self.expectation if isinstance(self.expectation, Tensor) else self.expectation.memberships()

    @property
    def owners(self) -> Tensor:
        """Index of the prototype that each pixel belongs to: B x HW, int64.

        This is `assignment` or, if that is None, the prototype of largest membership averaged over the heads.
        """
        return self.memberships.mean(dim=1).argmax(dim=1) if self.assignment is None else self.assignment

    def first(self, count: int) -> "Prototypes":
        """Return the prototypes of the first `count` images of the batch."""
        expectation = self.expectation
        expectation = expectation[:count] if isinstance(expectation, Tensor) else expectation.first(count)
        assignment = None if self.assignment is None else self.assignment[:count]
        features = None if self.features is None else self.features[:count]
        return replace(
            self, centers=self.centers[:count], expectation=expectation, assignment=assignment, features=features
        )

    def cpu(self) -> "Prototypes":
        """Return a copy in CPU memory, without the features."""
        assignment = None if self.assignment is None else self.assignment.cpu()
        return Prototypes(self.centers.cpu(), self.expectation.cpu(), self.size, assignment)


def maximization_step(memberships: Tensor, values: Tensor, normalize: bool) -> Tensor:
    """M-step: sum (Eq. 5) or mean (Eq. 4) of the values, weighted by the memberships.

    Args:
        memberships: B x heads x K x HW.
        values: B x heads x HW x d.
        normalize: Divide the sums by the mass of each prototype, which gives the mean.

    Returns:
        B x heads x K x d; zero for a prototype without members.
    """
    sums, mass = member_sums(memberships, values)
    return means(sums, mass) if normalize else sums


class Prototyping(nn.Module):
    """Cross-Attention Prototyping (Algorithm 1 of the paper): K prototypes of a feature map by N EM iterations.

    EM is written as cross-attention from prototypes to pixels. The prototypes are initialized by average pooling, keys
    and values are projected once, and queries are projected from the current prototypes by the same weights in every
    iteration. With zero iterations the prototypes stay pooled, each pixel belongs to its cell, and the module has no
    parameters.

    Args:
        channels: C, channels of the features; a multiple of `heads`.
        heads: Number of attention heads, of d = C / heads channels each.
        num_prototypes: K. The cells form the most nearly square grid: 100 is 10 x 10, 50 is 5 x 10.
        num_iterations: N, the number of EM iterations.
        update: E-step, a key of `UPDATE_RULES`; "cap" is that of the paper.
        normalize: Use the weighted mean in the M-step (EM) instead of the weighted sum (the literal Eq. 5).
        residual: Add the result of the M-step to the prototypes (Algorithm 1) instead of replacing them.

    Raises:
        ValueError: If `channels` is not a multiple of `heads` or `num_iterations` is negative.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        num_prototypes: int = 100,
        num_iterations: int = 3,
        update: str = "cap",
        normalize: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"{channels} channels cannot be split into {heads} heads")
        if num_iterations < 0:
            raise ValueError(f"EM cannot run {num_iterations} iterations")
        self.heads = heads
        self.grid = grid_shape(num_prototypes)
        self.num_iterations = num_iterations
        self.update = update
        self.normalize = normalize
        self.residual = residual
        if num_iterations:
            self.query = nn.Linear(channels, channels)
            self.key = nn.Linear(channels, channels)
            self.value = nn.Linear(channels, channels)

    def forward(self, features: Tensor, size: tuple[int, int], init_centers: Tensor | None = None) -> Prototypes:
        """Cluster the features of each image into K prototypes.

        Args:
            features: B x HW x C, the pixels of each map in row-major order.
            size: (H, W) of the map.
            init_centers: B x K x C, initial prototypes; pooled from the features if None.

        Returns:
            The prototypes after N iterations, with the memberships of the last E-step.
        """
        centers = self.pool(features, size) if init_centers is None else init_centers
        if not self.num_iterations:
            return Prototypes(centers, self._cell_memberships(features, size), size)
        keys, values = self.keys_and_values(features)
        for _ in range(self.num_iterations):
            centers, expectation = self.step(centers, keys, values, size)
        return Prototypes(centers, expectation, size)

    def pool(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the initial prototypes, the mean of the features (B x HW x C) of each of the K cells: B x K x C."""
        return fused.cell_means(features, size, self.grid)

    def keys_and_values(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Project features (B x HW x C) to the keys and values of all iterations: B x heads x HW x d each."""
        features = to_autocast_dtype(features)
        return split_heads(self.key(features), self.heads), split_heads(self.value(features), self.heads)

    def step(self, centers: Tensor, keys: Tensor, values: Tensor, size: tuple[int, int]) -> tuple[Tensor, Expectation]:
        """Run one EM iteration.

        Args:
            centers: B x K x C, the current prototypes.
            keys: B x heads x HW x d, from `keys_and_values`.
            values: B x heads x HW x d, from `keys_and_values`.
            size: (H, W) of the map.

        Returns:
            The new prototypes, B x K x C, and the E-step from which they were computed.
        """
        expectation = self.expectation(centers, keys, size)
        update = merge_heads(self._maximize(expectation, values))
        return (centers + update if self.residual else update), expectation

    def expectation(self, centers: Tensor, keys: Tensor, size: tuple[int, int]) -> Expectation:
        """Return the E-step of prototypes (B x K x C) and keys (B x heads x HW x d)."""
        queries = split_heads(self.query(centers), self.heads)
        return Expectation(queries, keys, self.update, Layout(size, self.grid))

    def expectation_from_projections(self, queries: Tensor, keys: Tensor, size: tuple[int, int]) -> Expectation:
        """Return the E-step of projected queries (B x K x C) and keys (B x HW x C), not yet split into heads."""
        queries, keys = split_heads(queries.to(keys.dtype), self.heads), split_heads(keys, self.heads)
        return Expectation(queries, keys, self.update, Layout(size, self.grid))

    def memberships(self, centers: Tensor, keys: Tensor, size: tuple[int, int]) -> Tensor:
        """Compute the memberships, B x heads x K x HW, of prototypes (B x K x C) and keys (B x heads x HW x d)."""
        return self.expectation(centers, keys, size).memberships()

    def _maximize(self, expectation: Expectation, values: Tensor) -> Tensor:
        """Return the M-step, B x heads x K x d; for softmax over prototypes without storing the memberships."""
        if self.update not in ("cap", "cosine"):
            return maximization_step(expectation.memberships(), values, self.normalize)
        queries, keys = expectation.queries, expectation.keys
        if self.update == "cosine":
            queries, keys = normalize_directions(queries, keys)
        sums, mass = fused.prototype_sums(queries, keys, values)
        return means(sums, mass) if self.normalize else sums

    def _cell_memberships(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Return one-hot memberships of each pixel in its cell: B x 1 x K x HW."""
        cell = cell_of_pixel(size, self.grid, features.device)
        one_hot = F.one_hot(cell, self.grid[0] * self.grid[1]).T.to(features.dtype)
        return one_hot.expand(features.shape[0], 1, -1, -1)
