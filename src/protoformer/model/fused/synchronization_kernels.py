"""Latent Synchronization in Triton: nearest prototype, gate and gathered value in one pass over the pixels."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.fused.blocked import LEAST_NORM
from protoformer.model.fused.direction_kernels import direction_of, directions, halves_of
from protoformer.model.fused.memory_kernels import load_matrix, load_rows, store_rows
from protoformer.model.fused.tiles import PRECISIONS, Tile, in_rows, padded, within_resources

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
    centres: Tensor | tuple[Tensor, Tensor],
    queries: Tensor | tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """As in `plain`; centres are float32, or their directions in halves (`directions`).

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
    uppers, lowers = centres if isinstance(centres, tuple) else directions(centres)
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
            LEAST_NORM,
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
