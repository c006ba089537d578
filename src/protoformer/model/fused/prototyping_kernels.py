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

from protoformer.model.fused.memory_kernels import load_rows, store_rows
from protoformer.model.fused.tiles import PRECISIONS, Tile, in_rows, padded, split, within_resources

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
