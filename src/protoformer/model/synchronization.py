"""Latent Synchronization: every feature is pulled towards the prototype it belongs to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.precision import full_precision
from protoformer.model.prototyping import Prototypes
from protoformer.model.tokens import merge_heads, split_heads


@torch.no_grad()
def nearest_prototype(features: Tensor, centres: Tensor) -> Tensor:
    """The prototype of greatest cosine similarity to each feature: B x HW, int64.

    features: B x HW x C; centres: B x K x C. A feature's own length does not change which prototype is nearest, so only
    the prototypes are normalised.
    """
    with full_precision(features):  # in half precision, near ties fall the other way for a few pixels in a hundred
        return (features.float() @ F.normalize(centres.float(), dim=-1).transpose(1, 2)).argmax(dim=-1)


def take(prototypes: Tensor, assignment: Tensor) -> Tensor:
    """Hand each pixel the row it is assigned: B x K x C and B x HW to B x HW x C."""
    return prototypes.gather(1, assignment[..., None].expand(-1, -1, prototypes.shape[-1]))


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

    def forward(self, features: Tensor, prototypes: Prototypes) -> Tensor:
        """features: B x HW x C; returns what to add to them, B x HW x C."""
        assignment = nearest_prototype(features, prototypes.centres)
        result: Tensor = self.feed_forward(self.attend(features, prototypes.centres, assignment))
        return result

    def attend(self, features: Tensor, centres: Tensor, assignment: Tensor) -> Tensor:
        """The gated value of the prototype that `assignment` (B x HW) gives each pixel: B x HW x C."""
        queries = split_heads(self.query(features), self.heads)
        keys = split_heads(take(self.key(centres), assignment), self.heads)
        values = split_heads(take(self.value(centres), assignment), self.heads)
        similarity = F.cosine_similarity(queries, keys, dim=-1)
        gate = torch.sigmoid(self.alpha[:, None] * similarity + self.beta[:, None])
        return merge_heads(gate[..., None] * values)


class SimilarityLayer(nn.Module):
    """A fully connected layer of the nearest prototype, weighted by how similar it is to the pixel."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: Prototypes) -> Tensor:
        """features: B x HW x C; returns what to add to them, B x HW x C."""
        nearest = take(prototypes.centres, nearest_prototype(features, prototypes.centres))
        similarity = F.cosine_similarity(features, nearest, dim=-1)
        result: Tensor = self.layer(torch.sigmoid(self.alpha * similarity + self.beta)[..., None] * nearest)
        return result


class PlainLayer(nn.Module):
    """A fully connected layer of the nearest prototype."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, channels)

    def forward(self, features: Tensor, prototypes: Prototypes) -> Tensor:
        """features: B x HW x C; returns what to add to them, B x HW x C."""
        result: Tensor = self.layer(take(prototypes.centres, nearest_prototype(features, prototypes.centres)))
        return result


class Broadcast(nn.Module):
    """No synchronization: prototypes go back to the pixels by their soft memberships, M^T P, with nothing learned."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()

    def forward(self, features: Tensor, prototypes: Prototypes) -> Tensor:
        """features: B x HW x C; returns what to add to them, B x HW x C."""
        memberships = prototypes.memberships
        # Rules in which pixels compete leave a pixel's memberships with any sum; a pixel is to receive a mean.
        shares = memberships / memberships.sum(dim=-2, keepdim=True).clamp_min(1e-6)
        centres = split_heads(prototypes.centres, memberships.shape[1])
        return merge_heads(shares.transpose(-2, -1) @ centres)


SYNCHRONIZATIONS: dict[str, type[nn.Module]] = {
    "ls": LatentSynchronization,
    "fc_similarity": SimilarityLayer,
    "fc": PlainLayer,
    "none": Broadcast,
}
