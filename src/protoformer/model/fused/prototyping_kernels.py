"""Cross-Attention Prototyping in Triton: one pass over the pixels per step, memberships in registers only.

A program goes over a part of the pixels of one image and head, block by block: scaled products with all K queries, the
softmax over them, and the block's share of the sums. It writes its own partial sums, which are then added in a fixed
order, so that two runs agree bit by bit. The backward pass computes the memberships again.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.fused.blocked import like_tokens
from protoformer.model.fused.tiles import PRECISIONS, Tile, in_rows, padded, split, within_resources

ONES = tl.constexpr(16)
"""The narrowest matrix that a product takes."""


@triton.jit
def load_rows(start, row_stride, rows, inside, width: tl.constexpr, padded_width: tl.constexpr):
    """Rows of `width` numbers, padded with zeros to `padded_width`; rows that are not inside are zero."""
    channel = tl.arange(0, padded_width)
    kept = inside[:, None] & (channel[None, :] < width)
    return tl.load(start + rows[:, None] * row_stride + channel[None, :], mask=kept, other=0.0)


@triton.jit
def store_rows(start, row_stride, rows, inside, numbers, width: tl.constexpr, padded_width: tl.constexpr):
    """The inverse of `load_rows`."""
    channel = tl.arange(0, padded_width)
    kept = inside[:, None] & (channel[None, :] < width)
    tl.store(start + rows[:, None] * row_stride + channel[None, :], numbers.to(start.dtype.element_ty), mask=kept)


@triton.jit
def memberships_of(key, query, scale, inside, exists, precision: tl.constexpr):
    """Pixels x prototypes, summing to 1 for each pixel inside; `scale` takes the products to powers of two."""
    barred = tl.where(exists, 0.0, float("-inf"))
    logits = tl.dot(key, tl.trans(query), input_precision=precision) * scale + barred[None, :]
    shares = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return shares * tl.where(inside, 1.0 / tl.sum(shares, 1), 0.0)[:, None]


@triton.jit
def sums_kernel(
    queries,
    keys,
    values,
    sums,
    masses,
    heads,
    count,
    pixels,
    each,
    scale,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    width: tl.constexpr,
    padded_width: tl.constexpr,
    padded_count: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
    precision: tl.constexpr,
    mass_by_product: tl.constexpr,
):
    """Partial sums (parts x rows x K x d) and masses (parts x rows x K) of one part of one row's pixels."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    prototype = tl.arange(0, padded_count)
    exists = prototype < count
    query_start = queries + image * query_batch + head * query_head
    query = load_rows(query_start, query_row, prototype, exists, width, padded_width)
    key_start = keys + image * key_batch + head * key_head
    value_start = values + image * value_batch + head * value_head

    total = tl.zeros((padded_count, padded_width), tl.float32)
    mass = tl.zeros((padded_count, ONES), tl.float32) if mass_by_product else tl.zeros((padded_count,), tl.float32)
    first = part * each
    last = tl.minimum(first + each, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        key = load_rows(key_start, key_row, pixel, inside, width, padded_width)
        value = load_rows(value_start, value_row, pixel, inside, width, padded_width)
        shares = memberships_of(key, query, scale, inside, exists, precision)
        turned = tl.trans(shares.to(value.dtype))
        total = tl.dot(turned, value, total, input_precision=precision)
        if mass_by_product:
            mass = tl.dot(turned, tl.full((block, ONES), 1.0, value.dtype), mass, input_precision=precision)
        else:
            mass += tl.sum(shares, 0)

    place = part.to(tl.int64) * tl.num_programs(0) + row
    store_rows(sums + place * count * width, width, prototype, exists, total, width, padded_width)
    whole = tl.sum(mass, 1) / ONES if mass_by_product else mass
    tl.store(masses + place * count + prototype, whole, mask=exists)


@triton.jit
def sums_backward_kernel(
    d_sums,
    d_masses,
    queries,
    keys,
    values,
    d_queries,
    d_keys,
    d_values,
    heads,
    count,
    pixels,
    each,
    natural_scale,
    scale,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    width: tl.constexpr,
    padded_width: tl.constexpr,
    padded_count: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
    precision: tl.constexpr,
):
    """Gradients of one part of one row's pixels, and the part's share (parts x rows x K x d) of that of the queries."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    prototype = tl.arange(0, padded_count)
    exists = prototype < count
    query_start = queries + image * query_batch + head * query_head
    query = load_rows(query_start, query_row, prototype, exists, width, padded_width)
    key_start = keys + image * key_batch + head * key_head
    value_start = values + image * value_batch + head * value_head
    d_sum = load_rows(d_sums + row * count * width, width, prototype, exists, width, padded_width)
    d_mass = tl.load(d_masses + row * count + prototype, mask=exists, other=0.0)
    # Gradients can be too small for half precision; brought to the size of 1, they are not.
    largest = tl.max(tl.max(tl.abs(d_sum), 1), 0)
    largest = tl.where(largest > 0.0, largest, 1.0)
    d_sum = (d_sum / largest).to(query.dtype)
    d_mass = d_mass / largest
    d_key_start = d_keys + (image * pixels * heads + head) * width
    d_value_start = d_values + (image * pixels * heads + head) * width

    d_query = tl.zeros((padded_count, padded_width), tl.float32)
    first = part * each
    last = tl.minimum(first + each, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        key = load_rows(key_start, key_row, pixel, inside, width, padded_width)
        value = load_rows(value_start, value_row, pixel, inside, width, padded_width)
        shares = memberships_of(key, query, scale, inside, exists, precision)
        d_value = tl.dot(shares.to(query.dtype), d_sum, input_precision=precision) * largest
        store_rows(d_value_start, heads * width, pixel, inside, d_value, width, padded_width)
        slope = tl.dot(value, tl.trans(d_sum), input_precision=precision) + d_mass[None, :]
        slope = shares * (slope - tl.sum(shares * slope, 1)[:, None])
        slope = slope.to(query.dtype)
        d_key = tl.dot(slope, query, input_precision=precision) * (natural_scale * largest)
        store_rows(d_key_start, heads * width, pixel, inside, d_key, width, padded_width)
        d_query = tl.dot(tl.trans(slope), key, d_query, input_precision=precision)

    place = part.to(tl.int64) * tl.num_programs(0) + row
    d_query = d_query * (natural_scale * largest)
    store_rows(d_queries + place * count * width, width, prototype, exists, d_query, width, padded_width)


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As in `plain`: B x heads x K x d and B x heads x K, float32."""
    queries, keys, values = in_rows(queries), in_rows(keys), in_rows(values)
    batch, heads, count, width = queries.shape
    pixels, rows = keys.shape[2], batch * heads
    found: list[Tensor] = []

    def run(tile: Tile) -> None:
        parts, each = split(pixels, rows, tile, keys.device)
        sums = queries.new_empty(parts, batch, heads, count, width, dtype=torch.float32)
        masses = queries.new_empty(parts, batch, heads, count, dtype=torch.float32)
        sums_kernel[(rows, parts)](
            queries,
            keys,
            values,
            sums,
            masses,
            heads,
            count,
            pixels,
            each,
            math.log2(math.e) / math.sqrt(width),
            *queries.stride()[:3],
            *keys.stride()[:3],
            *values.stride()[:3],
            width=width,
            padded_width=padded(width),
            padded_count=padded(count),
            block=tile.pixels,
            stages=tile.stages,
            precision=PRECISIONS[keys.dtype],
            mass_by_product=keys.dtype != torch.float32,
            num_warps=tile.warps,
        )
        found[:] = [sums, masses]

    with torch.cuda.device_of(keys):
        within_resources(run, "sums", keys.dtype, count)
        return found[0].sum(dim=0), found[1].sum(dim=0)


def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, each in its own precision."""
    queries, keys, values = in_rows(queries), in_rows(keys), in_rows(values)
    d_sums, d_mass = d_sums.float().contiguous(), d_mass.float().contiguous()
    batch, heads, count, width = queries.shape
    pixels, rows = keys.shape[2], batch * heads
    d_keys, d_values = like_tokens(keys), like_tokens(values)
    found: list[Tensor] = []

    def run(tile: Tile) -> None:
        parts, each = split(pixels, rows, tile, keys.device)
        d_queries = queries.new_empty(parts, batch, heads, count, width, dtype=torch.float32)
        sums_backward_kernel[(rows, parts)](
            d_sums,
            d_mass,
            queries,
            keys,
            values,
            d_queries,
            d_keys,
            d_values,
            heads,
            count,
            pixels,
            each,
            1 / math.sqrt(width),
            math.log2(math.e) / math.sqrt(width),
            *queries.stride()[:3],
            *keys.stride()[:3],
            *values.stride()[:3],
            width=width,
            padded_width=padded(width),
            padded_count=padded(count),
            block=tile.pixels,
            stages=tile.stages,
            precision=PRECISIONS[keys.dtype],
            num_warps=tile.warps,
        )
        found[:] = [d_queries]

    with torch.cuda.device_of(keys):
        within_resources(run, "sums_backward", keys.dtype, count)
        return found[0].sum(dim=0).to(queries.dtype), d_keys, d_values
