"""Operators of CAP and LS in plain torch: the fused versions are tested against them and fall back to them."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import cells
from protoformer.models.runtime import accumulation_dtype, full_precision, maps_to_tokens, merge_heads, split_heads

MIN_MASS = 1e-6
"""Mass below which a prototype counts as empty, and its mean as zero."""
HALVES_SCALE = 64.0
"""Norm of the directions that are split into two float16 numbers: large enough that the remainder is not subnormal."""


class PriorCoefficients(NamedTuple):
    """Spatial prior in the form that the fused versions take: its logits are dot products with (x, y, 1) of a pixel.

    Attributes:
        coefficients: B x K x 3, by prototype.
        pixels: HW x 2, positions (x, y) of the pixels, from `pixel_coordinates`.
    """

    coefficients: Tensor
    pixels: Tensor

    def logits(self) -> Tensor:
        """Return the logits of all images, B x K x HW, in full precision."""
        slopes, offset = self.coefficients.split((2, 1), dim=-1)
        with full_precision(offset):
            logits: Tensor = slopes @ self.pixels.T + offset
            return logits

    def of(self, image: int, block: slice) -> Tensor:
        """Return the logits of a block of n pixels of an image: n x K."""
        slopes, offset = self.coefficients[image].split((2, 1), dim=-1)
        return torch.addmm(offset.T, self.pixels[block], slopes.T)


def pixel_coordinates(size: tuple[int, int], grid: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the positions (x, y) of all pixels, HW x 2, in cells of the grid from the middle of the map."""
    y, x = (
        (torch.arange(length, device=device).to(dtype) - (length - 1) / 2) * (count / length)
        for length, count in zip(size, grid, strict=True)
    )
    return torch.stack((x.expand(size), y[:, None].expand(size)), dim=-1).flatten(0, 1)


