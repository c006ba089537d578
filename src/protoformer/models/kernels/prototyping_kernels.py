"""Triton kernels of Cross-Attention Prototyping: one pass over the pixels per iteration, memberships in registers only.

A program processes a part of the pixels of one image and head in blocks: logits (scaled products with all K queries),
their softmax over K, and the terms of the sums. Partial sums are added in a fixed order, so that two runs agree bit by
bit.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.blocked import like_tokens
from protoformer.models.kernels.common_kernels import load_positions, load_prior, load_rows, store_rows
from protoformer.models.kernels.reference import MIN_MASS, PriorCoefficients
from protoformer.models.kernels.tiles import PRECISIONS, Tile, launch, padded, split, with_contiguous_rows

LOG2E = tl.constexpr(math.log2(math.e))
ONES = tl.constexpr(16)
"""Columns of the narrowest matrix that a matrix product supports."""


@triton.jit
def _logits(key, query, scale, bias, precision: tl.constexpr):
    """Return base-2 logits, pixels x prototypes; bias: -inf for padding prototypes."""
    return tl.dot(key, tl.trans(query), input_precision=precision) * scale + bias[None, :]


@triton.jit
def _softmax(logits, inside):
    """Return the memberships (zero outside) and the base-2 logarithm of the softmax's denominator, by pixel."""
    largest = tl.max(logits, 1)
    terms = tl.exp2(logits - largest[:, None])
    total = tl.sum(terms, 1)
    return terms * tl.where(inside, 1.0 / total, 0.0)[:, None], largest + tl.log2(total)


@triton.jit
def _prior_logits(x, y, slope_x, slope_y):
    """Return the terms of the spatial prior that depend on the pixel, pixels x prototypes."""
    return x[:, None] * slope_x[None, :] + y[:, None] * slope_y[None, :]


@triton.jit
def _basis(x, y, dtype: tl.constexpr):
    """Return pixels x ONES: 1, x, y, and what the latter two lose by rounding to `dtype`.

    A product with it sums (1, x, y) exactly to about 16 bits in bfloat16.
    """
    column = tl.arange(0, ONES)[None, :]
    rounded_x, rounded_y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
    upper = tl.where(column == 1, rounded_x[:, None], tl.where(column == 2, rounded_y[:, None], 0.0))
    lower = tl.where(column == 3, (x - rounded_x)[:, None], tl.where(column == 4, (y - rounded_y)[:, None], 0.0))
    return (tl.where(column == 0, 1.0, 0.0) + upper + lower).to(dtype)


@triton.jit
def _basis_sums(total):
    """Return the sums of 1, x and y from a product with `_basis`, prototypes x ONES."""
    column = tl.arange(0, ONES)[None, :]
    count = tl.sum(tl.where(column == 0, total, 0.0), 1)
    sum_x = tl.sum(tl.where((column == 1) | (column == 3), total, 0.0), 1)
    return count, sum_x, tl.sum(tl.where((column == 2) | (column == 4), total, 0.0), 1)


