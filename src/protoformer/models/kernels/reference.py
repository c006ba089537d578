"""The sums of prototyping and the gate of synchronization written plainly: what the faster versions must agree with."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.runtime import accumulation_dtype, full_precision, maps_to_tokens, merge_heads, split_heads

LEAST_MASS = 1e-6
"""A prototype with less has no members, and so no mean."""


def similarities(queries: Tensor, keys: Tensor) -> Tensor:
    """Scaled dot products, queries x keys: B x heads x K x HW."""
    width = queries.shape[-1]
    return queries / math.sqrt(width) @ keys.transpose(-2, -1)


def competing(logits: Tensor) -> Tensor:
    """Memberships of which each pixel's sum to 1: a softmax over the prototypes of B x heads x K x HW."""
    return logits.softmax(dim=-2, dtype=accumulation_dtype(logits.dtype))


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """What pixels give to the prototypes they belong to by `competing`: sums of values and the mass of memberships.

    queries: B x heads x K x d; keys, values: B x heads x HW x d. Returns B x heads x K x d and B x heads x K.
    """
    return member_sums(competing(similarities(queries, keys)), values)


def member_sums(memberships: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of values weighted by memberships (B x heads x K x HW), and the sums of the memberships."""
    sums = memberships.to(values.dtype) @ values
    return sums, memberships.sum(dim=-1, dtype=accumulation_dtype(memberships.dtype))


def means(sums: Tensor, mass: Tensor) -> Tensor:
    """Sums (B x heads x K x d) over masses (B x heads x K); a prototype without members has the mean zero."""
    mass = mass[..., None]
    # Without members there is no mean; dividing by next to nothing would also blow up the gradient.
    return torch.where(mass > LEAST_MASS, sums / mass.clamp_min(LEAST_MASS), 0.0)


def cell_means(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The mean of each of rows x columns = grid cells of maps of (H, W) = size: B x HW x C to B x K x C."""
    # Seen so that channels come last, whatever the batch, the map need not be copied.
    maps = tokens.unflatten(1, size).permute(0, 3, 1, 2)
    return maps_to_tokens(F.adaptive_avg_pool2d(maps, grid))


@torch.no_grad()
def nearest_prototype(features: Tensor, centers: Tensor) -> Tensor:
    """The prototype of greatest cosine similarity to each feature: B x HW, int64.

    features: B x HW x C; centers: B x K x C. A feature's own length does not change which prototype is nearest, so only
    the prototypes are normalized.
    """
    with full_precision(features):  # in half precision, near ties fall the other way for a few pixels in a hundred
        return (features.float() @ directions(centers).transpose(1, 2)).argmax(dim=-1)


def directions(centers: Tensor) -> Tensor:
    """Centers at unit length, float32, as pixels are compared with them."""
    return F.normalize(centers.float(), dim=-1)


def take(prototypes: Tensor, assignment: Tensor) -> Tensor:
    """Hand each pixel the row it is assigned: B x K x C and B x HW to B x HW x C."""
    return prototypes.gather(1, assignment[..., None].expand(-1, -1, prototypes.shape[-1]))


def gated(queries: Tensor, keys: Tensor, values: Tensor, alpha: Tensor, beta: Tensor, assignment: Tensor) -> Tensor:
    """The value of each pixel's own prototype, times sigmoid(alpha cos(query, its key) + beta) in every head.

    queries: B x HW x C, of pixels; keys, values: B x K x C, of prototypes; alpha, beta: heads; assignment: B x HW.
    Returns B x HW x C.
    """
    heads = alpha.shape[0]
    own_keys, own_values = (split_heads(take(part, assignment), heads) for part in (keys, values))
    similarity = F.cosine_similarity(split_heads(queries, heads), own_keys, dim=-1)
    gate = torch.sigmoid(alpha[:, None] * similarity + beta[:, None])
    return merge_heads(gate[..., None] * own_values)


def synchronize(
    features: Tensor, centers: Tensor, queries: Tensor, keys: Tensor, values: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Find each pixel's nearest prototype and take up its gated value: B x HW x C, and the assignment B x HW, int64.

    features: B x HW x C and centers: B x K x C decide the assignment; the rest is as in `gated`.
    """
    assignment = nearest_prototype(features, centers)
    return gated(queries, keys, values, alpha, beta, assignment), assignment