def cell_positions(grid: tuple[int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the centers (x, y) of all cells, K x 2, in the units of `pixel_coordinates`."""
    return pixel_coordinates(grid, grid, device, dtype)


def prior_logits(positions: Tensor, log_width: Tensor, pixels: Tensor) -> Tensor:
    """Return the logits of the spatial prior, -|x_i - c_k|^2 / (2 w^2).

    Args:
        positions: B x K x 2, positions c of the prototypes.
        log_width: Logarithm of w.
        pixels: HW x 2, positions x of the pixels.

    Returns:
        B x K x HW.
    """
    distances = (pixels - positions[:, :, None]).square().sum(dim=-1)
    return -distances * (torch.exp(-2 * log_width) / 2)


def prior_coefficients(positions: Tensor, log_width: Tensor) -> Tensor:
    """Return (c_x, c_y, -|c|^2 / 2) / w^2 for `PriorCoefficients`, B x K x 3; arguments as in `prior_logits`.

    The logits lack the term -|x_i|^2 / (2 w^2), which changes neither a softmax over prototypes nor an argmax.
    """
    half_square = positions.square().sum(dim=-1, keepdim=True) / 2
    return torch.cat((positions, -half_square), dim=-1) * torch.exp(-2 * log_width)


def mean_positions(moments: Tensor, mass: Tensor, before: Tensor) -> Tensor:
    """M-step of the positions: the mean over all pixels and heads; an empty prototype stays where it was.

    Args:
        moments: B x K x 2, sums over pixels and heads of the positions, weighted by the memberships.
        mass: B x heads x K.
        before: B x K x 2, positions before the iteration.

    Returns:
        B x K x 2.
    """
    total = mass.sum(dim=1)[..., None]
    return torch.where(total > MIN_MASS, moments / total.clamp_min(MIN_MASS), before)


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


def softmax_over_prototypes(logits: Tensor) -> Tensor:
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
    return member_sums(softmax_over_prototypes(similarities(queries, keys)), values)


def spatial_sums(
    queries: Tensor, keys: Tensor, values: Tensor, prior: PriorCoefficients
) -> tuple[Tensor, Tensor, Tensor]:
    """As `prototype_sums` with a spatial prior; also the moments for `mean_positions`, B x K x 2."""
    memberships = softmax_over_prototypes(similarities(queries, keys) + prior.logits()[:, None])
    return *member_sums(memberships, values), spatial_moments(memberships, prior.pixels)


def spatial_moments(memberships: Tensor, pixels: Tensor) -> Tensor:
    """Return the moments for `mean_positions` of memberships, B x heads x K x HW, in full precision: B x K x 2."""
    with full_precision(memberships):
        return memberships.sum(dim=1).to(pixels.dtype) @ pixels


def member_sums(memberships: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of values (B x heads x HW x d) weighted by memberships (B x heads x K x HW), and the masses."""
    sums = memberships.to(values.dtype) @ values
    return sums, memberships.sum(dim=-1, dtype=accumulation_dtype(memberships.dtype))


def divide_by_mass(sums: Tensor, mass: Tensor) -> Tensor:
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
def nearest_prototype(features: Tensor, centers: Tensor, prior: PriorCoefficients | None = None) -> Tensor:
    """Return the index of the prototype of largest cosine similarity to each feature, plus the prior if there is one.

    Without a prior the norm of a feature does not change its nearest prototype, so only the prototypes are normalized.

    Args:
        features: B x HW x C.
        centers: B x K x C, the prototypes.
        prior: Spatial prior in units of the cosine, that is, its logits times the temperature.

    Returns:
        B x HW, int64.
    """
    with full_precision(features):  # half precision changes the argmax of a few percent of the pixels
        if prior is None:
            return (features.float() @ unit_vectors(centers).transpose(1, 2)).argmax(dim=-1)
        similarity = unit_vectors(features) @ unit_vectors(centers).transpose(1, 2)
        return (similarity + prior.logits().transpose(1, 2)).argmax(dim=-1)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Normalize vectors, ... x C, to length 1 in float32."""
    return F.normalize(vectors.float(), dim=-1)


def gather_assigned(prototypes: Tensor, assignment: Tensor) -> Tensor:
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
    own_keys, own_values = (
        split_heads(gather_assigned(projection, assignment), heads) for projection in (keys, values)
    )
    similarity = F.cosine_similarity(split_heads(queries, heads), own_keys, dim=-1)
    gate = torch.sigmoid(alpha[:, None] * similarity + beta[:, None])
    return merge_heads(gate[..., None] * own_values)


def synchronize(
    features: Tensor,
    centers: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    prior: PriorCoefficients | None = None,
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
        prior: As in `nearest_prototype`.

    Returns:
        The gated values, B x HW x C, and the assignment, B x HW, int64.
    """
    assignment = nearest_prototype(features, centers, prior)
    return gated(queries, keys, values, alpha, beta, assignment), assignment


# Steps of the fused operator (`mixing`). They have the arguments of the Triton kernels in whose place they run, write
# their results to tensors that the caller has allocated, and therefore compute no gradient.


def project(tokens: Tensor, weight: Tensor, bias: Tensor, tokens_half: Tensor | None) -> Tensor:
    """Project tokens to keys and values in the precision of matrix products; replaces `mlp_kernels.project`.

    Args:
        tokens: n x C, float32.
        weight: outputs x C, in the dtype of the result.
        bias: outputs, float32.
        tokens_half: Filled with the tokens in the dtype of the result, n x C, unless None.

    Returns:
        tokens weight^T + bias, n x outputs.
    """
    rows = tokens.to(weight.dtype)
    if tokens_half is not None:
        tokens_half.copy_(rows)
    return torch.addmm(bias.to(weight.dtype), rows, weight.T)


def pool(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int], output: Tensor) -> None:
    """Write the means of the cells of the grid, the initial prototypes; replaces `center_kernels.pool`.

    Args:
        tokens: B x HW x C.
        size: (H, W) of the map.
        grid: (rows, columns) of the grid; K = rows * columns.
        output: Filled with the means, B x K x C.
    """
    output.copy_(cell_means_by_products(tokens, size, grid))


def spread(d_means: Tensor, added: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Compute the gradient of the tokens of `pool` and add another term; replaces `center_kernels.spread`.

    A pixel gets, from each cell that contains it, the gradient of the mean divided by the number of pixels of the cell.

    Args:
        d_means: B x K x C, gradient of the means.
        added: B x HW x C, gradient of the tokens by other paths.
        size: (H, W) of the map.
        grid: (rows, columns) of the grid.

    Returns:
        B x HW x C, float32.
    """
    by_row, by_column = cell_weights(size, grid, d_means.device, d_means.dtype)
    columns = by_column.T @ d_means.unflatten(1, grid)
    d_tokens: Tensor = (by_row.T @ columns.flatten(2)).unflatten(2, (size[1], -1)).flatten(1, 2)
    return d_tokens + added.float()


def m_step(
    parts: tuple[Tensor, Tensor],
    before: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor],
    layer: tuple[Tensor, Tensor],
    projected: Tensor,
    halves: tuple[Tensor, Tensor] | None,
    normalize: bool,
    residual: bool,
) -> None:
    """Run the M-step on partial sums of the E-step, and project the new prototypes; replaces `center_kernels.m_step`.

    P <- P + S / m with S = M V and m the masses; without `normalize` P <- P + S, without `residual` P <- S / m.

    Args:
        parts: Terms of S and of m from parts of the pixels, parts x B x K x heads x d and parts x B x K x heads.
        before: Prototypes P before the iteration, B x K x C.
        outputs: Filled with S (B x K x C), m (B x K x heads) and the new prototypes (B x K x C).
        layer: Weight (outputs x C) and bias of the projection: queries of the next iteration or, after the last one,
            keys and values of LS.
        projected: Filled with the projection of the new prototypes, B x K x outputs.
        halves: Filled with the directions of the new prototypes, scaled to the norm `HALVES_SCALE`, as the sum of two
            float16 tensors, B x K x C each, unless None.
        normalize: Divide S by m.
        residual: Add P.
    """
    sums, mass = (part.sum(dim=0) for part in parts)
    centers = (divide_by_mass(sums, mass) if normalize else sums).flatten(2)
    centers = before + centers if residual else centers
    for output, value in zip(outputs, (sums.flatten(2), mass, centers), strict=True):
        output.copy_(value)
    projected.copy_(F.linear(centers, *layer))
    if halves is not None:
        scaled = HALVES_SCALE * unit_vectors(centers)
        halves[0].copy_(scaled)
        halves[1].copy_(scaled - halves[0])


def programs_of(d_after: Tensor) -> int:
    """Return the number of partial sums of the value bias that `centers_gradient` writes: a single one.

    Replaces `center_kernels.programs_of`, where every program of the kernel writes one.
    """
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
    """Backpropagate through the M-step and the queries of one iteration; replaces `center_kernels.centers_gradient`.

    With Q = P W^T + b and d_after the gradient of the new prototypes: dP = dQ W, plus d_after with `residual`. The bias
    of the values enters the sum of a prototype once for each unit of its mass, so that its gradient is d_after summed
    over all prototypes that have members (with `normalize`), or weighted by their masses (without).

    Args:
        parts: Terms of the gradient from parts of the pixels, parts x (B K + B) x C: rows of the queries, then, for
            each image, of the bias of the keys.
        d_after: Gradient of the prototypes after the iteration, B x K x C.
        masses: B x K x heads.
        weight: Weight W of the queries, C x C.
        outputs: Filled with the gradients of the queries and of the prototypes before the iteration, B x K x C each,
            of the bias of the keys for each image, B x C, and of the bias of the values, 1 x C.
        normalize: As in `m_step`.
        residual: As in `m_step`.
    """
    d_queries, d_before, d_key_bias, d_value_bias = outputs
    total, count = parts.sum(dim=0), d_after.shape[0] * d_after.shape[1]
    d_queries.copy_(total[:count].view_as(d_queries))
    d_key_bias.copy_(total[count:].view_as(d_key_bias))
    members = (masses > MIN_MASS).to(masses.dtype) if normalize else masses
    d_value_bias.copy_((members[..., None] * d_after.unflatten(2, (masses.shape[-1], -1))).sum(dim=(0, 1)).view(1, -1))
    d_centers = d_queries @ weight
    d_before.copy_(d_centers + d_after if residual else d_centers)
