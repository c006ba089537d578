"""Latent Synchronization in Triton: nearest prototype, gate and gathered value in one pass over the pixels."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.blocked import MIN_NORM
from protoformer.models.kernels.common_kernels import (
    direction_of,
    directions,
    halves_of,
    load_matrix,
    load_rows,
    store_rows,
)
from protoformer.models.kernels.tiles import PRECISIONS, Tile, in_rows, padded, split, within_resources

CHUNK = 128
"""Channels of the features that are compared at a time."""


@triton.jit
def synchronize_kernel(
    features,
    uppers,
    lowers,
    queries,
    query_bias,
    keys,
    values,
    alphas,
    betas,
    attended,
    assignment,
    heads,
    count,
    channels,
    pixels,
    least,
    feature_batch,
    feature_row,
    query_batch,
    query_row,
    key_batch,
    key_row,
    value_batch,
    value_row,
    width: tl.constexpr,
    padded_width: tl.constexpr,
    padded_count: tl.constexpr,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    precision: tl.constexpr,
    joined: tl.constexpr,
):
    """One block of pixels of one image.

    joined: how many heads there are, if they are taken together, else 0. If they are, queries are the weight (C x C)
    that makes them of the features.
    """
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    inside = pixel < pixels
    prototype = tl.arange(0, padded_count)
    exists = prototype < count
    feature_start = features + image * feature_batch
    dtype = attended.dtype.element_ty

    # A pixel's own length does not change which prototype is nearest; that of 1 suits float16.
    largest = tl.zeros((block,), tl.float32)
    for first in tl.static_range(0, padded_channels, chunk):
        feature = load_matrix(feature_start, pixel, first + tl.arange(0, chunk), pixels, channels, feature_row)
        largest = tl.maximum(largest, tl.max(tl.abs(feature.to(tl.float32)), 1))
    scale = 1.0 / tl.maximum(largest, 1e-30)
    similarity = tl.zeros((block, padded_count), tl.float32)
    for first in tl.static_range(0, padded_channels, chunk):
        channel = first + tl.arange(0, chunk)
        if padded_channels > chunk:
            feature = load_matrix(feature_start, pixel, channel, pixels, channels, feature_row)
        upper, lower = halves_of(feature.to(tl.float32) * scale[:, None])
        start = image * count * channels
        their_upper = tl.trans(load_matrix(uppers + start, prototype, channel, count, channels, channels))
        their_lower = tl.trans(load_matrix(lowers + start, prototype, channel, count, channels, channels))
        similarity = tl.dot(upper, their_lower, similarity)
        similarity = tl.dot(lower, their_upper, similarity)
        similarity = tl.dot(upper, their_upper, similarity)
    similarity = tl.where(exists[None, :], similarity, float("-inf"))
    nearest = tl.argmax(similarity, 1)
    nearest = tl.minimum(nearest, count - 1)  # of a pixel that is not a number, too
    tl.store(assignment + image * pixels + pixel, nearest.to(tl.int64), mask=inside)

    key_start, value_start = keys + image * key_batch, values + image * value_batch
    attended_start = attended + image * pixels * channels
    if joined > 0:
        # Rows of the nearest come by an exact product with 0 and 1: gathered, they would be waited for. (So one row
        # that is not finite makes all pixels of its image so.)
        own = (prototype[None, :] == nearest[:, None]).to(dtype)
        channel = tl.arange(0, padded_channels)
        weight = load_matrix(queries, channel, channel, channels, channels, query_row)
        query = tl.dot(feature.to(dtype), tl.trans(weight), input_precision=precision)
        query += tl.load(query_bias + channel)[None, :]
        key = load_matrix(key_start, prototype, channel, count, channels, key_row)
        value = load_matrix(value_start, prototype, channel, count, channels, value_row)
        key = tl.reshape(tl.dot(own, key, input_precision=precision), (block, joined, width))
        query = tl.reshape(query, (block, joined, width))
        query_norm = tl.maximum(tl.sqrt(tl.sum(query * query, 2)), least)
        key_norm = tl.maximum(tl.sqrt(tl.sum(key * key, 2)), least)
        cosine = tl.sum(query * key, 2) / (query_norm * key_norm)
        head = tl.arange(0, joined)
        alpha, beta = tl.load(alphas + head).to(tl.float32), tl.load(betas + head).to(tl.float32)
        gate = tl.sigmoid(alpha[None, :] * cosine + beta[None, :])
        value = tl.reshape(tl.dot(own, value, input_precision=precision), (block, joined, width))
        gated = tl.reshape(value * tl.expand_dims(gate, 2), (block, padded_channels))
        store_rows(attended_start, channels, pixel, inside, gated, padded_channels, padded_channels)
    else:
        # Here they are gathered: with head after head, products with 0 and 1 came out wrong on one GPU.
        for head in tl.range(0, heads, num_stages=1):
            offset = head * width
            query_start = queries + image * query_batch + offset
            query = load_rows(query_start, query_row, pixel, inside, width, padded_width).to(tl.float32)
            key = load_rows(key_start + offset, key_row, nearest, inside, width, padded_width).to(tl.float32)
            value = load_rows(value_start + offset, value_row, nearest, inside, width, padded_width).to(tl.float32)
            query, _, _ = direction_of(query, least)
            key, _, _ = direction_of(key, least)
            cosine = tl.sum(query * key, 1)
            gate = tl.sigmoid(tl.load(alphas + head).to(tl.float32) * cosine + tl.load(betas + head).to(tl.float32))
            store_rows(attended_start + offset, channels, pixel, inside, gate[:, None] * value, width, padded_width)


def _joins(channels: int, heads: int, dtype: torch.dtype) -> bool:
    """Whether all heads of a pixel can be taken together, and its queries made on the way."""
    width = channels // heads
    return dtype != torch.float32 and channels <= CHUNK and channels == padded(channels) and width == padded(width)


def synchronize(
    features: Tensor,
    centers: Tensor | tuple[Tensor, Tensor],
    queries: Tensor | tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """As in `plain`; centers are float32, or their directions in halves (`directions`).

    queries may be the weight (C x C, as the keys) and bias that make them.
    """
    heads, query_bias = alpha.shape[0], alpha
    joined = 0
    if isinstance(queries, tuple):
        if _joins(features.shape[2], heads, keys.dtype):
            joined, (queries, query_bias) = heads, queries
        else:
            weight, bias = queries
            queries = F.linear(features.to(weight.dtype), weight, bias.to(weight.dtype))
    features, queries, keys, values = map(in_rows, (features, queries, keys, values))
    uppers, lowers = centers if isinstance(centers, tuple) else directions(centers)
    batch, pixels, channels = features.shape
    count = keys.shape[1]
    width = channels // heads
    attended = keys.new_empty(batch, pixels, channels)
    assignment = torch.empty(batch, pixels, dtype=torch.int64, device=keys.device)

    def run(tile: Tile) -> None:
        synchronize_kernel[(triton.cdiv(pixels, tile.pixels), batch)](
            features,
            uppers,
            lowers,
            queries,
            query_bias,
            keys,
            values,
            alpha.contiguous(),
            beta.contiguous(),
            attended,
            assignment,
            heads,
            count,
            channels,
            pixels,
            MIN_NORM,
            *features.stride()[:2],
            0 if joined else queries.stride(0),
            queries.stride(-2),
            *keys.stride()[:2],
            *values.stride()[:2],
            width=width,
            padded_width=padded(width),
            padded_count=padded(count),
            padded_channels=padded(channels),
            block=tile.pixels,
            chunk=min(CHUNK, padded(channels)),
            precision=PRECISIONS[keys.dtype],
            joined=joined,
            num_warps=tile.warps,
        )

    with torch.cuda.device_of(keys):
        within_resources(run, "synchronize", keys.dtype, count, channels)
    return attended, assignment


@triton.jit
def synchronize_backward_kernel(
    d_attended,
    queries,
    query_bias,
    keys,
    values,
    alphas,
    betas,
    assignment,
    d_queries,
    d_prototypes,
    d_heads,
    heads,
    count,
    pixels,
    each,
    least,
    arriving_batch,
    arriving_row,
    query_batch,
    query_row,
    key_batch,
    key_row,
    value_batch,
    value_row,
    d_query_batch,
    d_query_row,
    width: tl.constexpr,
    padded_width: tl.constexpr,
    padded_count: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
    precision: tl.constexpr,
    biased: tl.constexpr,
):
    """One part of the pixels of one image and head, and its shares of the gradients of what pixels have in common.

    d_prototypes: of keys, then values, parts x B x K x 2C; d_heads: of a bias of the queries, then alpha, then beta,
    parts x B x heads x (d + 2).
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    offset, channels = head * width, heads * width
    prototype = tl.arange(0, padded_count)
    exists = prototype < count
    alpha, beta = tl.load(alphas + head).to(tl.float32), tl.load(betas + head).to(tl.float32)
    arriving_start = d_attended + image * arriving_batch + offset
    query_start = queries + image * query_batch + offset
    key_start = keys + image * key_batch + offset
    value_start = values + image * value_batch + offset
    d_query_start = d_queries + image * d_query_batch + offset
    channel = tl.arange(0, padded_width)
    # Gradients can be too small for float16; bfloat16 has the range of float32.
    dtype = tl.bfloat16 if values.dtype.element_ty == tl.bfloat16 else tl.float32

    key_total = tl.zeros((padded_count, padded_width), tl.float32)
    value_total = tl.zeros((padded_count, padded_width), tl.float32)
    by_bias = tl.zeros((block, padded_width), tl.float32)
    by_alpha = tl.zeros((block,), tl.float32)
    by_beta = tl.zeros((block,), tl.float32)
    first = part * each
    last = tl.minimum(first + each, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        own = tl.load(assignment + image * pixels + pixel, mask=inside, other=0).to(tl.int32)
        arriving = load_rows(arriving_start, arriving_row, pixel, inside, width, padded_width).to(tl.float32)
        query = load_rows(query_start, query_row, pixel, inside, width, padded_width).to(tl.float32)
        if biased:
            query += tl.load(query_bias + offset + channel, mask=channel < width, other=0.0)[None, :]
        key = load_rows(key_start, key_row, own, inside, width, padded_width).to(tl.float32)
        value = load_rows(value_start, value_row, own, inside, width, padded_width).to(tl.float32)
        query, query_norm, query_raised = direction_of(query, least)
        key, key_norm, key_raised = direction_of(key, least)
        cosine = tl.sum(query * key, 1)
        gate = tl.sigmoid(alpha * cosine + beta)

        d_logit = tl.sum(arriving * value, 1) * gate * (1.0 - gate)
        by_alpha += d_logit * cosine
        by_beta += d_logit
        d_cosine = d_logit * alpha
        # Like torch's own gradient, this does not know of the least length.
        along_query, along_key = cosine * query_raised, cosine * key_raised
        d_query = (d_cosine / query_norm)[:, None] * (key - along_query[:, None] * query)
        d_key = (d_cosine / key_norm)[:, None] * (query - along_key[:, None] * key)
        by_bias += d_query
        store_rows(d_query_start, d_query_row, pixel, inside, d_query, width, padded_width)
        member = ((prototype[:, None] == own[None, :]) & inside[None, :]).to(dtype)
        key_total = tl.dot(member, d_key.to(dtype), key_total, input_precision=precision)
        value_total = tl.dot(member, (gate[:, None] * arriving).to(dtype), value_total, input_precision=precision)

    image_place = part.to(tl.int64) * (tl.num_programs(0) // heads) + image
    d_key_start = d_prototypes + image_place * count * 2 * channels + offset
    store_rows(d_key_start, 2 * channels, prototype, exists, key_total, width, padded_width)
    store_rows(d_key_start + channels, 2 * channels, prototype, exists, value_total, width, padded_width)
    d_head_start = d_heads + (part.to(tl.int64) * tl.num_programs(0) + row) * (width + 2)
    tl.store(d_head_start + channel, tl.sum(by_bias, 0), mask=channel < width)
    tl.store(d_head_start + width, tl.sum(by_alpha, 0))
    tl.store(d_head_start + width + 1, tl.sum(by_beta, 0))


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
    """Write d_queries, which may be queries; return what each part of the pixels gives to what pixels have in common.

    query_bias: what is to be added to the queries. What pixels have in common: parts x B x K x 2C, of the keys and
    values, and parts x B x heads x (d + 2), of a bias of the queries, of alpha and of beta; all float32.
    """
    batch, pixels, channels = queries.shape
    count, heads = keys.shape[1], alpha.shape[0]
    width, rows = channels // heads, batch * heads
    found: list[Tensor] = []

    def run(tile: Tile) -> None:
        parts, each = split(pixels, rows, tile, queries.device)
        d_prototypes = queries.new_empty(parts, batch, count, 2 * channels, dtype=torch.float32)
        d_heads = queries.new_empty(parts, batch, heads, width + 2, dtype=torch.float32)
        synchronize_backward_kernel[(rows, parts)](
            d_attended,
            queries,
            alpha if query_bias is None else query_bias,
            keys,
            values,
            alpha.contiguous(),
            beta.contiguous(),
            assignment.contiguous(),
            d_queries,
            d_prototypes,
            d_heads,
            heads,
            count,
            pixels,
            each,
            MIN_NORM,
            *d_attended.stride()[:2],
            *queries.stride()[:2],
            *keys.stride()[:2],
            *values.stride()[:2],
            *d_queries.stride()[:2],
            width=width,
            padded_width=padded(width),
            padded_count=padded(count),
            block=tile.pixels,
            stages=tile.stages,
            precision=PRECISIONS[queries.dtype],
            biased=query_bias is not None,
            num_warps=tile.warps,
        )
        found[:] = [d_prototypes, d_heads]

    within_resources(run, "synchronize_backward", queries.dtype, count, width)
    return found[0], found[1]


def synchronize_backward(
    d_attended: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
    assignment: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, alpha and beta, each in its own precision."""
    d_attended, queries, keys, values = map(in_rows, (d_attended, queries, keys, values))
    width = queries.shape[2] // alpha.shape[0]
    d_queries = queries.new_empty(queries.shape)
    with torch.cuda.device_of(queries):
        gradients = partial_gradients(d_attended, queries, keys, values, alpha, beta, assignment, d_queries)
        d_keys, d_values = gradients[0].sum(dim=0).to(keys.dtype).chunk(2, dim=-1)
        d_heads = gradients[1].sum(dim=(0, 1)).to(alpha.dtype)
    return (
        d_queries,
        d_keys.contiguous(),
        d_values.contiguous(),
        d_heads[:, width].clone(),
        d_heads[:, width + 1].clone(),
    )
