"""Variants of CAP and LS for the rows of the paper's ablation; the method itself uses none of them.

`E_STEPS` replace the E-step of `prototyping` (configuration field `update`), and `SYNCHRONIZATIONS` replace Latent
Synchronization (field `synchronization`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import cells
from protoformer.models.kernels.reference import (
    divide_by_mass,
    gather_assigned,
    mean_positions,
    member_sums,
    similarities,
    softmax_over_prototypes,
    spatial_moments,
)
from protoformer.models.runtime import merge_heads, split_heads
from protoformer.models.spatial_prior import Layout, SpatialPrior

if TYPE_CHECKING:
    from protoformer.models.prototyping import Prototypes

EStep = Callable[[Tensor, Tensor, Layout, Tensor | float], Tensor]
"""An E-step: maps queries (B x heads x K x d), keys (B x heads x HW x d) and the logits of the prior (B x 1 x K x HW,
or 0) to memberships (B x heads x K x HW)."""


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


def cosine(queries: Tensor, keys: Tensor, layout: Layout, prior: Tensor | float = 0.0) -> Tensor:
    """CAP with cosine similarity: the E-step of a mixture of von Mises-Fisher distributions over unit keys."""
    return softmax_over_prototypes(cosine_similarities(queries, keys) + prior)


def cross_attention(queries: Tensor, keys: Tensor, layout: Layout, prior: Tensor | float = 0.0) -> Tensor:
    """Vanilla cross-attention: softmax over the pixels, so that the memberships of each prototype sum to 1."""
    return (similarities(queries, keys) + prior).softmax(dim=-1)


def criss_cross(queries: Tensor, keys: Tensor, layout: Layout, prior: Tensor | float = 0.0) -> Tensor:
    """Criss-cross attention: `cross_attention` of each prototype to the rows and columns through its cell only."""
    (height, width), (rows, columns) = layout.size, layout.grid
    in_row = cells(height, rows, queries.device).view(rows, 1, height, 1)
    in_column = cells(width, columns, queries.device).view(1, columns, 1, width)
    visible = (in_row | in_column).view(rows * columns, height * width)
    return (similarities(queries, keys) + prior).masked_fill(~visible, -torch.inf).softmax(dim=-1)


def k_means(queries: Tensor, keys: Tensor, layout: Layout, prior: Tensor | float = 0.0) -> Tensor:
    """Spherical k-means: one-hot memberships, 1 for the prototype of largest cosine similarity to a pixel.

    With dot products the longest queries would collect most pixels, and a quarter of the prototypes would be empty. The
    memberships have no gradient; the M-step uses that of `cosine` (straight-through).
    """
    soft = cosine(queries, keys, layout, prior)
    return torch.zeros_like(soft).scatter_(-2, soft.argmax(dim=-2, keepdim=True), 1.0).detach()


E_STEPS: dict[str, EStep] = {
    "cosine": cosine,
    "cross_attention": cross_attention,
    "criss_cross": criss_cross,
    "k_means": k_means,
}
"""E-steps by their value of the configuration field `update`."""


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
    return divide_by_mass(sums, mass) if normalize else sums


def maximize(
    update: str,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: Layout,
    prior: SpatialPrior | None,
    normalize: bool,
) -> tuple[Tensor, SpatialPrior | None]:
    """Run the E-step `update` and the M-step with stored memberships, which the fused versions avoid for CAP.

    Args:
        update: A key of `E_STEPS`.
        queries: B x heads x K x d.
        keys: B x heads x HW x d.
        values: B x heads x HW x d.
        layout: Sizes of the feature map and of the grid of prototypes.
        prior: Spatial prior with the positions before the M-step, or None.
        normalize: As in `maximization_step`.

    Returns:
        The means or sums of the values, B x heads x K x d, and the prior with the mean positions.
    """
    logits = 0.0 if prior is None else prior.logits()[:, None]
    memberships = E_STEPS[update](queries, keys, layout, logits)
    result = maximization_step(memberships, values, normalize)
    if update == "k_means" and torch.is_grad_enabled():
        # Through the hard means, a prototype with few members would get a gradient from every pixel that is divided by
        # its small mass; the soft means do not have that problem.
        soft = maximization_step(cosine(queries, keys, layout, logits), values.detach(), normalize)
        result = result + (soft - soft.detach())
    if prior is not None:
        moments, mass = spatial_moments(memberships, prior.pixels), memberships.sum(dim=-1)
        prior = replace(prior, positions=mean_positions(moments, mass, prior.positions))
    return result, prior


SynchronizationOutput = tuple[Tensor, Tensor | None]
"""The update of the features (B x HW x C), and the hard assignment (B x HW, int64) or None if there is none."""


class UngatedSynchronization(nn.Module):
    """Ablation "LS without the gate": each pixel gets the whole value of its nearest prototype."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.value = nn.Linear(channels, channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, features: Tensor, prototypes: "Prototypes") -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        assignment = prototypes.assign(features)
        # The layers act on single vectors, so they are applied to the prototypes before these are spread.
        return gather_assigned(self.feed_forward(self.value(prototypes.centers)), assignment), assignment


class SimilarityLayer(nn.Module):
    """Ablation "FC with similarity": a linear layer of the nearest prototype times sigmoid(alpha cosine + beta)."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: "Prototypes") -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        assignment = prototypes.assign(features)
        nearest = gather_assigned(prototypes.centers, assignment)
        similarity = F.cosine_similarity(features, nearest, dim=-1)
        return self.layer(torch.sigmoid(self.alpha * similarity + self.beta)[..., None] * nearest), assignment


class PlainLayer(nn.Module):
    """Ablation "FC": a linear layer of the nearest prototype."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: "Prototypes") -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        assignment = prototypes.assign(features)
        return self.layer(gather_assigned(prototypes.centers, assignment)), assignment


class Broadcast(nn.Module):
    """Ablation "none": broadcast the prototypes to the pixels by the soft memberships, M^T P, without parameters."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()

    def forward(self, features: Tensor, prototypes: "Prototypes") -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and None, as there is no hard assignment.
        """
        memberships = prototypes.memberships
        # With a softmax over pixels the memberships of one pixel have an arbitrary sum; normalize them to a mean.
        weights = memberships / memberships.sum(dim=-2, keepdim=True).clamp_min(1e-6)
        centers = split_heads(prototypes.centers, memberships.shape[1])
        return merge_heads(weights.transpose(-2, -1) @ centers), None


class ProjectedBroadcast(Broadcast):
    """`Broadcast` with a learned output projection, as attention has.

    Prototypes are means of LayerNorm's output and grow with every residual iteration; without a projection the network
    cannot scale or rotate what is added to its features.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__(channels, heads)
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: "Prototypes") -> SynchronizationOutput:
        """As `Broadcast`, projected."""
        spread, assignment = super().forward(features, prototypes)
        return self.layer(spread), assignment


SYNCHRONIZATIONS: dict[str, type[nn.Module]] = {
    "ungated": UngatedSynchronization,
    "fc_similarity": SimilarityLayer,
    "fc": PlainLayer,
    "projection": ProjectedBroadcast,
    "none": Broadcast,
}
"""Synchronization modules by their value of the configuration field `synchronization`."""
