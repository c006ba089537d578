"""The mean of each cell of a map, and what comes back from it, in Triton: the map is read, or written, once.

Cells are those of adaptive average pooling (`geometry.cells`): neighbors share a position where the division
leaves a remainder.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.common_kernels import halved_directions
from protoformer.models.kernels.reference import MIN_MASS
from protoformer.models.kernels.tiles import padded

CHANNELS, PIXELS = 32, 64
"""Channels that a program of `pool_kernel` takes, and pixels at a time."""
SPREAD = 4096
"""Numbers of a program of `spread_kernel`."""


@triton.jit
def pool_kernel(
    tokens,
    means,
    height,
    width,
    rows,
    columns,
    channels,
    token_batch,
    token_row,
    block: tl.constexpr,
    chunk: tl.constexpr,
):
    """One cell of one image, some of its channels."""
    cell, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, column = cell // columns, cell % columns
    top, bottom = row * height // rows, ((row + 1) * height + rows - 1) // rows
    left, right = column * width // columns, ((column + 1) * width + columns - 1) // columns
    across = right - left
    pixels = (bottom - top) * across
    channel = tl.program_id(2) * chunk + tl.arange(0, chunk)
    total = tl.zeros((block, chunk), tl.float32)
    for first in range(0, pixels, block):
        place = first + tl.arange(0, block)
        position = (top + place // across) * width + left + place % across
        kept = (place < pixels)[:, None] & (channel < channels)[None, :]
        start = tokens + image * token_batch + position[:, None] * token_row + channel[None, :]
        total += tl.load(start, mask=kept, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / pixels
    place = (image * rows * columns + cell) * channels + channel
    tl.store(means + place, mean, mask=channel < channels)


@triton.jit
def spread_kernel(
    d_means,
    added,
    d_tokens,
    height,
    width,
    rows,
    columns,
    channels,
    block: tl.constexpr,
    chunk: tl.constexpr,
    most_rows: tl.constexpr,
    most_columns: tl.constexpr,
):
    """Gradients of some pixels of one image: what is `added`, and their share of those of the cells they lie in."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    inside = pixel < height * width
    y, x = pixel // width, pixel % width
    first_row, last_row = y * rows // height, ((y + 1) * rows + height - 1) // height
    first_column, last_column = x * columns // width, ((x + 1) * columns + width - 1) // width
    channel = tl.arange(0, chunk)
    within = channel < channels
    place = (image * height * width + pixel)[:, None] * channels + channel[None, :]
    kept = inside[:, None] & within[None, :]
    total = tl.load(added + place, mask=kept, other=0.0).to(tl.float32)
    for down in tl.static_range(most_rows):
        row = first_row + down
        tall = ((row + 1) * height + rows - 1) // rows - row * height // rows
        for along in tl.static_range(most_columns):
            column = first_column + along
            wide = ((column + 1) * width + columns - 1) // columns - column * width // columns
            lies = inside & (row < last_row) & (column < last_column)
            cell = (image * rows + row) * columns + column
            start = d_means + cell[:, None] * channels + channel[None, :]
            d_mean = tl.load(start, mask=lies[:, None] & within[None, :], other=0.0)
            total += d_mean * (1.0 / (tall * wide).to(tl.float32))[:, None]
    tl.store(d_tokens + place, total, mask=kept)


def pool(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int], means: Tensor) -> None:
    """Write the mean of each cell to `means`, B x K x C, float32; tokens: B x HW x C, channels contiguous."""
    batch, _, channels = tokens.shape
    pool_kernel[(grid[0] * grid[1], batch, triton.cdiv(channels, CHANNELS))](
        tokens, means, *size, *grid, channels, *tokens.stride()[:2], block=PIXELS, chunk=CHANNELS
    )


