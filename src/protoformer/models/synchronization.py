"""Latent Synchronization: every feature is pulled towards the prototype it belongs to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.models.kernels import dispatch as fused
from protoformer.models.kernels.reference import gated, nearest_prototype, take
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import merge_heads, split_heads, to_autocast_dtype

Synchronized = tuple[Tensor, Tensor | None]
"""What to add to the features, B x HW x C, and the prototype that each pixel was given, B x HW, int64, if one was."""


class LatentSynchronization(nn.Module):
    """Cross-attention from pixels to prototypes in which a pixel may attend to its nearest prototype alone.

    Over one prototype a softmax is identically 1 and would leave queries and keys without gradient. So the attended
    value is gated, in each head, by sigmoid(alpha cos(q, k) + beta) with alpha and beta learned. Then a feed-forward
    network. The residual is the caller's.
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

    def forward(self, features: Tensor, prototypes: Prototypes) -> Synchronized:
        """features: B x HW x C; returns what to add to them, B x HW x C, and the assignment."""
        return fused.synchronize_and_feed(
            features,
            prototypes.centers,
            self.query,
            self.key(prototypes.centers),
            self.value(prototypes.centers),
            self.alpha,
            self.beta,
            self.feed_forward,
        )

    def attend(self, features: Tensor, centers: Tensor, assignment: Tensor) -> Tensor:
        """The gated value of the prototype that `assignment` (B x HW) gives each pixel: B x HW x C."""
        return gated(*self.projected(features, centers), self.alpha, self.beta, assignment)

    def projected(self, features: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the pixels (B x HW x C), keys and values of the prototypes (B x K x C)."""
        return self.query(to_autocast_dtype(features)), self.key(centers), self.value(centers)


class SimilarityLayer(nn.Module):
    """A fully connected layer of the nearest prototype, weighted by how similar it is to the pixel."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: Prototypes) -> Synchronized:
        """features: B x HW x C; returns what to add to them, B x HW x C, and the assignment."""
        assignment = nearest_prototype(features, prototypes.centers)
        nearest = take(prototypes.centers, assignment)
        similarity = F.cosine_similarity(features, nearest, dim=-1)
        return self.layer(torch.sigmoid(self.alpha * similarity + self.beta)[..., None] * nearest), assignment


class PlainLayer(nn.Module):
    """A fully connected layer of the nearest prototype."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: Prototypes) -> Synchronized:
        """features: B x HW x C; returns what to add to them, B x HW x C, and the assignment."""
        assignment = nearest_prototype(features, prototypes.centers)
        return self.layer(take(prototypes.centers, assignment)), assignment


class Broadcast(nn.Module):
    """No synchronization: prototypes go back to the pixels by their soft memberships, M^T P, with nothing learned."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()

    def forward(self, features: Tensor, prototypes: Prototypes) -> Synchronized:
        """features: B x HW x C; returns what to add to them, B x HW x C, and the assignment."""
        memberships = prototypes.memberships
        # Rules in which pixels compete leave a pixel's memberships with any sum; a pixel is to receive a mean.
        shares = memberships / memberships.sum(dim=-2, keepdim=True).clamp_min(1e-6)
        centers = split_heads(prototypes.centers, memberships.shape[1])
        return merge_heads(shares.transpose(-2, -1) @ centers), None


SYNCHRONIZATIONS: dict[str, type[nn.Module]] = {
    "ls": LatentSynchronization,
    "fc_similarity": SimilarityLayer,
    "fc": PlainLayer,
    "none": Broadcast,
}