@triton.jit
def sums_kernel(
    queries, keys, values, coefficients, positions, sums, masses, moments, lse,
    heads, num_prototypes, pixels, pixels_per_part, scale,
    query_batch, query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, padded_prototypes: tl.constexpr, block: tl.constexpr,
    stages: tl.constexpr, precision: tl.constexpr, mass_by_product: tl.constexpr, store_lse: tl.constexpr,
    has_prior: tl.constexpr,
):  # fmt: skip
    """Partial sums (parts x B x K x heads x d) and masses (parts x B x K x heads) of one part of the pixels.

    has_prior: add the logits of the prior (B x K x 3, HW x 2), and sum positions: moments, parts x B x K x heads x 2.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    prototype = tl.arange(0, padded_prototypes)
    exists = prototype < num_prototypes
    bias = tl.where(exists, 0.0, float("-inf"))
    query_start = queries + image * query_batch + head * query_head
    dtype = keys.dtype.element_ty
    query = load_rows(query_start, query_row, prototype, exists, head_dim, padded_dim).to(dtype)
    key_start = keys + image * key_batch + head * key_head
    value_start = values + image * value_batch + head * value_head

    if has_prior:
        slope_x, slope_y, offset = load_prior(coefficients, image * num_prototypes + prototype, exists)
        slope_x, slope_y, bias = slope_x * LOG2E, slope_y * LOG2E, bias + offset * LOG2E
    total = tl.zeros((padded_prototypes, padded_dim), tl.float32)
    if mass_by_product:
        mass = tl.zeros((padded_prototypes, ONES), tl.float32)
    else:
        mass = tl.zeros((padded_prototypes,), tl.float32)
    first = part * pixels_per_part
    last = tl.minimum(first + pixels_per_part, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        key = load_rows(key_start, key_row, pixel, inside, head_dim, padded_dim)
        value = load_rows(value_start, value_row, pixel, inside, head_dim, padded_dim)
        logits = _logits(key, query, scale, bias, precision)
        if has_prior:
            x, y = load_positions(positions, pixel, inside)
            logits += _prior_logits(x, y, slope_x, slope_y)
        members, log_sum = _softmax(logits, inside)
        if store_lse:
            tl.store(lse + row * pixels + pixel, log_sum, mask=inside)
        transposed = tl.trans(members.to(dtype))
        total = tl.dot(transposed, value, total, input_precision=precision)
        if has_prior:
            mass = tl.dot(transposed, _basis(x, y, dtype), mass, input_precision=precision)
        elif mass_by_product:
            mass = tl.dot(transposed, tl.full((block, ONES), 1.0, dtype), mass, input_precision=precision)
        else:
            mass += tl.sum(members, 0)

    offset_of_sums = (part.to(tl.int64) * (tl.num_programs(0) // heads) + image) * num_prototypes * heads + head
    store_rows(sums + offset_of_sums * head_dim, heads * head_dim, prototype, exists, total, head_dim, padded_dim)
    if has_prior:
        mass, sum_x, sum_y = _basis_sums(mass)
        start = moments + (offset_of_sums + prototype * heads) * 2
        tl.store(start, sum_x, mask=exists)
        tl.store(start + 1, sum_y, mask=exists)
    else:
        mass = tl.sum(mass, 1) / ONES if mass_by_product else mass
    tl.store(masses + offset_of_sums + prototype * heads, mass, mask=exists)


def partial_sums(
    queries: Tensor, keys: Tensor, values: Tensor, lse: Tensor | None = None, prior: PriorCoefficients | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums, masses and moments of parts of the pixels.

    Args:
        queries: B x heads x K x d.
        keys: B x heads x HW x d.
        values: B x heads x HW x d.
        lse: B x heads x HW, float32, filled with the base-2 logarithms of the softmax's denominators.
        prior: Spatial prior, float32.

    Returns:
        parts x B x K x heads x d, parts x B x K x heads, and parts x B x K x heads x 2, empty without a prior.
    """
    batch, heads, num_prototypes, head_dim = queries.shape
    pixels, rows = keys.shape[2], batch * heads
    coefficients, positions = (queries, queries) if prior is None else prior

    def run(tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        parts, pixels_per_part = split(pixels, rows, tile, keys.device)
        sums = queries.new_empty(parts, batch, num_prototypes, heads, head_dim, dtype=torch.float32)
        masses = queries.new_empty(parts, batch, num_prototypes, heads, dtype=torch.float32)
        moments = sums.new_empty(0 if prior is None else parts, batch, num_prototypes, heads, 2)
        sums_kernel[(rows, parts)](
            queries, keys, values, coefficients, positions, sums, masses, masses if prior is None else moments,
            sums if lse is None else lse,
            heads, num_prototypes, pixels, pixels_per_part, math.log2(math.e) / math.sqrt(head_dim),
            *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
            head_dim=head_dim, padded_dim=padded(head_dim), padded_prototypes=padded(num_prototypes),
            block=tile.pixels, stages=tile.stages, precision=PRECISIONS[keys.dtype],
            mass_by_product=keys.dtype != torch.float32 or prior is not None, store_lse=lse is not None,
            has_prior=prior is not None, num_warps=tile.warps,
        )  # fmt: skip
        return sums, masses, moments

    return launch(run, "sums", keys.dtype, num_prototypes, head_dim)


def prototype_sums(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.prototype_sums`: B x heads x K x d and B x heads x K, float32."""
    return spatial_sums(queries, keys, values, None)[:2]


def spatial_sums(
    queries: Tensor, keys: Tensor, values: Tensor, prior: PriorCoefficients | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.spatial_sums`, float32."""
    with torch.cuda.device_of(keys):
        queries, keys, values = map(with_contiguous_rows, (queries, keys, values))
        sums, masses, moments = partial_sums(queries, keys, values, prior=_contiguous(prior))
        sums, masses = (each.sum(dim=0).transpose(1, 2).contiguous() for each in (sums, masses))
        return sums, masses, moments.sum(dim=(0, 3))


def _contiguous(prior: PriorCoefficients | None) -> PriorCoefficients | None:
    return None if prior is None else PriorCoefficients(*(each.float().contiguous() for each in prior))


@triton.jit
def sums_backward_kernel(
    d_sums, d_masses, sums, masses, queries, keys, values, coefficients, positions, d_moments, lse,
    d_queries, d_keys, d_values, d_coefficients,
    heads, num_prototypes, pixels, pixels_per_part, min_mass, scale,
    d_sum_batch, d_sum_head, d_sum_row, query_batch, query_head, query_row,
    key_batch, key_head, key_row, value_batch, value_head, value_row, d_key_batch, d_key_row,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, padded_prototypes: tl.constexpr, block: tl.constexpr,
    stages: tl.constexpr, precision: tl.constexpr,
    of_means: tl.constexpr, accumulate: tl.constexpr, has_lse: tl.constexpr, has_prior: tl.constexpr,
):  # fmt: skip
    """Gradients of one part of the pixels, and its terms of those of the queries and of a bias of the keys.

    d_sums: gradient of the sums or, if `of_means`, of the means. accumulate: add to d_keys and d_values.
    d_queries: parts x (B K + B) x heads x d; the last B rows are the gradients of the bias by image. has_prior: with
    the prior of the sums; d_moments: B x K x 3, gradients of the sums of (x, y, 1) over all heads; d_coefficients:
    parts x B x K x heads x 3.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, head = row // heads, row % heads
    prototype = tl.arange(0, padded_prototypes)
    exists = prototype < num_prototypes
    bias = tl.where(exists, 0.0, float("-inf"))
    dtype = keys.dtype.element_ty
    query_start = queries + image * query_batch + head * query_head
    query = load_rows(query_start, query_row, prototype, exists, head_dim, padded_dim).to(dtype)
    key_start = keys + image * key_batch + head * key_head
    value_start = values + image * value_batch + head * value_head
    d_sum_start = d_sums + image * d_sum_batch + head * d_sum_head
    d_sum = load_rows(d_sum_start, d_sum_row, prototype, exists, head_dim, padded_dim)
    offset = image * num_prototypes * heads + head  # in B x K x heads
    if of_means:
        mass = tl.load(masses + offset + prototype * heads, mask=exists, other=0.0)
        total = load_rows(sums + offset * head_dim, heads * head_dim, prototype, exists, head_dim, padded_dim)
        inverse = tl.where(mass > min_mass, 1.0 / tl.maximum(mass, min_mass), 0.0)
        d_sum = d_sum * inverse[:, None]
        d_mass = -tl.sum(d_sum * total, 1) * inverse
    else:
        d_mass = tl.load(d_masses + offset + prototype * heads, mask=exists, other=0.0)
    # Small gradients would underflow in half precision, so they are scaled to magnitude 1.
    largest = tl.max(tl.max(tl.abs(d_sum), 1), 0)
    if has_prior:
        slope_x, slope_y, offset_logit = load_prior(coefficients, image * num_prototypes + prototype, exists)
        slope_x, slope_y, bias = slope_x * LOG2E, slope_y * LOG2E, bias + offset_logit * LOG2E
        d_sum_x, d_sum_y, d_count = load_prior(d_moments, image * num_prototypes + prototype, exists)
        d_mass += d_count
        largest = tl.maximum(largest, tl.max(tl.maximum(tl.abs(d_sum_x), tl.abs(d_sum_y)), 0))
    largest = tl.where(largest > 0.0, largest, 1.0)
    d_sum = (d_sum / largest).to(dtype)
    d_mass = d_mass / largest
    if has_prior:
        d_sum_x, d_sum_y = d_sum_x / largest, d_sum_y / largest
        d_prior = tl.zeros((padded_prototypes, ONES), tl.float32)
    d_key_start = d_keys + image * d_key_batch + head * head_dim
    d_value_start = d_values + image * d_key_batch + head * head_dim
    natural_scale = largest * scale * 0.6931471805599453  # of natural logits, not of base 2

    d_query = tl.zeros((padded_prototypes, padded_dim), tl.float32)
    d_bias = tl.zeros((block, padded_dim), tl.float32)
    first = part * pixels_per_part
    last = tl.minimum(first + pixels_per_part, pixels)
    for start in tl.range(first, last, block, num_stages=stages):
        pixel = start + tl.arange(0, block)
        inside = pixel < last
        key = load_rows(key_start, key_row, pixel, inside, head_dim, padded_dim)
        value = load_rows(value_start, value_row, pixel, inside, head_dim, padded_dim)
        logits = _logits(key, query, scale, bias, precision)
        if has_prior:
            x, y = load_positions(positions, pixel, inside)
            logits += _prior_logits(x, y, slope_x, slope_y)
        if has_lse:
            log_sum = tl.load(lse + row * pixels + pixel, mask=inside, other=float("inf"))
            members = tl.exp2(logits - log_sum[:, None])
        else:
            members, _ = _softmax(logits, inside)
        d_value = tl.dot(members.to(dtype), d_sum, input_precision=precision) * largest
        if accumulate:
            d_value += load_rows(d_value_start, d_key_row, pixel, inside, head_dim, padded_dim).to(tl.float32)
        store_rows(d_value_start, d_key_row, pixel, inside, d_value, head_dim, padded_dim)
        d_members = tl.dot(value, tl.trans(d_sum), input_precision=precision) + d_mass[None, :]
        if has_prior:
            d_members += _prior_logits(x, y, d_sum_x, d_sum_y)
        d_logits = (members * (d_members - tl.sum(members * d_members, 1)[:, None])).to(dtype)
        d_key = tl.dot(d_logits, query, input_precision=precision) * natural_scale
        d_bias += d_key
        if accumulate:
            d_key += load_rows(d_key_start, d_key_row, pixel, inside, head_dim, padded_dim).to(tl.float32)
        store_rows(d_key_start, d_key_row, pixel, inside, d_key, head_dim, padded_dim)
        d_query = tl.dot(tl.trans(d_logits), key, d_query, input_precision=precision)
        if has_prior:
            d_prior = tl.dot(tl.trans(d_logits), _basis(x, y, dtype), d_prior, input_precision=precision)

    images = tl.num_programs(0) // heads
    first_row = part.to(tl.int64) * images * (num_prototypes + 1)
    start = d_queries + ((first_row + image * num_prototypes) * heads + head) * head_dim
    store_rows(start, heads * head_dim, prototype, exists, d_query * natural_scale, head_dim, padded_dim)
    channel = tl.arange(0, padded_dim)
    start = d_queries + ((first_row + images * num_prototypes + image) * heads + head) * head_dim
    tl.store(start + channel, tl.sum(d_bias, 0), mask=channel < head_dim)
    if has_prior:
        d_offset, d_slope_x, d_slope_y = _basis_sums(d_prior * largest)
        row_of_sums = (part.to(tl.int64) * images + image) * num_prototypes + prototype
        start = d_coefficients + (row_of_sums * heads + head) * 3
        tl.store(start, d_slope_x, mask=exists)
        tl.store(start + 1, d_slope_y, mask=exists)
        tl.store(start + 2, d_offset, mask=exists)


def partial_gradients(
    d_sums: Tensor,
    d_masses: Tensor | tuple[Tensor, Tensor],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    d_keys: Tensor,
    d_values: Tensor,
    accumulate: bool = False,
    lse: Tensor | None = None,
    prior: PriorCoefficients | None = None,
    d_moments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fill or add to d_keys and d_values, and return the terms of the parts of the pixels of the other gradients.

    Args:
        d_sums: B x heads x K x d, float32, gradient of the sums, or of the means if `d_masses` is a pair.
        d_masses: Gradient of the masses, B x K x heads, or the sums (B x K x C) and masses that the means come from.
        queries: B x heads x K x d.
        keys: B x heads x HW x d.
        values: B x heads x HW x d.
        d_keys: B x heads x HW x d, views of tokens.
        d_values: As `d_keys`, with the same strides.
        accumulate: Add to d_keys and d_values.
        lse: That of `partial_sums`, if stored.
        prior: That of `partial_sums`.
        d_moments: B x K x 3, float32, gradients of the sums over pixels and heads of the memberships times (x, y, 1).

    Returns:
        parts x (B K + B) x C: gradients of the queries, then of a bias of the keys, by image. The gradients of the
        coefficients of the prior, B x K x 3, summed over the parts; empty without a prior.
    """
    batch, heads, num_prototypes, head_dim = queries.shape
    pixels, rows = keys.shape[2], batch * heads
    of_means = isinstance(d_masses, tuple)
    inputs = (d_sums, d_sums, *d_masses) if isinstance(d_masses, tuple) else (d_sums, d_masses, d_sums, d_sums)

    coefficients, positions = (d_sums, d_sums) if prior is None else prior

    def run(tile: Tile) -> tuple[Tensor, Tensor]:
        parts, pixels_per_part = split(pixels, rows, tile, keys.device)
        d_coefficients = d_sums.new_empty(0 if prior is None else parts, batch, num_prototypes, heads, 3)
        d_queries = queries.new_empty(parts, batch * (num_prototypes + 1), heads * head_dim, dtype=torch.float32)
        sums_backward_kernel[(rows, parts)](
            *inputs, queries, keys, values, coefficients, positions, d_sums if d_moments is None else d_moments,
            d_queries if lse is None else lse, d_queries, d_keys, d_values,
            d_queries if prior is None else d_coefficients,
            heads, num_prototypes, pixels, pixels_per_part, MIN_MASS, math.log2(math.e) / math.sqrt(head_dim),
            *d_sums.stride()[:3], *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
            d_keys.stride(0), d_keys.stride(2),
            head_dim=head_dim, padded_dim=padded(head_dim), padded_prototypes=padded(num_prototypes),
            block=tile.pixels, stages=tile.stages, precision=PRECISIONS[keys.dtype],
            of_means=of_means, accumulate=accumulate, has_lse=lse is not None, has_prior=prior is not None,
            num_warps=tile.warps,
        )  # fmt: skip
        return d_queries, d_coefficients.sum(dim=(0, 3))

    return launch(run, "sums_backward", keys.dtype, num_prototypes, head_dim)


def prototype_sums_backward(
    d_sums: Tensor, d_mass: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, each in its own precision."""
    return spatial_sums_backward(d_sums, d_mass, None, queries, keys, values, None)[:3]


def spatial_sums_backward(
    d_sums: Tensor,
    d_mass: Tensor,
    d_moments: Tensor | None,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prior: PriorCoefficients | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values, each in its own precision, and of the prior's coefficients."""
    d_keys, d_values = like_tokens(keys), like_tokens(values)
    batch, heads, num_prototypes, head_dim = queries.shape
    d_sums, queries, keys, values = map(with_contiguous_rows, (d_sums.float(), queries, keys, values))
    with torch.cuda.device_of(keys):
        d_mass = d_mass.float().transpose(1, 2).contiguous()
        if d_moments is not None:  # the count is in d_mass
            d_moments = F.pad(d_moments.float(), (0, 1))
        parts, d_coefficients = partial_gradients(
            d_sums, d_mass, queries, keys, values, d_keys, d_values, prior=_contiguous(prior), d_moments=d_moments
        )
        d_queries = parts.sum(dim=0)[: batch * num_prototypes].view(batch, num_prototypes, heads, head_dim)
        return d_queries.transpose(1, 2).to(queries.dtype).contiguous(), d_keys, d_values, d_coefficients
