"""Cross-Attention Prototyping in Triton: one pass over the pixels per step, memberships in registers only.

A program goes over a part of the pixels of one image and head, block by block: scaled products with all K queries, the
softmax over them, and the block's share of the sums. It writes its own partial sums, which are then added in a fixed
order, so that two runs agree bit by bit.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.blocked import like_tokens
from protoformer.models.kernels.common_kernels import load_rows, store_rows
from protoformer.models.kernels.reference import MIN_MASS
from protoformer.models.kernels.tiles import PRECISIONS, Tile, in_rows, padded, split, within_resources

ONES = tl.constexpr(16)
"""The narrowest matrix that a product takes."""


@triton.jit
def logits_of(key, query, scale, barred, precision: tl.constexpr):
    """Pixels x prototypes. scale: takes the products to powers of two. barred: -inf for one that does not exist."""
    return tl.dot(key, tl.trans(query), input_precision=precision) * scale + barred[None, :]


@triton.jit
def memberships_of(logits, inside):
    """Memberships of pixels x prototypes, summing to 1 for each pixel inside, and the logarithm of what they share."""
    most = tl.max(logits, 1)
    shares = tl.exp2(logits - most[:, None])
    total = tl.sum(shares, 1)
    return shares * tl.where(inside, 1.0 / total, 0.0)[:, None], most + tl.log2(total)


@triton.jit
def sums_kernel(
    queries,
    keys,
    values,
    sums,
    masses,
    levels,
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
    by_product: tl.constexpr,
    with_levels: tl.constexpr,
):
    """Partial sums (parts x B x K x heads x d) and masses (parts x B x K x heads) of a part of one row's pixels."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    prototype = tl.arange(0, padded_count)
    exists = prototype < count
    barred = tl.where(exists, 0.0, float("-inf"))
    query_start = queries + image * query_batch + head * query_head
    dtype = keys.dtype.element_ty
    query = load_rows(query_start, query_row, prototype, exists, width, padded_width).to(dtype)
    key_start = keys + image * key_batch + head * key_head
    value_start = values + image * value_batch + head * value_head

    total = tl.zeros((padded_count, padded_width), tl.float32)
    mass = tl.zeros((padded_count, ONES), tl.float32) if by_product else tl.zeros((padded_count,), tl.float32)
    first = part * each
    last = tl.minimum(first + each, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        key = load_rows(key_start, key_row, pixel, inside, width, padded_width)
        value = load_rows(value_start, value_row, pixel, inside, width, padded_width)
        shares, level = memberships_of(logits_of(key, query, scale, barred, precision), inside)
        if with_levels:
            tl.store(levels + row * pixels + pixel, level, mask=inside)
        turned = tl.trans(shares.to(dtype))
        total = tl.dot(turned, value, total, input_precision=precision)
        if by_product:
            mass = tl.dot(turned, tl.full((block, ONES), 1.0, dtype), mass, input_precision=precision)
        else:
            mass += tl.sum(shares, 0)

    place = part.to(tl.int64) * (tl.num_programs(0) // heads) + image
    first_place = place * count * heads + head
    store_rows(sums + first_place * width, heads * width, prototype, exists, total, width, padded_width)
    whole = tl.sum(mass, 1) / ONES if by_product else mass
    tl.store(masses + first_place + prototype * heads, whole, mask=exists)


def partial_sums(queries: Tensor, keys: Tensor, values: Tensor, levels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of each part of the pixels: sums, parts x B x K x heads x d, and masses, parts x B x K x heads; float32.

    levels: B x heads x HW, float32, is given the logarithm of each softmax's denominator, which the gradient can use.
    """
    batch, heads, count, width = queries.shape
    pixels, rows = keys.shape[2], batch * heads
    found: list[Tensor] = []

    def run(tile: Tile) -> None:
        parts, each = split(pixels, rows, tile, keys.device)
        sums = queries.new_empty(parts, batch, count, heads, width, dtype=torch.float32)
        masses = queries.new_empty(parts, batch, count, heads, dtype=torch.float32)
        sums_kernel[(rows, parts)](
            queries,
            keys,
            values,
            sums,
            masses,
            sums if levels is None else levels,
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
            by_product=keys.dtype != torch.float32,
            with_levels=levels is not None,
            num_warps=tile.warps,
        )
        found[:] = [sums, masses]

    within_resources(run, "sums", keys.dtype, count, width)
    return found[0], found[1]


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As in `plain`: B x heads x K x d and B x heads x K, float32."""
    with torch.cuda.device_of(keys):
        sums, masses = partial_sums(in_rows(queries), in_rows(keys), in_rows(values))
        return sums.sum(dim=0).transpose(1, 2).contiguous(), masses.sum(dim=0).transpose(1, 2).contiguous()


@triton.jit
def sums_backward_kernel(
    d_sums,
    d_masses,
    sums,
    masses,
    queries,
    keys,
    values,
    levels,
    d_queries,
    d_keys,
    d_values,
    heads,
    count,
    pixels,
    each,
    least,
    scale,
    d_sum_batch,
    d_sum_head,
    d_sum_row,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    d_key_batch,
    d_key_row,
    width: tl.constexpr,
    padded_width: tl.constexpr,
    padded_count: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
    precision: tl.constexpr,
    of_means: tl.constexpr,
    adding: tl.constexpr,
    with_levels: tl.constexpr,
):
    """Gradients of a part of one row's pixels, and its share of those of the queries and of a bias of the keys.

    d_sums: the gradient of the sums or, of_means, of the means. adding: what d_keys and d_values hold is added to.
    d_queries: parts x (B K + B) x heads x d; of the bias, which every image has its own of, in the rows after B K.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    prototype = tl.arange(0, padded_count)
    exists = prototype < count
    barred = tl.where(exists, 0.0, float("-inf"))
    dtype = keys.dtype.element_ty
    query_start = queries + image * query_batch + head * query_head
    query = load_rows(query_start, query_row, prototype, exists, width, padded_width).to(dtype)
    key_start = keys + image * key_batch + head * key_head
    value_start = values + image * value_batch + head * value_head
    d_sum_start = d_sums + image * d_sum_batch + head * d_sum_head
    d_sum = load_rows(d_sum_start, d_sum_row, prototype, exists, width, padded_width)
    here = image * count * heads + head  # of what is laid out B x K x heads
    if of_means:
        mass = tl.load(masses + here + prototype * heads, mask=exists, other=0.0)
        whole = load_rows(sums + here * width, heads * width, prototype, exists, width, padded_width)
        share = tl.where(mass > least, 1.0 / tl.maximum(mass, least), 0.0)
        d_sum = d_sum * share[:, None]
        d_mass = -tl.sum(d_sum * whole, 1) * share
    else:
        d_mass = tl.load(d_masses + here + prototype * heads, mask=exists, other=0.0)
    # Gradients can be too small for half precision; brought to the size of 1, they are not.
    largest = tl.max(tl.max(tl.abs(d_sum), 1), 0)
    largest = tl.where(largest > 0.0, largest, 1.0)
    d_sum = (d_sum / largest).to(dtype)
    d_mass = d_mass / largest
    d_key_start = d_keys + image * d_key_batch + head * width
    d_value_start = d_values + image * d_key_batch + head * width
    natural = largest * scale * 0.6931471805599453  # of the logits, not of powers of two

    d_query = tl.zeros((padded_count, padded_width), tl.float32)
    by_bias = tl.zeros((block, padded_width), tl.float32)
    first = part * each
    last = tl.minimum(first + each, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        key = load_rows(key_start, key_row, pixel, inside, width, padded_width)
        value = load_rows(value_start, value_row, pixel, inside, width, padded_width)
        logits = logits_of(key, query, scale, barred, precision)
        if with_levels:
            level = tl.load(levels + row * pixels + pixel, mask=inside, other=float("inf"))
            shares = tl.exp2(logits - level[:, None])
        else:
            shares, _ = memberships_of(logits, inside)
        d_value = tl.dot(shares.to(dtype), d_sum, input_precision=precision) * largest
        if adding:
            d_value += load_rows(d_value_start, d_key_row, pixel, inside, width, padded_width).to(tl.float32)
        store_rows(d_value_start, d_key_row, pixel, inside, d_value, width, padded_width)
        slope = tl.dot(value, tl.trans(d_sum), input_precision=precision) + d_mass[None, :]
        slope = (shares * (slope - tl.sum(shares * slope, 1)[:, None])).to(dtype)
        d_key = tl.dot(slope, query, input_precision=precision) * natural
        by_bias += d_key
        if adding:
            d_key += load_rows(d_key_start, d_key_row, pixel, inside, width, padded_width).to(tl.float32)
        store_rows(d_key_start, d_key_row, pixel, inside, d_key, width, padded_width)
        d_query = tl.dot(tl.trans(slope), key, d_query, input_precision=precision)

    images = tl.num_programs(0) // heads
    first_row = part.to(tl.int64) * images * (count + 1)
    start = d_queries + ((first_row + image * count) * heads + head) * width
    store_rows(start, heads * width, prototype, exists, d_query * natural, width, padded_width)
    channel = tl.arange(0, padded_width)
    start = d_queries + ((first_row + images * count + image) * heads + head) * width
    tl.store(start + channel, tl.sum(by_bias, 0), mask=channel < width)


def partial_gradients(
    d_sums: Tensor,
    more: Tensor | tuple[Tensor, Tensor],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    d_keys: Tensor,
    d_values: Tensor,
    adding: bool = False,
    levels: Tensor | None = None,
) -> Tensor:
    """Write, or add, to d_keys and d_values; return what each part of the pixels gives to d_queries and a bias of keys.

    d_sums: B x heads x K x d, float32, of the sums, with `more` the gradient of the masses (B x K x heads), or of the
    means, with `more` the sums (B x K x C) and the masses. d_keys, d_values: B x heads x HW x d, in tokens of the same
    strides. Returns parts x (B K + B) x C: of all queries, then of the bias by image.
    """
    batch, heads, count, width = queries.shape
    pixels, rows = keys.shape[2], batch * heads
    of_means = isinstance(more, tuple)
    d_masses, sums, masses = (d_sums, *more) if isinstance(more, tuple) else (more, d_sums, d_sums)
    found: list[Tensor] = []

    def run(tile: Tile) -> None:
        parts, each = split(pixels, rows, tile, keys.device)
        d_queries = queries.new_empty(parts, batch * (count + 1), heads * width, dtype=torch.float32)
        sums_backward_kernel[(rows, parts)](
            d_sums,
            d_masses,
            sums,
            masses,
            queries,
            keys,
            values,
            d_queries if levels is None else levels,
            d_queries,
            d_keys,
            d_values,
            heads,
            count,
            pixels,
            each,
            MIN_MASS,
            math.log2(math.e) / math.sqrt(width),
            *d_sums.stride()[:3],
            *queries.stride()[:3],
            *keys.stride()[:3],
            *values.stride()[:3],
            d_keys.stride(0),
            d_keys.stride(2),
            width=width,
            padded_width=padded(width),
            padded_count=padded(count),
            block=tile.pixels,
            stages=tile.stages,
            precision=PRECISIONS[keys.dtype],
            of_means=of_means,
            adding=adding,
            with_levels=levels is not None,
            num_warps=tile.warps,
        )
        found[:] = [d_queries]

    within_resources(run, "sums_backward", keys.dtype, count, width)
    return found[0]


def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, each in its own precision."""
    d_keys, d_values = like_tokens(keys), like_tokens(values)
    batch, heads, count, width = queries.shape
    with torch.cuda.device_of(keys):
        parts = partial_gradients(
            in_rows(d_sums.float()),
            d_mass.float().transpose(1, 2).contiguous(),
            in_rows(queries),
            in_rows(keys),
            in_rows(values),
            d_keys,
            d_values,
        )
        d_queries = parts.sum(dim=0)[: batch * count].view(batch, count, heads, width).transpose(1, 2)
        return d_queries.to(queries.dtype).contiguous(), d_keys, d_values
