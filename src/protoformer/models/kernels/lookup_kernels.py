"""Windows of the correlation of two maps, and their gradient, in Triton.

One row a source pixel has its costs on all levels of the target's pyramid, one level after another. A program reads, or
adds to, the rows of a few pixels on one level. Nobody else has these rows, so that sums need no order, and two runs
agree bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 8
"""Source pixels of a program."""


@triton.jit
def corner_of(centers, pixel, inside, step):
    """Column, row and fractions of the whole pixel up and left of each estimate, where pixels are `step` wide."""
    # Pixel i of a level is the mean of pixels step i .. step (i + 1) - 1: its center lies half a pixel off.
    x = (tl.load(centers + 2 * pixel, mask=inside, other=0.0) + 0.5) / step - 0.5
    y = (tl.load(centers + 2 * pixel + 1, mask=inside, other=0.0) + 0.5) / step - 0.5
    # Far from every map, where whole numbers end, it is as good as anywhere else outside.
    x, y = tl.minimum(tl.maximum(x, -1e6), 1e6), tl.minimum(tl.maximum(y, -1e6), 1e6)
    column, row = tl.floor(x), tl.floor(y)
    return column.to(tl.int32), row.to(tl.int32), x - column, y - row


@triton.jit
def level_of(level, height, width, levels: tl.constexpr):
    """Where the costs of a level begin in a row, its height and its width; of level 0: height and width."""
    start = 0
    for earlier in tl.static_range(levels):
        numbers = ((height + (1 << earlier) - 1) >> earlier) * ((width + (1 << earlier) - 1) >> earlier)
        start += tl.where(earlier < level, numbers, 0)
    last = (1 << level) - 1
    return start, (height + last) >> level, (width + last) >> level


@triton.jit
def windows_kernel(
    costs,
    centers,
    found,
    pixels,
    total,
    height,
    width,
    scale,
    levels: tl.constexpr,
    radius: tl.constexpr,
    padded_window: tl.constexpr,
    block: tl.constexpr,
):
    """Costs (pixels x total) in windows around centers (pixels x 2). height, width: of the target."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < pixels
    level = tl.program_id(1)
    start, height, width = level_of(level, height, width, levels)
    column, row, right, down = corner_of(centers, pixel, inside, (1 << level).to(tl.float32))
    side: tl.constexpr = 2 * radius + 1
    place = tl.arange(0, padded_window)
    x = (column - radius)[:, None] + (place % side)[None, :]
    y = (row - radius)[:, None] + (place // side)[None, :]
    kept = inside[:, None] & (place < side * side)[None, :]
    begin = costs + pixel[:, None] * total + start
    value = tl.zeros((block, padded_window), tl.float32)
    for below in tl.static_range(2):
        for beside in tl.static_range(2):
            there = kept & (y + below >= 0) & (y + below < height) & (x + beside >= 0) & (x + beside < width)
            share = (down if below else 1.0 - down) * (right if beside else 1.0 - right)
            value += share[:, None] * tl.load(begin + (y + below) * width + x + beside, mask=there, other=0.0)
    window = levels * side * side
    target = found + pixel[:, None] * window + level * side * side + place[None, :]
    tl.store(target, (value * scale).to(found.dtype.element_ty), mask=kept)


@triton.jit
def windows_gradient_kernel(
    d_found,
    centers,
    d_costs,
    pixels,
    total,
    height,
    width,
    scale,
    levels: tl.constexpr,
    radius: tl.constexpr,
    padded_window: tl.constexpr,
    block: tl.constexpr,
):
    """Add to the gradient of the costs what arrives at windows that were read; as in `windows_kernel`."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < pixels
    level = tl.program_id(1)
    start, height, width = level_of(level, height, width, levels)
    column, row, right, down = corner_of(centers, pixel, inside, (1 << level).to(tl.float32))
    side: tl.constexpr = 2 * radius + 1
    reads: tl.constexpr = side + 1
    place = tl.arange(0, padded_window)
    across, along = place % reads, place // reads
    x = (column - radius)[:, None] + across[None, :]
    y = (row - radius)[:, None] + along[None, :]
    kept = inside[:, None] & (place < reads * reads)[None, :]
    kept = kept & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    window = levels * side * side
    begin = d_found + pixel[:, None] * window + level * side * side
    arriving = tl.zeros((block, padded_window), tl.float32)
    for below in tl.static_range(2):
        for beside in tl.static_range(2):
            from_y, from_x = along - below, across - beside
            there = (from_y >= 0) & (from_y < side) & (from_x >= 0) & (from_x < side)
            share = (down if below else 1.0 - down) * (right if beside else 1.0 - right)
            number = tl.load(begin + (from_y * side + from_x)[None, :], mask=kept & there[None, :], other=0.0)
            arriving += share[:, None] * number.to(tl.float32)
    target = d_costs + pixel[:, None] * total + start + y * width + x
    tl.store(target, tl.load(target, mask=kept, other=0.0) + scale * arriving, mask=kept)


def windows(
    costs: Tensor,
    centers: Tensor,
    size: tuple[int, int],
    levels: int,
    radius: int,
    scale: float,
    dtype: torch.dtype,
) -> Tensor:
    """Costs, n x total, around centers, n x 2 (x, y), times scale: n x (levels (2 radius + 1)^2).

    Costs are float32 or float16, centers float32, both contiguous. size: height and width of the target on level 0.
    """
    side = 2 * radius + 1
    found = torch.empty(len(costs), levels * side * side, dtype=dtype, device=costs.device)
    windows_kernel[(triton.cdiv(len(costs), PIXELS), levels)](
        costs,
        centers,
        found,
        len(costs),
        costs.shape[1],
        *size,
        scale,
        levels=levels,
        radius=radius,
        padded_window=triton.next_power_of_2(side * side),
        block=PIXELS,
    )
    return found


def add_windows_gradient(
    d_found: Tensor,
    centers: Tensor,
    size: tuple[int, int],
    d_costs: Tensor,
    levels: int,
    radius: int,
    scale: float,
) -> None:
    """Add to d_costs, n x total in float32, the gradient that comes from `windows`; all contiguous."""
    windows_gradient_kernel[(triton.cdiv(len(d_costs), PIXELS), levels)](
        d_found,
        centers,
        d_costs,
        len(d_costs),
        d_costs.shape[1],
        *size,
        scale,
        levels=levels,
        radius=radius,
        padded_window=triton.next_power_of_2((2 * radius + 2) ** 2),
        block=PIXELS,
    )


@triton.jit
def integer_windows_kernel(
    source,
    target,
    corners,
    found,
    pixels,
    height,
    width,
    channels,
    scale,
    side: tl.constexpr,
    padded_window: tl.constexpr,
    chunk: tl.constexpr,
):
    """Products of one source pixel with the target's in a window: found, (B pixels) x side^2.

    source: (B pixels) x channels; target: B x height x width x channels; corners: (B pixels) x 2, x and y, int64.
    """
    pixel = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, padded_window)
    x = tl.load(corners + 2 * pixel) + place % side
    y = tl.load(corners + 2 * pixel + 1) + place // side
    within = (place < side * side) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    start = (((pixel // pixels) * height + y) * width + x) * channels
    total = tl.zeros((padded_window,), tl.float32)
    for first in range(0, channels, chunk):
        channel = first + tl.arange(0, chunk)
        there = channel < channels
        own = tl.load(source + pixel * channels + channel, mask=there, other=0.0).to(tl.float32)
        kept = within[:, None] & there[None, :]
        theirs = tl.load(target + start[:, None] + channel[None, :], mask=kept, other=0.0).to(tl.float32)
        total += tl.sum(theirs * own[None, :], 1)
    tl.store(found + pixel * (side * side) + place, total * scale, mask=place < side * side)


def integer_windows(source: Tensor, target: Tensor, corners: Tensor, side: int, scale: float) -> Tensor:
    """Products of source pixels, B x n x C, with windows of the target, B x H x W x C, from corners, B x n x 2, on.

    Returns B x n x side x side, times scale, zero outside the target, in float32.
    """
    batch, pixels, channels = source.shape
    found = torch.empty(batch, pixels, side, side, dtype=torch.float32, device=source.device)
    integer_windows_kernel[(batch * pixels,)](
        source,
        target,
        corners,
        found,
        pixels,
        target.shape[1],
        target.shape[2],
        channels,
        scale,
        side=side,
        padded_window=triton.next_power_of_2(side * side),
        chunk=32,
    )
    return found