def spread(d_means: Tensor, added: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The gradient, float32, of tokens that `pool` pooled (d_means: B x K x C), plus `added` (B x HW x C)."""
    batch, pixels, channels = added.shape
    d_tokens = added.new_empty(added.shape, dtype=torch.float32)
    most = [1 if length % count == 0 else -(-count // length) + 1 for length, count in zip(size, grid, strict=True)]
    chunk = triton.next_power_of_2(channels)
    block = max(4, SPREAD // chunk)
    spread_kernel[(triton.cdiv(pixels, block), batch)](
        d_means,
        added,
        d_tokens,
        *size,
        *grid,
        channels,
        block=block,
        chunk=chunk,
        most_rows=most[0],
        most_columns=most[1],
    )
    return d_tokens


ROWS, PARTS = 2, 4
"""Rows of a program, and parts that are read together."""


@triton.jit
def added_parts(numbers, place, kept, parts, stride, at_once: tl.constexpr):
    """The sum over parts, which are `stride` apart, of the numbers at each place that is kept."""
    total = tl.zeros(place.shape, tl.float32)
    for first in range(0, parts, at_once):
        part = tl.expand_dims(tl.expand_dims(first + tl.arange(0, at_once), 1), 2)
        there = (part < parts) & tl.expand_dims(kept, 0)
        total += tl.sum(tl.load(numbers + part * stride + tl.expand_dims(place, 0), mask=there, other=0.0), 0)
    return total


@triton.jit
def centers_kernel(
    sums,
    masses,
    before,
    whole_sums,
    whole_masses,
    after,
    uppers,
    lowers,
    parts,
    rows,
    heads,
    channels,
    least,
    width: tl.constexpr,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    at_once: tl.constexpr,
    normalize: tl.constexpr,
    residual: tl.constexpr,
    halving: tl.constexpr,
):
    """Centers (B x K x C, flat) after a step, and, halving, their directions in halves."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    kept = (row < rows)[:, None] & (channel < channels)[None, :]
    place = row[:, None] * channels + channel[None, :]
    of_head = row[:, None] * heads + (channel // width)[None, :]
    total = added_parts(sums, place, kept, parts, rows * channels, at_once)
    mass = added_parts(masses, of_head, kept, parts, rows * heads, at_once)
    center = total
    if normalize:
        center = tl.where(mass > least, total / tl.maximum(mass, least), 0.0)
    if residual:
        center += tl.load(before + place, mask=kept, other=0.0)
    tl.store(whole_sums + place, total, mask=kept)
    tl.store(whole_masses + of_head, mass, mask=kept & (channel % width == 0)[None, :])
    tl.store(after + place, center, mask=kept)
    if halving:
        upper, lower = halved_directions(center, 1e-12)
        tl.store(uppers + place, upper, mask=kept)
        tl.store(lowers + place, lower, mask=kept)


@triton.jit
def centers_gradient_kernel(
    sums,
    d_after,
    masses,
    d_queries,
    d_biases,
    d_shares,
    parts,
    rows,
    images,
    heads,
    channels,
    least,
    width: tl.constexpr,
    padded_channels: tl.constexpr,
    block: tl.constexpr,
    at_once: tl.constexpr,
    normalize: tl.constexpr,
):
    """Gradients of queries, and of the biases of keys and values.

    The keys' are in the rows of the sums after those of queries; the values' is added to sums once for every member.
    """
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    every = rows + images
    within = (channel < channels)[None, :]
    place = row[:, None] * channels + channel[None, :]
    total = added_parts(sums, place, (row < every)[:, None] & within, parts, every * channels, at_once)
    kept = (row < rows)[:, None] & within
    tl.store(d_queries + place, total, mask=kept)
    own = ((row >= rows) & (row < every))[:, None] & within
    tl.store(d_biases + place - rows * channels, total, mask=own)
    arriving = tl.load(d_after + place, mask=kept, other=0.0)
    members = tl.load(masses + row[:, None] * heads + (channel // width)[None, :], mask=kept, other=0.0)
    if normalize:
        members = tl.where(members > least, 1.0, 0.0)
    share = tl.sum(members * arriving, 0)
    tl.store(d_shares + tl.program_id(0) * channels + channel, share, mask=channel < channels)


def finish(
    parts: tuple[Tensor, Tensor],
    before: Tensor,
    found: tuple[Tensor, Tensor, Tensor],
    layer: tuple[Tensor, Tensor],
    projected: Tensor,
    halves: tuple[Tensor, Tensor] | None,
    normalize: bool,
    residual: bool,
) -> None:
    """End a step: from partial sums (parts x B x K x heads x d) and masses to the three tensors of `found`.

    Those are the sums, masses (B x K x heads) and centers (B x K x C). layer: a weight (outputs x C) and bias, float32,
    that make `projected` (B x K x outputs) of the centers; halves: two of B x K x C in float16 for their directions.
    All contiguous; the centers after the step are not where those before it are.
    """
    sums, masses = parts
    batch, count, channels = before.shape
    heads, width = sums.shape[-2:]
    rows = batch * count
    uppers, lowers = (before, before) if halves is None else halves
    centers_kernel[(triton.cdiv(rows, ROWS),)](
        sums,
        masses,
        before,
        *found,
        uppers,
        lowers,
        len(sums),
        rows,
        heads,
        channels,
        MIN_MASS,
        width=width,
        padded_channels=padded(channels),
        block=ROWS,
        at_once=PARTS,
        normalize=normalize,
        residual=residual,
        halving=halves is not None,
    )
    (weight, bias), centers = layer, found[2].view(rows, channels)
    if projected.dtype == bias.dtype:
        torch.addmm(bias, centers, weight.T, out=projected.view(rows, -1))
    else:
        projected.copy_(torch.addmm(bias, centers, weight.T).view_as(projected))


def programs_of(d_after: Tensor) -> int:
    """Into how many blocks of rows `centers_gradient` cuts the gradient of centers, B x K x C."""
    return int(triton.cdiv(d_after.shape[0] * (d_after.shape[1] + 1), ROWS))


def centers_gradient(
    parts: Tensor,
    d_after: Tensor,
    masses: Tensor,
    weight: Tensor,
    found: tuple[Tensor, Tensor, Tensor, Tensor],
    normalize: bool,
    residual: bool,
) -> None:
    """From what parts of the pixels give (parts x (B K + B) x C) to the gradients of a step's queries and centers.

    d_after: of the centers after the step, B x K x C; masses: B x K x heads; weight: of the queries, C x C. found: room
    for the gradients of queries and of the centers before the step, B x K x C, and for those of the biases of keys,
    B x C, and of values, blocks of rows x C, which are to be summed. float32, contiguous.
    """
    batch, count, channels = d_after.shape
    heads = masses.shape[-1]
    d_queries, d_before, d_biases, d_shares = found
    centers_gradient_kernel[(programs_of(d_after),)](
        parts,
        d_after,
        masses,
        d_queries,
        d_biases,
        d_shares,
        len(parts),
        batch * count,
        batch,
        heads,
        channels,
        MIN_MASS,
        width=channels // heads,
        padded_channels=padded(channels),
        block=ROWS,
        at_once=PARTS,
        normalize=normalize,
    )
    before, queries = d_before.view(-1, channels), d_queries.view(-1, channels)
    if residual:
        torch.addmm(d_after.reshape(-1, channels), queries, weight, out=before)
    else:
        torch.mm(queries, weight, out=before)
