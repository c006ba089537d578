"""Operators of CAP and LS in plain torch: the fused versions are tested against them and fall back to them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import cells
from protoformer.models.runtime import accumulation_dtype, full_precision, maps_to_tokens, merge_heads, split_heads

MIN_MASS = 1e-6
"""Mass below which a prototype counts as empty, and its mean as zero."""
HALVES_SCALE = 64.0
"""Norm of the directions that are split into two float16 numbers: large enough that the remainder is not subnormal."""


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
    return torch.where(mass > MIN_MASS, sums / mass.clamp_min(MIN_MASS), 0.0)


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


def cell_weights(
    size: tuple[int, int], grid: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the matrices, rows x H and columns x W, that average the positions of each cell."""
    by_row, by_column = (
        F.normalize(cells(length, count, device).to(dtype), p=1.0, dim=1)
        for length, count in zip(size, grid, strict=True)
    )
    return by_row, by_column


def cell_means_by_products(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """As `cell_means`, by two matrix products; torch's adaptive pooling is slow on large maps."""
    dtype = accumulation_dtype(tokens.dtype)
    with full_precision(tokens):
        by_row, by_column = cell_weights(size, grid, tokens.device, dtype)
        row_means = by_row @ tokens.to(dtype).unflatten(1, size).flatten(2)
        means: Tensor = by_column @ row_means.unflatten(2, (size[1], -1))
        return means.flatten(1, 2).to(tokens.dtype)


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


# Steps of the fused mixer (`mixing`), with the arguments of the kernels that they replace.


def project(tokens: Tensor, weight: Tensor, bias: Tensor, tokens_half: Tensor | None) -> Tensor:
    """As `mlp_kernels.project`."""
    rows = tokens.to(weight.dtype)
    if tokens_half is not None:
        tokens_half.copy_(rows)
    return torch.addmm(bias.to(weight.dtype), rows, weight.T)


def pool(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int], output: Tensor) -> None:
    """As `center_kernels.pool`."""
    output.copy_(cell_means_by_products(tokens, size, grid))


def spread(d_means: Tensor, added: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """As `center_kernels.spread`."""
    by_row, by_column = cell_weights(size, grid, d_means.device, d_means.dtype)
    columns = by_column.T @ d_means.unflatten(1, grid)
    d_tokens: Tensor = (by_row.T @ columns.flatten(2)).unflatten(2, (size[1], -1)).flatten(1, 2)
    return d_tokens + added.float()


def finish(
    parts: tuple[Tensor, Tensor],
    before: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor],
    layer: tuple[Tensor, Tensor],
    projected: Tensor,
    halves: tuple[Tensor, Tensor] | None,
    normalize: bool,
    residual: bool,
) -> None:
    """As `center_kernels.finish`."""
    sums, mass = (part.sum(dim=0) for part in parts)
    centers = (means(sums, mass) if normalize else sums).flatten(2)
    centers = before + centers if residual else centers
    for output, value in zip(outputs, (sums.flatten(2), mass, centers), strict=True):
        output.copy_(value)
    projected.copy_(F.linear(centers, *layer))
    if halves is not None:
        scaled = HALVES_SCALE * directions(centers)
        halves[0].copy_(scaled)
        halves[1].copy_(scaled - halves[0])


def programs_of(d_after: Tensor) -> int:
    """As `center_kernels.programs_of`: `centers_gradient` sums over all rows at once."""
    return 1


def centers_gradient(
    parts: Tensor,
    d_after: Tensor,
    masses: Tensor,
    weight: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    normalize: bool,
    residual: bool,
) -> None:
    """As `center_kernels.centers_gradient`."""
    d_queries, d_before, d_key_bias, d_value_bias = outputs
    total, count = parts.sum(dim=0), d_after.shape[0] * d_after.shape[1]
    d_queries.copy_(total[:count].view_as(d_queries))
    d_key_bias.copy_(total[count:].view_as(d_key_bias))
    members = (masses > MIN_MASS).to(masses.dtype) if normalize else masses
    d_value_bias.copy_((members[..., None] * d_after.unflatten(2, (masses.shape[-1], -1))).sum(dim=(0, 1)).view(1, -1))
    d_centers = d_queries @ weight
    d_before.copy_(d_centers + d_after if residual else d_centers)
