"""Latent Synchronization (LS): update every feature with the prototype it is assigned to.

The input is the features of one image, HW x C, and its K prototypes from Cross-Attention Prototyping, K x C.

1. Assignment: each pixel is assigned to the prototype of largest cosine similarity (hard argmax, no gradient). With
   the spatial prior of `prototyping` it is that of largest cosine / temperature - |x - c|^2 / (2 w^2). Features and
   prototypes can be compared without a projection, because a prototype is a mean of these features, and EM adds to it.
2. Masked cross-attention: queries are projected from the features, keys and values from the prototypes, and each pixel
   attends only to its assigned prototype. The softmax over a single prototype is identically 1, which would give
   queries and keys no gradient, so the attended value is multiplied, in each head, by
   sigmoid(alpha cos(q, k) + beta) with learned alpha and beta.
3. A feed-forward network with ratio 2 (linear, GELU, linear).

The encoder block adds the result to the features (residual). `SYNCHRONIZATIONS` also holds the variants of the rows
"synchronization" of the paper's ablation.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.models.kernels import fused
from protoformer.models.kernels.reference import gated, nearest_prototype, take
from protoformer.models.layers import TokenNorm
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import (
    map_size,
    maps_to_tokens,
    merge_heads,
    split_heads,
    to_autocast_dtype,
    tokens_to_maps,
)

SynchronizationOutput = tuple[Tensor, Tensor | None]
"""The update of the features (B x HW x C), and the hard assignment (B x HW, int64) or None if there is none."""


def assign(features: Tensor, prototypes: Prototypes) -> Tensor:
    """Assign features, B x HW x C, to prototypes of the same maps: B x HW, int64."""
    prior = None if prototypes.prior is None else prototypes.prior.of_assignment()
    return nearest_prototype(features, prototypes.centers, prior)


class LatentSynchronization(nn.Module):
    """Gated cross-attention from each pixel to its nearest prototype, followed by a feed-forward network.

    The gate sigmoid(alpha cos(q, k) + beta) replaces the softmax, which is identically 1 over one prototype and would
    leave queries and keys without gradient. The caller adds the residual.

    Args:
        channels: C, channels of features and prototypes; a multiple of `heads`.
        heads: Number of attention heads; alpha and beta are learned for each head.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.alpha = nn.Parameter(torch.ones(heads))
        self.beta = nn.Parameter(torch.zeros(heads))
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, features: Tensor, prototypes: Prototypes) -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        return fused.synchronize_and_feed(
            features,
            prototypes.centers,
            self.query,
            self.key(prototypes.centers),
            self.value(prototypes.centers),
            self.alpha,
            self.beta,
            self.feed_forward,
            None if prototypes.prior is None else prototypes.prior.of_assignment(),
        )

    def attend(self, features: Tensor, centers: Tensor, assignment: Tensor) -> Tensor:
        """Attend from each pixel to its assigned prototype (step 2, without the feed-forward network).

        Args:
            features: B x HW x C.
            centers: B x K x C, the prototypes.
            assignment: B x HW, int64, index of the prototype of each pixel.

        Returns:
            The gated values, B x HW x C.
        """
        return gated(*self.project(features, centers), self.alpha, self.beta, assignment)

    def project(self, features: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the pixels (B x HW x C), and the keys and values of the prototypes (B x K x C)."""
        return self.query(to_autocast_dtype(features)), self.key(centers), self.value(centers)


class CrossSynchronization(nn.Module):
    """Synchronize the features of two images with the prototypes of each other.

    Each image is clustered by CAP, and its features get the update of LS from the prototypes of the other image
    (residual). Both images are treated alike, and positions play no part in the assignment, because things move between
    the images. The module works on features of an encoder, so that each frame of a video is still encoded once.

    Args:
        channels: C, channels of the features.
        heads: Number of attention heads.
        prototyping: Clusters each image.
    """

    def __init__(self, channels: int, heads: int, prototyping: Prototyping) -> None:
        super().__init__()
        self.norm = TokenNorm(channels)
        self.prototyping = prototyping
        self.synchronization = LatentSynchronization(channels, heads)

    def forward(self, maps1: Tensor, maps2: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new features of both images, B x C x H x W like `maps1` and `maps2`."""
        size, maps = map_size(maps1), torch.cat((maps1, maps2))
        tokens = self.norm(maps_to_tokens(maps))
        prototypes = self.prototyping(tokens, size)
        centers = torch.cat(prototypes.centers.chunk(2)[::-1])
        update, _ = self.synchronization(tokens, replace(prototypes, centers=centers, prior=None))
        new1, new2 = (maps + tokens_to_maps(update, size)).chunk(2)
        return new1, new2


class UngatedSynchronization(nn.Module):
    """Ablation "LS without the gate": each pixel gets the whole value of its nearest prototype."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.value = nn.Linear(channels, channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, features: Tensor, prototypes: Prototypes) -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        assignment = assign(features, prototypes)
        # The layers act on single vectors, so they are applied to the prototypes before these are spread.
        return take(self.feed_forward(self.value(prototypes.centers)), assignment), assignment


class SimilarityLayer(nn.Module):
    """Ablation "FC with similarity": a linear layer of the nearest prototype times sigmoid(alpha cosine + beta)."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: Prototypes) -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        assignment = assign(features, prototypes)
        nearest = take(prototypes.centers, assignment)
        similarity = F.cosine_similarity(features, nearest, dim=-1)
        return self.layer(torch.sigmoid(self.alpha * similarity + self.beta)[..., None] * nearest), assignment


class PlainLayer(nn.Module):
    """Ablation "FC": a linear layer of the nearest prototype."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: Prototypes) -> SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        assignment = assign(features, prototypes)
        return self.layer(take(prototypes.centers, assignment)), assignment


class Broadcast(nn.Module):
    """Ablation "none": broadcast the prototypes to the pixels by the soft memberships, M^T P, without parameters."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()

    def forward(self, features: Tensor, prototypes: Prototypes) -> SynchronizationOutput:
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

    def forward(self, features: Tensor, prototypes: Prototypes) -> SynchronizationOutput:
        """As `Broadcast`, projected."""
        spread, assignment = super().forward(features, prototypes)
        return self.layer(spread), assignment


SYNCHRONIZATIONS: dict[str, type[nn.Module]] = {
    "ls": LatentSynchronization,
    "ungated": UngatedSynchronization,
    "fc_similarity": SimilarityLayer,
    "fc": PlainLayer,
    "projection": ProjectedBroadcast,
    "none": Broadcast,
}
"""Synchronization modules by the name that the configuration field `synchronization` gives them."""
