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
E-steps of the rows "prototype update" of the paper's ablation are in `ablations`.

With `spatial_prior`, the factor s of the paper's Eq. 3, each prototype k also has a position c_k. It starts in the
center of its cell, both assignments (the E-step here, and that of Latent Synchronization) get the term
-|x_i - c_k|^2 / (2 w^2) for a pixel at x_i, and the M-step sets c_k to the mean position of the members. Positions are
in cells of the grid, and w is learned (`spatial_prior`). A prototype is one region of the image, so that all heads
share its position and w: the mean is over the memberships of all heads together.

`Prototyping` is the module and `Prototypes` its output. M is many times larger than the features, so it is not stored:
the M-step accumulates its two sums over blocks of pixels (`protoformer.models.kernels`), and `Prototypes.memberships`
computes M on access. The equations of both steps in plain torch, which store M, stand in `kernels/reference.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import cell_of_pixel, grid_shape
from protoformer.models import ablations
from protoformer.models.kernels import fused
from protoformer.models.kernels.reference import (
    cell_positions,
    divide_by_mass,
    mean_positions,
    nearest_prototype,
    similarities,
    softmax_over_prototypes,
    unit_vectors,
)
from protoformer.models.runtime import (
    accumulation_dtype,
    full_precision,
    merge_heads,
    split_heads,
    to_autocast_dtype,
)
from protoformer.models.spatial_prior import INITIAL_TEMPERATURE, INITIAL_WIDTH, Layout, SpatialPrior


def cap(queries: Tensor, keys: Tensor, layout: Layout, prior: Tensor | float = 0.0) -> Tensor:
    """E-step of the paper: softmax over the prototypes, so that the memberships of each pixel sum to 1."""
    return softmax_over_prototypes(similarities(queries, keys) + prior)


E_STEPS: dict[str, ablations.EStep] = {"cap": cap, **ablations.E_STEPS}
"""E-steps by the name that the configuration field `update` gives them; all but "cap" are ablations."""


@dataclass(frozen=True)
class EStepInputs:
    """Inputs of one E-step, kept instead of the much larger memberships, which are computed from them on demand.

    Attributes:
        queries: B x heads x K x d, projections of the prototypes.
        keys: B x heads x HW x d, projections of the pixels.
        update: Name of the E-step in `E_STEPS`.
        layout: Sizes of the feature map and of the grid of prototypes.
        prior: Spatial prior, with the positions before the M-step, or None.
    """

    queries: Tensor
    keys: Tensor
    update: str
    layout: Layout
    prior: SpatialPrior | None = None

    def memberships(self) -> Tensor:
        """Compute the memberships, B x heads x K x HW."""
        prior = 0.0 if self.prior is None else self.prior.logits()[:, None]
        return E_STEPS[self.update](self.queries, self.keys, self.layout, prior)

    def first(self, count: int) -> "EStepInputs":
        """Return the inputs for the first `count` images of the batch."""
        prior = None if self.prior is None else self.prior.first(count)
        return replace(self, queries=self.queries[:count], keys=self.keys[:count], prior=prior)

    def cpu(self) -> "EStepInputs":
        """Return a copy in CPU memory."""
        prior = None if self.prior is None else self.prior.cpu()
        return replace(self, queries=self.queries.cpu(), keys=self.keys.cpu(), prior=prior)


@dataclass(frozen=True)
class Prototypes:
    """Prototypes of a batch of feature maps, and which pixels belong to them.

    | name | kind | shape | which prototype a pixel belongs to |
    | --- | --- | --- | --- |
    | `memberships` | soft | B x heads x K x HW | by CAP, for each head: the last E-step, before the last M-step |
    | `assignment` | hard | B x HW | by LS, as it ran: nearest prototype; None in variants of LS without one |
    | `assign(features)` | hard | B x HW | by LS, computed again for any features of the same maps |
    | `soft_assignment()` | soft | B x K x HW | by LS, with a softmax for the argmax; for losses |
    | `owners` | hard | B x HW | `assignment`, else the largest of `memberships`; for figures and statistics |

    Attributes:
        centers: B x K x C, the prototypes P.
        e_step_inputs: Inputs of the last E-step, from which `memberships` are computed, or, without EM iterations, the
            memberships themselves, B x heads x K x HW.
        size: (H, W) of the feature map.
        assignment: B x HW, int64, index of the prototype that Latent Synchronization assigned to each pixel; None if
            the synchronization makes no hard assignment.
        prior: Spatial prior with the final positions, or None.
        features: B x HW x C, the features that were clustered.
    """

    centers: Tensor
    e_step_inputs: EStepInputs | Tensor
    size: tuple[int, int]
    assignment: Tensor | None = None
    prior: SpatialPrior | None = None
    features: Tensor | None = None

    @property
    def positions(self) -> Tensor | None:
        """Positions (x, y) of the prototypes, B x K x 2, in pixels of the map; None without a spatial prior.

        The centers of pixels are at whole numbers, as in `geometry.warps.pixel_grid`.
        """
        return None if self.prior is None else self.prior.positions_in_pixels

    @property
    def memberships(self) -> Tensor:
        """Soft memberships M, B x heads x K x HW with the pixels in row-major order, computed on access.

        They are meant for inspection: on a GPU they carry no gradient.
        """
        return self.e_step_inputs if isinstance(self.e_step_inputs, Tensor) else self.e_step_inputs.memberships()

    @property
    def owners(self) -> Tensor:
        """Index of the prototype that each pixel belongs to: B x HW, int64.

        This is `assignment` or, if that is None, the prototype of largest membership averaged over the heads.
        """
        return self.memberships.mean(dim=1).argmax(dim=1) if self.assignment is None else self.assignment

    def assign(self, features: Tensor) -> Tensor:
        """Return the index of the prototype that Latent Synchronization assigns to each feature, without gradient.

        Args:
            features: B x HW x C, features of the same maps.

        Returns:
            B x HW, int64.
        """
        return nearest_prototype(features, self.centers, None if self.prior is None else self.prior.assignment_prior())

    def soft_assignment(self) -> Tensor:
        """Return the soft version of the assignment of Latent Synchronization, B x K x HW, with gradients.

        It is the softmax over the prototypes of cos(feature, center) / temperature, plus the spatial prior.

        Raises:
            ValueError: If the features were not kept.
        """
        if self.features is None:
            raise ValueError("the soft assignment needs the features that were clustered")
        prior, temperature = self.prior, INITIAL_TEMPERATURE
        with full_precision(self.features):
            cosines = unit_vectors(self.centers) @ unit_vectors(self.features).transpose(1, 2)
            if prior is None:
                return (cosines / temperature).softmax(dim=1)
            return (cosines / prior.log_temperature.exp() + prior.logits()).softmax(dim=1)

    def first(self, count: int) -> "Prototypes":
        """Return the prototypes of the first `count` images of the batch."""
        return self._map(lambda tensor: tensor[:count], lambda part: part.first(count))

    def cpu(self) -> "Prototypes":
        """Return a copy in CPU memory."""
        return self._map(Tensor.cpu, lambda part: part.cpu())

    def _map(
        self,
        change: Callable[[Tensor], Tensor],
        change_part: Callable[[Any], Any],
    ) -> "Prototypes":
        """Return a copy with changed tensors and parts."""
        inputs = self.e_step_inputs
        return Prototypes(
            change(self.centers),
            change(inputs) if isinstance(inputs, Tensor) else change_part(inputs),
            self.size,
            None if self.assignment is None else change(self.assignment),
            None if self.prior is None else change_part(self.prior),
            None if self.features is None else change(self.features),
        )


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
        update: E-step, a key of `E_STEPS`; "cap" is that of the paper.
        normalize: Use the weighted mean in the M-step (EM) instead of the weighted sum (the literal Eq. 5).
        residual: Add the result of the M-step to the prototypes (Algorithm 1) instead of replacing them.
        spatial_prior: Give each prototype a position that attracts near pixels.

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
        spatial_prior: bool = False,
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
        self.spatial_prior = spatial_prior
        if num_iterations:
            # The bias of the queries adds the same b . k_i to the logits of all prototypes for pixel i, which a softmax
            # over the prototypes ("cap") ignores: there it has no effect, and its gradient is zero.
            self.query = nn.Linear(channels, channels)
            self.key = nn.Linear(channels, channels)
            self.value = nn.Linear(channels, channels)
        if spatial_prior:  # as logarithms, so that they stay positive
            self.log_width = nn.Parameter(torch.tensor(math.log(INITIAL_WIDTH)))
            self.log_temperature = nn.Parameter(torch.tensor(math.log(INITIAL_TEMPERATURE)))

    def forward(self, features: Tensor, size: tuple[int, int]) -> Prototypes:
        """Cluster the features of each image into K prototypes.

        Args:
            features: B x HW x C, the pixels of each map in row-major order.
            size: (H, W) of the map.

        Returns:
            The prototypes after N iterations, with the memberships of the last E-step.
        """
        centers = self.pool(features, size)
        prior = self.initial_prior(centers, size)
        if prior is not None:
            # Distributed training requires a gradient of every parameter, so add a zero one. The width also gets one
            # from the E-steps, if there are any. The temperature acts only in the hard assignment of LS, which gives
            # none: it learns from losses on `Prototypes.soft_assignment` or not at all.
            centers = centers + 0 * (prior.log_width + prior.log_temperature)
        if not self.num_iterations:
            return Prototypes(centers, self._cell_memberships(features, size), size, prior=prior, features=features)
        keys, values = self.keys_and_values(features)
        for _ in range(self.num_iterations):
            centers, inputs, prior = self.step(centers, keys, values, size, prior)
        return Prototypes(centers, inputs, size, prior=prior, features=features)

    def initial_prior(self, centers: Tensor, size: tuple[int, int]) -> SpatialPrior | None:
        """Return the spatial prior of pooled prototypes, B x K x C, whose positions are the centers of their cells."""
        if not self.spatial_prior:
            return None
        positions = cell_positions(self.grid, centers.device, accumulation_dtype(centers.dtype))
        return self.prior_at(positions.expand(centers.shape[0], -1, -1), size)

    def prior_at(self, positions: Tensor, size: tuple[int, int]) -> SpatialPrior:
        """Return the spatial prior of prototypes at positions, B x K x 2, in cells from the middle of the map."""
        return SpatialPrior(positions, self.log_width, self.log_temperature, Layout(size, self.grid))

    def pool(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the initial prototypes, the mean of the features (B x HW x C) of each of the K cells: B x K x C."""
        return fused.cell_means(features, size, self.grid)

    def keys_and_values(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Project features (B x HW x C) to the keys and values of all iterations: B x heads x HW x d each."""
        features = to_autocast_dtype(features)
        return split_heads(self.key(features), self.heads), split_heads(self.value(features), self.heads)

    def step(
        self,
        centers: Tensor,
        keys: Tensor,
        values: Tensor,
        size: tuple[int, int],
        prior: SpatialPrior | None = None,
    ) -> tuple[Tensor, EStepInputs, SpatialPrior | None]:
        """Run one EM iteration.

        Args:
            centers: B x K x C, the current prototypes.
            keys: B x heads x HW x d, from `keys_and_values`.
            values: B x heads x HW x d, from `keys_and_values`.
            size: (H, W) of the map.
            prior: Spatial prior with the current positions, or None.

        Returns:
            The new prototypes, B x K x C, the inputs of the E-step, and the prior with new positions.
        """
        inputs = self.e_step_inputs(centers, keys, size, prior)
        update, prior = self._maximize(inputs, values)
        update = merge_heads(update)
        return (centers + update if self.residual else update), inputs, prior

    def e_step_inputs(
        self, centers: Tensor, keys: Tensor, size: tuple[int, int], prior: SpatialPrior | None = None
    ) -> EStepInputs:
        """Return the inputs of the E-step for prototypes (B x K x C) and keys (B x heads x HW x d)."""
        queries = split_heads(self.query(centers), self.heads)
        return EStepInputs(queries, keys, self.update, Layout(size, self.grid), prior)

    def e_step_inputs_from_projections(
        self, queries: Tensor, keys: Tensor, size: tuple[int, int], prior: SpatialPrior | None = None
    ) -> EStepInputs:
        """Return the inputs of the E-step from queries (B x K x C) and keys (B x HW x C), not yet split into heads."""
        queries, keys = split_heads(queries.to(keys.dtype), self.heads), split_heads(keys, self.heads)
        return EStepInputs(queries, keys, self.update, Layout(size, self.grid), prior)

    def memberships(self, centers: Tensor, keys: Tensor, size: tuple[int, int]) -> Tensor:
        """Compute the memberships, B x heads x K x HW, of prototypes (B x K x C) and keys (B x heads x HW x d)."""
        return self.e_step_inputs(centers, keys, size).memberships()

    def _maximize(self, inputs: EStepInputs, values: Tensor) -> tuple[Tensor, SpatialPrior | None]:
        """Run the M-step; for softmax over prototypes without storing the memberships.

        Returns:
            The means or sums of the values, B x heads x K x d, and the prior with the mean positions.
        """
        queries, keys, prior = inputs.queries, inputs.keys, inputs.prior
        if self.update not in ("cap", "cosine"):
            return ablations.maximize(self.update, queries, keys, values, inputs.layout, prior, self.normalize)
        if self.update == "cosine":
            queries, keys = ablations.normalize_directions(queries, keys)
        if prior is None:
            sums, mass = fused.prototype_sums(queries, keys, values)
        else:
            sums, mass, moments = fused.spatial_sums(queries, keys, values, prior.e_step_prior())
            prior = replace(prior, positions=mean_positions(moments, mass, prior.positions))
        return (divide_by_mass(sums, mass) if self.normalize else sums), prior

    def _cell_memberships(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        """Return one-hot memberships of each pixel in its cell: B x 1 x K x HW."""
        cell = cell_of_pixel(size, self.grid, features.device)
        one_hot = F.one_hot(cell, self.grid[0] * self.grid[1]).T.to(features.dtype)
        return one_hot.expand(features.shape[0], 1, -1, -1)
