"""Triton kernels of the prototypes: pooling over cells, the M-step, and their gradients.

Cells are those of adaptive average pooling (`geometry.warps.cells`): neighboring cells overlap where the size is not a
multiple of the grid. Maps are read, or written, once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.common_kernels import SCALE, normalize_rows, split_halves
from protoformer.models.kernels.reference import MIN_MASS
from protoformer.models.kernels.tiles import padded

CHANNELS, PIXELS = 32, 64
"""Channels of a program of `pool_kernel`, and pixels of a block."""
SPREAD_ELEMENTS = 4096
"""Values of a program of `spread_kernel`."""
ROWS, PARTS = 2, 4
"""Rows of a program of the M-step, and partial sums that are loaded together."""


@triton.jit
def pool_kernel(
    tokens, means,
    height, width, rows, columns, channels, token_batch, token_row,
    block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Mean of one cell of one image, for some of the channels."""
    cell, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, column = cell // columns, cell % columns
    top, bottom = row * height // rows, ((row + 1) * height + rows - 1) // rows
    left, right = column * width // columns, ((column + 1) * width + columns - 1) // columns
    cell_width = right - left
    pixels = (bottom - top) * cell_width
    channel = tl.program_id(2) * chunk + tl.arange(0, chunk)
    total = tl.zeros((block, chunk), tl.float32)
    for first in range(0, pixels, block):
        index = first + tl.arange(0, block)
        pixel = (top + index // cell_width) * width + left + index % cell_width
        mask = (index < pixels)[:, None] & (channel < channels)[None, :]
        start = tokens + image * token_batch + pixel[:, None] * token_row + channel[None, :]
        total += tl.load(start, mask=mask, other=0.0).to(tl.float32)
    offset = (image * rows * columns + cell) * channels + channel
    tl.store(means + offset, tl.sum(total, 0) / pixels, mask=channel < channels)


@triton.jit
def spread_kernel(
    d_means, added, d_tokens,
    height, width, rows, columns, channels,
    block: tl.constexpr, chunk: tl.constexpr, max_rows: tl.constexpr, max_columns: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of pixels: `added`, and the terms of the means of the cells that contain them."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    inside = pixel < height * width
    y, x = pixel // width, pixel % width
    first_row, last_row = y * rows // height, ((y + 1) * rows + height - 1) // height
    first_column, last_column = x * columns // width, ((x + 1) * columns + width - 1) // width
    channel = tl.arange(0, chunk)
    valid = channel < channels
    offset = (image * height * width + pixel)[:, None] * channels + channel[None, :]
    mask = inside[:, None] & valid[None, :]
    total = tl.load(added + offset, mask=mask, other=0.0).to(tl.float32)
    for down in tl.static_range(max_rows):
        row = first_row + down
        cell_height = ((row + 1) * height + rows - 1) // rows - row * height // rows
        for right in tl.static_range(max_columns):
            column = first_column + right
            cell_width = ((column + 1) * width + columns - 1) // columns - column * width // columns
            contains = inside & (row < last_row) & (column < last_column)
            cell = (image * rows + row) * columns + column
            start = d_means + cell[:, None] * channels + channel[None, :]
            d_mean = tl.load(start, mask=contains[:, None] & valid[None, :], other=0.0)
            total += d_mean * (1.0 / (cell_height * cell_width).to(tl.float32))[:, None]
    tl.store(d_tokens + offset, total, mask=mask)


def pool(tokens: Tensor, size: tuple[int, int], grid: tuple[int, int], means: Tensor) -> None:
    """Write the mean of each cell to `means`, B x K x C, float32; tokens: B x HW x C, channels contiguous."""
    batch, _, channels = tokens.shape
    pool_kernel[(grid[0] * grid[1], batch, triton.cdiv(channels, CHANNELS))](
        tokens, means, *size, *grid, channels, *tokens.stride()[:2], block=PIXELS, chunk=CHANNELS
    )


def spread(d_means: Tensor, added: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Return the gradient of the tokens of `pool`, plus `added` (B x HW x C); d_means: B x K x C; float32."""
    batch, pixels, channels = added.shape
    d_tokens = added.new_empty(added.shape, dtype=torch.float32)
    max_cells = [1 if side % count == 0 else -(-count // side) + 1 for side, count in zip(size, grid, strict=True)]
    chunk = triton.next_power_of_2(channels)
    block = max(4, SPREAD_ELEMENTS // chunk)
    spread_kernel[(triton.cdiv(pixels, block), batch)](
        d_means, added, d_tokens, *size, *grid, channels,
        block=block, chunk=chunk, max_rows=max_cells[0], max_columns=max_cells[1],
    )  # fmt: skip
    return d_tokens


@triton.jit
def _sum_parts(values, offset, mask, parts, stride, parts_per_load: tl.constexpr):
    """Sum the values of all parts, which are `stride` apart, at a block of offsets."""
    total = tl.zeros(offset.shape, tl.float32)
    for first in range(0, parts, parts_per_load):
        part = tl.expand_dims(tl.expand_dims(first + tl.arange(0, parts_per_load), 1), 2)
        valid = (part < parts) & tl.expand_dims(mask, 0)
        total += tl.sum(tl.load(values + part * stride + tl.expand_dims(offset, 0), mask=valid, other=0.0), 0)
    return total


@triton.jit
def centers_kernel(
    partial_sums, partial_masses, before, sums, masses, after, uppers, lowers,
    parts, rows, heads, channels, min_mass,
    head_dim: tl.constexpr, padded_channels: tl.constexpr, block: tl.constexpr, parts_per_load: tl.constexpr,
    normalize: tl.constexpr, residual: tl.constexpr, halving: tl.constexpr,
):  # fmt: skip
    """Prototypes (B K x C) after an iteration and, if `halving`, their directions in two halves."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    offset = row[:, None] * channels + channel[None, :]
    head_offset = row[:, None] * heads + (channel // head_dim)[None, :]
    total = _sum_parts(partial_sums, offset, mask, parts, rows * channels, parts_per_load)
    mass = _sum_parts(partial_masses, head_offset, mask, parts, rows * heads, parts_per_load)
    center = total
    if normalize:
        center = tl.where(mass > min_mass, total / tl.maximum(mass, min_mass), 0.0)
    if residual:
        center += tl.load(before + offset, mask=mask, other=0.0)
    tl.store(sums + offset, total, mask=mask)
    tl.store(masses + head_offset, mass, mask=mask & (channel % head_dim == 0)[None, :])
    tl.store(after + offset, center, mask=mask)
    if halving:
        direction, _, _ = normalize_rows(center, 1e-12)
        upper, lower = split_halves(direction * SCALE)
        tl.store(uppers + offset, upper, mask=mask)
        tl.store(lowers + offset, lower, mask=mask)


@triton.jit
def centers_gradient_kernel(
    partial_sums, d_after, masses, d_queries, d_key_bias, d_value_bias,
    parts, rows, images, heads, channels, min_mass,
    head_dim: tl.constexpr, padded_channels: tl.constexpr, block: tl.constexpr, parts_per_load: tl.constexpr,
    normalize: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries and of the biases of keys and values.

    That of the key bias follows that of the queries in the partial sums. The value bias is added to the sums once for
    every member.
    """
    row = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    all_rows = rows + images
    valid = (channel < channels)[None, :]
    offset = row[:, None] * channels + channel[None, :]
    mask = (row < all_rows)[:, None] & valid
    total = _sum_parts(partial_sums, offset, mask, parts, all_rows * channels, parts_per_load)
    mask = (row < rows)[:, None] & valid
    tl.store(d_queries + offset, total, mask=mask)
    tl.store(d_key_bias + offset - rows * channels, total, mask=((row >= rows) & (row < all_rows))[:, None] & valid)
    gradient = tl.load(d_after + offset, mask=mask, other=0.0)
    members = tl.load(masses + row[:, None] * heads + (channel // head_dim)[None, :], mask=mask, other=0.0)
    if normalize:
        members = tl.where(members > min_mass, 1.0, 0.0)
    target = d_value_bias + tl.program_id(0) * channels + channel
    tl.store(target, tl.sum(members * gradient, 0), mask=channel < channels)


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
    """Finish an iteration: add the partial sums, compute the prototypes, and project them.

    All tensors are contiguous.

    Args:
        parts: Partial sums, parts x B x K x heads x d, and masses, parts x B x K x heads.
        before: Prototypes before the iteration, B x K x C.
        outputs: Filled with the sums, the masses (B x K x heads) and the new prototypes (B x K x C); the last must not
            be `before`.
        layer: Weight (outputs x C) and bias of the projection, float32.
        projected: Filled with the projection of the new prototypes, B x K x outputs.
        halves: Two float16 tensors, B x K x C, filled with the directions of the new prototypes.
        normalize: Divide the sums by the masses.
        residual: Add `before`.
    """
    sums, masses = parts
    batch, num_prototypes, channels = before.shape
    heads, head_dim = sums.shape[-2:]
    rows = batch * num_prototypes
    centers_kernel[(triton.cdiv(rows, ROWS),)](
        sums, masses, before, *outputs, *((before, before) if halves is None else halves),
        len(sums), rows, heads, channels, MIN_MASS,
        head_dim=head_dim, padded_channels=padded(channels), block=ROWS, parts_per_load=PARTS,
        normalize=normalize, residual=residual, halving=halves is not None,
    )  # fmt: skip
    (weight, bias), centers = layer, outputs[2].view(rows, channels)
    if projected.dtype == bias.dtype:
        torch.addmm(bias, centers, weight.T, out=projected.view(rows, -1))
    else:
        projected.copy_(torch.addmm(bias, centers, weight.T).view_as(projected))


def programs_of(d_after: Tensor) -> int:
    """Return the number of programs of `centers_gradient` for a gradient of the prototypes, B x K x C."""
    return int(triton.cdiv(d_after.shape[0] * (d_after.shape[1] + 1), ROWS))


def centers_gradient(
    parts: Tensor,
    d_after: Tensor,
    masses: Tensor,
    weight: Tensor,
    outputs: tuple[Tensor, Tensor, Tensor, Tensor],
    normalize: bool,
    residual: bool,
) -> None:
    """Compute the gradients of an iteration's queries and prototypes; all tensors are float32 and contiguous.

    Args:
        parts: Terms of the parts of the pixels, parts x (B K + B) x C, from `prototyping_kernels.partial_gradients`.
        d_after: Gradient of the prototypes after the iteration, B x K x C.
        masses: B x K x heads.
        weight: Weight of the queries, C x C.
        outputs: Filled with the gradients of the queries and of the prototypes before the iteration, B x K x C, and of
            the biases of keys, B x C, and of values, `programs_of` x C, to be summed over rows.
        normalize: As in `m_step`.
        residual: As in `m_step`.
    """
    batch, num_prototypes, channels = d_after.shape
    heads = masses.shape[-1]
    d_queries, d_before, d_key_bias, d_value_bias = outputs
    centers_gradient_kernel[(programs_of(d_after),)](
        parts, d_after, masses, d_queries, d_key_bias, d_value_bias,
        len(parts), batch * num_prototypes, batch, heads, channels, MIN_MASS,
        head_dim=channels // heads, padded_channels=padded(channels), block=ROWS, parts_per_load=PARTS,
        normalize=normalize,
    )  # fmt: skip
    before, queries = d_before.view(-1, channels), d_queries.view(-1, channels)
    if residual:
        torch.addmm(d_after.reshape(-1, channels), queries, weight, out=before)
    else:
        torch.mm(queries, weight, out=before)
