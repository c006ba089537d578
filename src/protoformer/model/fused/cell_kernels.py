"""The mean of each cell of a map, and what comes back from it, in Triton: the map is read, or written, once.

Cells are those of adaptive average pooling (`geometry.cells`): neighbours share a position where the division
leaves a remainder.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

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
