"""Reference implementation of the operators of CAP and LS, which the fused versions are tested against."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.runtime import accumulation_dtype, full_precision, maps_to_tokens, merge_heads, split_heads

LEAST_MASS = 1e-6
"""Mass below which a prototype counts as empty, and its mean as zero."""


def similarities(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the scaled dot products q k^T / sqrt(d).

    Args:
        queries: B x heads x K x d.
        keys: B x heads x HW x d.

    Returns:
        B x heads x K x HW.
    """
    dim = queries.shape[-1]
    return queries / math.sqrt(dim) @ keys.transpose(-2, -1)


def competing(logits: Tensor) -> Tensor:
    """Return the memberships: the softmax over the prototypes of logits, B x heads x K x HW."""
    return logits.softmax(dim=-2, dtype=accumulation_dtype(logits.dtype))


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Run the E-step of CAP and return the sums of the M-step.

    Args:
        queries: B x heads x K x d.
        keys: B x heads x HW x d.
        values: B x heads x HW x d.

    Returns:
        Sums of the values weighted by the memberships, B x heads x K x d, and the mass (sum of the memberships) of each
        prototype, B x heads x K.
    """
    return member_sums(competing(similarities(queries, keys)), values)


def member_sums(memberships: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of values (B x heads x HW x d) weighted by memberships (B x heads x K x HW), and the masses."""
    sums = memberships.to(values.dtype) @ values
    return sums, memberships.sum(dim=-1, dtype=accumulation_dtype(memberships.dtype))


def means(sums: Tensor, mass: Tensor) -> Tensor:
    """Divide sums (B x heads x K x d) by masses (B x heads x K); the mean of an empty prototype is zero."""
    mass = mass[..., None]
    # Division by a mass near zero would also make the gradient explode.
    return torch.where(mass > LEAST_MASS, sums / mass.clamp_min(LEAST_MASS), 0.0)


def cell_means(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Average-pool tokens onto a grid of K cells.

    Args:
        tokens: B x HW x C.
        size: (H, W) of the map.
        grid: (rows, columns) of the grid; K = rows * columns.

    Returns:
        B x K x C.
    """
    # With these strides torch recognizes channels last for any batch and does not copy the map.
    maps = tokens.unflatten(1, size).permute(0, 3, 1, 2)
    return maps_to_tokens(F.adaptive_avg_pool2d(maps, grid))


@torch.no_grad()
def nearest_prototype(features: Tensor, centers: Tensor) -> Tensor:
    """Return the index of the prototype of largest cosine similarity to each feature.

    The norm of a feature does not change its nearest prototype, so only the prototypes are normalized.

    Args:
        features: B x HW x C.
        centers: B x K x C, the prototypes.

    Returns:
        B x HW, int64.
    """
    with full_precision(features):  # half precision changes the argmax of a few percent of the pixels
        return (features.float() @ directions(centers).transpose(1, 2)).argmax(dim=-1)


def directions(centers: Tensor) -> Tensor:
    """Normalize centers, B x K x C, to length 1 in float32."""
    return F.normalize(centers.float(), dim=-1)


def take(prototypes: Tensor, assignment: Tensor) -> Tensor:
    """Gather the prototype (B x K x C) that each pixel is assigned to (B x HW): B x HW x C."""
    return prototypes.gather(1, assignment[..., None].expand(-1, -1, prototypes.shape[-1]))


def gated(queries: Tensor, keys: Tensor, values: Tensor, alpha: Tensor, beta: Tensor, assignment: Tensor) -> Tensor:
    """Return the value of the assigned prototype of each pixel times sigmoid(alpha cos(q, k) + beta) in each head.

    Args:
        queries: B x HW x C, projections of the pixels.
        keys: B x K x C, projections of the prototypes.
        values: B x K x C, projections of the prototypes.
        alpha: One value for each head.
        beta: One value for each head.
        assignment: B x HW, int64.

    Returns:
        B x HW x C.
    """
    heads = alpha.shape[0]
    own_keys, own_values = (split_heads(take(projection, assignment), heads) for projection in (keys, values))
    similarity = F.cosine_similarity(split_heads(queries, heads), own_keys, dim=-1)
    gate = torch.sigmoid(alpha[:, None] * similarity + beta[:, None])
    return merge_heads(gate[..., None] * own_values)


def synchronize(
    features: Tensor, centers: Tensor, queries: Tensor, keys: Tensor, values: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Assign each pixel to its nearest prototype and return the gated values.

    Args:
        features: B x HW x C, for the assignment.
        centers: B x K x C, prototypes for the assignment.
        queries: As in `gated`.
        keys: As in `gated`.
        values: As in `gated`.
        alpha: As in `gated`.
        beta: As in `gated`.

    Returns:
        The gated values, B x HW x C, and the assignment, B x HW, int64.
    """
    assignment = nearest_prototype(features, centers)
    return gated(queries, keys, values, alpha, beta, assignment), assignment
