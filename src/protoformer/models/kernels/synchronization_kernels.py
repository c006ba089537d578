"""Triton kernels of Latent Synchronization: nearest prototype, gate and gathered value in one pass over the pixels."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.blocked import MIN_NORM
from protoformer.models.kernels.common_kernels import (
    SCALE,
    directions,
    load_matrix,
    load_positions,
    load_prior,
    load_rows,
    normalize_rows,
    split_halves,
    store_rows,
)
from protoformer.models.kernels.reference import PriorCoefficients
from protoformer.models.kernels.tiles import PRECISIONS, Tile, launch, padded, split, with_contiguous_rows

CHUNK = 128
"""Channels of the features that are compared at a time."""


@triton.jit
def synchronize_kernel(
    features, uppers, lowers, queries, query_bias, keys, values, alphas, betas, coefficients, positions,
    attended, assignment,
    heads, num_prototypes, channels, pixels, min_norm,
    feature_batch, feature_row, query_batch, query_row, key_batch, key_row, value_batch, value_row,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, padded_prototypes: tl.constexpr,
    padded_channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr, precision: tl.constexpr,
    joint_heads: tl.constexpr, has_prior: tl.constexpr,
):  # fmt: skip
    """Gated value sigmoid(alpha cos(q, k) + beta) v of the nearest prototype, for a block of pixels of one image.

    joint_heads: number of heads if they are processed together, else 0. If they are, `queries` is the weight (C x C)
    that projects the features to queries. has_prior: add the logits of a prior (B x K x 3, HW x 2) to the cosine.
    """
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    inside = pixel < pixels
    prototype = tl.arange(0, padded_prototypes)
    exists = prototype < num_prototypes
    feature_start = features + image * feature_batch
    dtype = attended.dtype.element_ty

    # The norm of a feature does not change its nearest prototype; magnitude 1 suits float16.
    largest = tl.zeros((block,), tl.float32)
    for first in tl.static_range(0, padded_channels, chunk):
        feature = load_matrix(feature_start, pixel, first + tl.arange(0, chunk), pixels, channels, feature_row)
        largest = tl.maximum(largest, tl.max(tl.abs(feature.to(tl.float32)), 1))
    scale = 1.0 / tl.maximum(largest, 1e-30)
    similarity = tl.zeros((block, padded_prototypes), tl.float32)
    square = tl.zeros((block,), tl.float32)
    for first in tl.static_range(0, padded_channels, chunk):
        channel = first + tl.arange(0, chunk)
        if padded_channels > chunk:
            feature = load_matrix(feature_start, pixel, channel, pixels, channels, feature_row)
        scaled = feature.to(tl.float32) * scale[:, None]
        if has_prior:
            square += tl.sum(scaled * scaled, 1)
        upper, lower = split_halves(scaled)
        start = image * num_prototypes * channels
        center_upper = tl.trans(load_matrix(uppers + start, prototype, channel, num_prototypes, channels, channels))
        center_lower = tl.trans(load_matrix(lowers + start, prototype, channel, num_prototypes, channels, channels))
        similarity = tl.dot(upper, center_lower, similarity)
        similarity = tl.dot(lower, center_upper, similarity)
        similarity = tl.dot(upper, center_upper, similarity)
    if has_prior:
        slope_x, slope_y, logit = load_prior(coefficients, image * num_prototypes + prototype, exists)
        x, y = load_positions(positions, pixel, inside)
        similarity = similarity / (tl.maximum(tl.sqrt(square), 1e-12) * SCALE)[:, None] + logit[None, :]
        similarity += x[:, None] * slope_x[None, :] + y[:, None] * slope_y[None, :]
    similarity = tl.where(exists[None, :], similarity, float("-inf"))
    nearest = tl.argmax(similarity, 1)
    nearest = tl.minimum(nearest, num_prototypes - 1)  # valid also for NaN
    tl.store(assignment + image * pixels + pixel, nearest.to(tl.int64), mask=inside)

    key_start, value_start = keys + image * key_batch, values + image * value_batch
    attended_start = attended + image * pixels * channels
    if joint_heads > 0:
        # The nearest rows are an exact product with a one-hot matrix, as gathering would wait for memory. (So one row
        # that is not finite makes all pixels of its image so.)
        one_hot = (prototype[None, :] == nearest[:, None]).to(dtype)
        channel = tl.arange(0, padded_channels)
        weight = load_matrix(queries, channel, channel, channels, channels, query_row)
        query = tl.dot(feature.to(dtype), tl.trans(weight), input_precision=precision)
        query += tl.load(query_bias + channel)[None, :]
        key = load_matrix(key_start, prototype, channel, num_prototypes, channels, key_row)
        value = load_matrix(value_start, prototype, channel, num_prototypes, channels, value_row)
        key = tl.reshape(tl.dot(one_hot, key, input_precision=precision), (block, joint_heads, head_dim))
        query = tl.reshape(query, (block, joint_heads, head_dim))
        query_norm = tl.maximum(tl.sqrt(tl.sum(query * query, 2)), min_norm)
        key_norm = tl.maximum(tl.sqrt(tl.sum(key * key, 2)), min_norm)
        cosine = tl.sum(query * key, 2) / (query_norm * key_norm)
        head = tl.arange(0, joint_heads)
        alpha, beta = tl.load(alphas + head).to(tl.float32), tl.load(betas + head).to(tl.float32)
        gate = tl.sigmoid(alpha[None, :] * cosine + beta[None, :])
        value = tl.reshape(tl.dot(one_hot, value, input_precision=precision), (block, joint_heads, head_dim))
        gated = tl.reshape(value * tl.expand_dims(gate, 2), (block, padded_channels))
        store_rows(attended_start, channels, pixel, inside, gated, padded_channels, padded_channels)
    else:
        # Rows are gathered: in a loop over heads, one-hot products gave wrong results on one GPU.
        for head in tl.range(0, heads, num_stages=1):
            offset = head * head_dim
            query_start = queries + image * query_batch + offset
            query = load_rows(query_start, query_row, pixel, inside, head_dim, padded_dim).to(tl.float32)
            key = load_rows(key_start + offset, key_row, nearest, inside, head_dim, padded_dim).to(tl.float32)
            value = load_rows(value_start + offset, value_row, nearest, inside, head_dim, padded_dim).to(tl.float32)
            query, _, _ = normalize_rows(query, min_norm)
            key, _, _ = normalize_rows(key, min_norm)
            cosine = tl.sum(query * key, 1)
            gate = tl.sigmoid(tl.load(alphas + head).to(tl.float32) * cosine + tl.load(betas + head).to(tl.float32))
            store_rows(attended_start + offset, channels, pixel, inside, gate[:, None] * value, head_dim, padded_dim)


def _can_join_heads(channels: int, heads: int, dtype: torch.dtype) -> bool:
    """Return whether a program can process all heads of a pixel together, including the projection to queries."""
    is_small = dtype != torch.float32 and channels <= CHUNK
    return is_small and channels == padded(channels) and channels // heads == padded(channels // heads)


def synchronize(
    features: Tensor,
    centers: Tensor | tuple[Tensor, Tensor],
    queries: Tensor | tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    prior: PriorCoefficients | None = None,
) -> tuple[Tensor, Tensor]:
    """As `reference.synchronize`.

    Args:
        features: B x HW x C.
        centers: B x K x C, float32, or their directions in two halves, from `common_kernels.directions`.
        queries: B x HW x C, or the weight (C x C, in the precision of the keys) and bias that project the features.
        keys: B x K x C.
        values: B x K x C.
        alpha: One value for each head.
        beta: One value for each head.
        prior: As in `reference.nearest_prototype`.
    """
    heads, query_bias, joint_heads = alpha.shape[0], alpha, 0
    if isinstance(queries, tuple):
        if _can_join_heads(features.shape[2], heads, keys.dtype):
            joint_heads, (queries, query_bias) = heads, queries
        else:
            weight, bias = queries
            queries = F.linear(features.to(weight.dtype), weight, bias.to(weight.dtype))
    features, queries, keys, values = map(with_contiguous_rows, (features, queries, keys, values))
    uppers, lowers = centers if isinstance(centers, tuple) else directions(centers)
    batch, pixels, channels = features.shape
    num_prototypes, head_dim = keys.shape[1], channels // heads
    coefficients, positions = (uppers, uppers) if prior is None else (each.float().contiguous() for each in prior)
    attended = keys.new_empty(batch, pixels, channels)
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=keys.device)

    def run(tile: Tile) -> None:
        synchronize_kernel[(triton.cdiv(pixels, tile.pixels), batch)](
            features, uppers, lowers, queries, query_bias, keys, values, alpha.contiguous(), beta.contiguous(),
            coefficients, positions, attended, assignment,
            heads, num_prototypes, channels, pixels, MIN_NORM,
            *features.stride()[:2], 0 if joint_heads else queries.stride(0), queries.stride(-2),
            *keys.stride()[:2], *values.stride()[:2],
            head_dim=head_dim, padded_dim=padded(head_dim), padded_prototypes=padded(num_prototypes),
            padded_channels=padded(channels), block=tile.pixels, chunk=min(CHUNK, padded(channels)),
            precision=PRECISIONS[keys.dtype], joint_heads=joint_heads, has_prior=prior is not None,
            num_warps=tile.warps,
        )  # fmt: skip

    with torch.cuda.device_of(keys):
        launch(run, "synchronize", keys.dtype, num_prototypes, channels)
    return attended, assignment


@triton.jit
def synchronize_backward_kernel(
    d_attended, queries, query_bias, keys, values, alphas, betas, assignment, d_queries, d_prototypes, d_heads,
    heads, num_prototypes, pixels, pixels_per_part, min_norm,
    d_attended_batch, d_attended_row, query_batch, query_row, key_batch, key_row, value_batch, value_row,
    d_query_batch, d_query_row,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, padded_prototypes: tl.constexpr, block: tl.constexpr,
    stages: tl.constexpr, precision: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    """Gradients of one part of the pixels of one image and head, and its terms of the shared gradients.

    d_prototypes: parts x B x K x 2C, of keys, then values. d_heads: parts x B x heads x (d + 2), of a bias of the
    queries, then alpha, then beta.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    offset, channels = head * head_dim, heads * head_dim
    prototype = tl.arange(0, padded_prototypes)
    exists = prototype < num_prototypes
    alpha, beta = tl.load(alphas + head).to(tl.float32), tl.load(betas + head).to(tl.float32)
    d_attended_start = d_attended + image * d_attended_batch + offset
    query_start = queries + image * query_batch + offset
    key_start = keys + image * key_batch + offset
    value_start = values + image * value_batch + offset
    d_query_start = d_queries + image * d_query_batch + offset
    channel = tl.arange(0, padded_dim)
    # Small gradients would underflow in float16; bfloat16 has the range of float32.
    dtype = tl.bfloat16 if values.dtype.element_ty == tl.bfloat16 else tl.float32

    key_total = tl.zeros((padded_prototypes, padded_dim), tl.float32)
    value_total = tl.zeros((padded_prototypes, padded_dim), tl.float32)
    d_bias = tl.zeros((block, padded_dim), tl.float32)
    d_alpha = tl.zeros((block,), tl.float32)
    d_beta = tl.zeros((block,), tl.float32)
    first = part * pixels_per_part
    last = tl.minimum(first + pixels_per_part, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        nearest = tl.load(assignment + image * pixels + pixel, mask=inside, other=0).to(tl.int32)
        gradient = load_rows(d_attended_start, d_attended_row, pixel, inside, head_dim, padded_dim).to(tl.float32)
        query = load_rows(query_start, query_row, pixel, inside, head_dim, padded_dim).to(tl.float32)
        if has_bias:
            query += tl.load(query_bias + offset + channel, mask=channel < head_dim, other=0.0)[None, :]
        key = load_rows(key_start, key_row, nearest, inside, head_dim, padded_dim).to(tl.float32)
        value = load_rows(value_start, value_row, nearest, inside, head_dim, padded_dim).to(tl.float32)
        query, query_norm, query_ratio = normalize_rows(query, min_norm)
        key, key_norm, key_ratio = normalize_rows(key, min_norm)
        cosine = tl.sum(query * key, 1)
        gate = tl.sigmoid(alpha * cosine + beta)

        d_logit = tl.sum(gradient * value, 1) * gate * (1.0 - gate)
        d_alpha += d_logit * cosine
        d_beta += d_logit
        d_cosine = d_logit * alpha
        # Like torch's own gradient, this ignores the lower bound of the norm.
        query_cosine, key_cosine = cosine * query_ratio, cosine * key_ratio
        d_query = (d_cosine / query_norm)[:, None] * (key - query_cosine[:, None] * query)
        d_key = (d_cosine / key_norm)[:, None] * (query - key_cosine[:, None] * key)
        d_bias += d_query
        store_rows(d_query_start, d_query_row, pixel, inside, d_query, head_dim, padded_dim)
        one_hot = ((prototype[:, None] == nearest[None, :]) & inside[None, :]).to(dtype)
        key_total = tl.dot(one_hot, d_key.to(dtype), key_total, input_precision=precision)
        value_total = tl.dot(one_hot, (gate[:, None] * gradient).to(dtype), value_total, input_precision=precision)

    image_index = part.to(tl.int64) * (tl.num_programs(0) // heads) + image
    d_key_start = d_prototypes + image_index * num_prototypes * 2 * channels + offset
    store_rows(d_key_start, 2 * channels, prototype, exists, key_total, head_dim, padded_dim)
    store_rows(d_key_start + channels, 2 * channels, prototype, exists, value_total, head_dim, padded_dim)
    d_head_start = d_heads + (part.to(tl.int64) * tl.num_programs(0) + row) * (head_dim + 2)
    tl.store(d_head_start + channel, tl.sum(d_bias, 0), mask=channel < head_dim)
    tl.store(d_head_start + head_dim, tl.sum(d_alpha, 0))
    tl.store(d_head_start + head_dim + 1, tl.sum(d_beta, 0))


def partial_gradients(
    d_attended: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    assignment: Tensor,
    d_queries: Tensor,
    query_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fill d_queries, which may be `queries`, and return the terms of the parts of the pixels of the other gradients.

    Args:
        d_attended: B x HW x C.
        queries: B x HW x C.
        keys: B x K x C.
        values: B x K x C.
        alpha: One value for each head.
        beta: One value for each head.
        assignment: B x HW, int64.
        d_queries: B x HW x C.
        query_bias: C, added to the queries.

    Returns:
        parts x B x K x 2C, gradients of keys and values, and parts x B x heads x (d + 2), of the bias of the queries,
        alpha and beta; float32.
    """
    batch, pixels, channels = queries.shape
    num_prototypes, heads = keys.shape[1], alpha.shape[0]
    head_dim, rows = channels // heads, batch * heads

    def run(tile: Tile) -> tuple[Tensor, Tensor]:
        parts, pixels_per_part = split(pixels, rows, tile, queries.device)
        d_prototypes = queries.new_empty(parts, batch, num_prototypes, 2 * channels, dtype=torch.float32)
        d_heads = queries.new_empty(parts, batch, heads, head_dim + 2, dtype=torch.float32)
        synchronize_backward_kernel[(rows, parts)](
            d_attended, queries, alpha if query_bias is None else query_bias, keys, values,
            alpha.contiguous(), beta.contiguous(), assignment.contiguous(), d_queries, d_prototypes, d_heads,
            heads, num_prototypes, pixels, pixels_per_part, MIN_NORM,
            *d_attended.stride()[:2], *queries.stride()[:2], *keys.stride()[:2], *values.stride()[:2],
            *d_queries.stride()[:2],
            head_dim=head_dim, padded_dim=padded(head_dim), padded_prototypes=padded(num_prototypes),
            block=tile.pixels, stages=tile.stages, precision=PRECISIONS[queries.dtype],
            has_bias=query_bias is not None, num_warps=tile.warps,
        )  # fmt: skip
        return d_prototypes, d_heads

    return launch(run, "synchronize_backward", queries.dtype, num_prototypes, head_dim)


def synchronize_backward(
    d_attended: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    assignment: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values, alpha and beta, each in its own precision."""
    d_attended, queries, keys, values = map(with_contiguous_rows, (d_attended, queries, keys, values))
    head_dim = queries.shape[2] // alpha.shape[0]
    d_queries = queries.new_empty(queries.shape)
    with torch.cuda.device_of(queries):
        d_prototypes, d_heads = partial_gradients(d_attended, queries, keys, values, alpha, beta, assignment, d_queries)
        d_keys, d_values = d_prototypes.sum(dim=0).to(keys.dtype).chunk(2, dim=-1)
        d_heads = d_heads.sum(dim=(0, 1)).to(alpha.dtype)
    d_alpha, d_beta = d_heads[:, head_dim].clone(), d_heads[:, head_dim + 1].clone()
    return d_queries, d_keys.contiguous(), d_values.contiguous(), d_alpha, d_beta
