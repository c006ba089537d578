"""Triton kernels that read windows of a correlation pyramid, and their gradient.

The costs of a source pixel are one row: those of all levels of the target's pyramid, one level after another. A program
reads, or adds to, the rows of a few pixels on one level. No other program writes these, so that no order of sums
matters, and two runs agree bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 8
"""Source pixels of a program."""


@triton.jit
def _floor_center(centers, pixel, inside, step):
    """Return column, row and fractions of the center of each pixel's window, on a level with pixels `step` wide."""
    # Pixel i of a level is the mean of pixels step i .. step (i + 1) - 1: its center lies half a pixel off.
    x = (tl.load(centers + 2 * pixel, mask=inside, other=0.0) + 0.5) / step - 0.5
    y = (tl.load(centers + 2 * pixel + 1, mask=inside, other=0.0) + 0.5) / step - 0.5
    # All positions far outside are equivalent; this keeps them within the range of integers.
    x, y = tl.minimum(tl.maximum(x, -1e6), 1e6), tl.minimum(tl.maximum(y, -1e6), 1e6)
    column, row = tl.floor(x), tl.floor(y)
    return column.to(tl.int32), row.to(tl.int32), x - column, y - row


@triton.jit
def _level_layout(level, height, width, levels: tl.constexpr):
    """Return the offset of a level in a row of costs, its height and its width; height, width: of level 0."""
    start = 0
    for previous in tl.static_range(levels):
        size = ((height + (1 << previous) - 1) >> previous) * ((width + (1 << previous) - 1) >> previous)
        start += tl.where(previous < level, size, 0)
    last = (1 << level) - 1
    return start, (height + last) >> level, (width + last) >> level


@triton.jit
def windows_kernel(
    costs, centers, output,
    pixels, total, height, width, scale,
    levels: tl.constexpr, radius: tl.constexpr, padded_window: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Interpolate windows around centers (pixels x 2) in costs (pixels x total); height, width: of the target."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < pixels
    level = tl.program_id(1)
    start, height, width = _level_layout(level, height, width, levels)
    column, row, right, down = _floor_center(centers, pixel, inside, (1 << level).to(tl.float32))
    side: tl.constexpr = 2 * radius + 1
    index = tl.arange(0, padded_window)
    x = (column - radius)[:, None] + (index % side)[None, :]
    y = (row - radius)[:, None] + (index // side)[None, :]
    mask = inside[:, None] & (index < side * side)[None, :]
    source = costs + pixel[:, None] * total + start
    value = tl.zeros((block, padded_window), tl.float32)
    for dy in tl.static_range(2):
        for dx in tl.static_range(2):
            valid = mask & (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
            weight = (down if dy else 1.0 - down) * (right if dx else 1.0 - right)
            value += weight[:, None] * tl.load(source + (y + dy) * width + x + dx, mask=valid, other=0.0)
    target = output + pixel[:, None] * (levels * side * side) + level * side * side + index[None, :]
    tl.store(target, (value * scale).to(output.dtype.element_ty), mask=mask)


@triton.jit
def windows_gradient_kernel(
    d_output, centers, d_costs,
    pixels, total, height, width, scale,
    levels: tl.constexpr, radius: tl.constexpr, padded_window: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Add the gradient of `windows_kernel` to that of the costs."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < pixels
    level = tl.program_id(1)
    start, height, width = _level_layout(level, height, width, levels)
    column, row, right, down = _floor_center(centers, pixel, inside, (1 << level).to(tl.float32))
    side: tl.constexpr = 2 * radius + 1
    reads: tl.constexpr = side + 1  # costs that a window reads along an axis
    index = tl.arange(0, padded_window)
    index_x, index_y = index % reads, index // reads
    x = (column - radius)[:, None] + index_x[None, :]
    y = (row - radius)[:, None] + index_y[None, :]
    mask = inside[:, None] & (index < reads * reads)[None, :]
    mask = mask & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    source = d_output + pixel[:, None] * (levels * side * side) + level * side * side
    gradient = tl.zeros((block, padded_window), tl.float32)
    for dy in tl.static_range(2):
        for dx in tl.static_range(2):
            from_y, from_x = index_y - dy, index_x - dx
            valid = (from_y >= 0) & (from_y < side) & (from_x >= 0) & (from_x < side)
            weight = (down if dy else 1.0 - down) * (right if dx else 1.0 - right)
            value = tl.load(source + (from_y * side + from_x)[None, :], mask=mask & valid[None, :], other=0.0)
            gradient += weight[:, None] * value.to(tl.float32)
    target = d_costs + pixel[:, None] * total + start + y * width + x
    tl.store(target, tl.load(target, mask=mask, other=0.0) + scale * gradient, mask=mask)


def windows(
    costs: Tensor, centers: Tensor, size: tuple[int, int], levels: int, radius: int, scale: float, dtype: torch.dtype
) -> Tensor:
    """Read windows of the costs.

    Args:
        costs: n x total, float32 or float16, contiguous.
        centers: n x 2 (x, y), float32, contiguous.
        size: (height, width) of the target on level 0.
        levels: Levels of the pyramid.
        radius: Radius of the windows.
        scale: Factor of the costs.
        dtype: Precision of the output.

    Returns:
        n x (levels (2 radius + 1)^2).
    """
    side = 2 * radius + 1
    output = torch.empty(len(costs), levels * side * side, dtype=dtype, device=costs.device)
    windows_kernel[(triton.cdiv(len(costs), PIXELS), levels)](
        costs, centers, output, *costs.shape, *size, scale,
        levels=levels, radius=radius, padded_window=triton.next_power_of_2(side * side), block=PIXELS,
    )  # fmt: skip
    return output


def add_windows_gradient(
    d_output: Tensor, centers: Tensor, size: tuple[int, int], d_costs: Tensor, levels: int, radius: int, scale: float
) -> None:
    """Add the gradient of `windows` to d_costs, n x total, float32; all contiguous."""
    windows_gradient_kernel[(triton.cdiv(len(d_costs), PIXELS), levels)](
        d_output, centers, d_costs, *d_costs.shape, *size, scale,
        levels=levels, radius=radius, padded_window=triton.next_power_of_2((2 * radius + 2) ** 2), block=PIXELS,
    )  # fmt: skip


@triton.jit
def integer_windows_kernel(
    source, target, corners, output,
    pixels, height, width, channels, scale,
    side: tl.constexpr, padded_window: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Dot products of one source pixel with a window of the target: output, (B pixels) x side^2.

    source: (B pixels) x channels; target: B x height x width x channels; corners: (B pixels) x 2, x and y, int64.
    """
    pixel = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, padded_window)
    x = tl.load(corners + 2 * pixel) + index % side
    y = tl.load(corners + 2 * pixel + 1) + index // side
    inside = (index < side * side) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    start = (((pixel // pixels) * height + y) * width + x) * channels
    total = tl.zeros((padded_window,), tl.float32)
    for first in range(0, channels, chunk):
        channel = first + tl.arange(0, chunk)
        feature1 = tl.load(source + pixel * channels + channel, mask=channel < channels, other=0.0).to(tl.float32)
        mask = inside[:, None] & (channel < channels)[None, :]
        feature2 = tl.load(target + start[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(feature2 * feature1[None, :], 1)
    tl.store(output + pixel * (side * side) + index, total * scale, mask=index < side * side)


def integer_windows(source: Tensor, target: Tensor, corners: Tensor, side: int, scale: float) -> Tensor:
    """Multiply source pixels with windows of the target at integer positions.

    Args:
        source: B x n x C.
        target: B x H x W x C.
        corners: B x n x 2, top-left pixels (x, y) of the windows, int64.
        side: Side of the windows.
        scale: Factor of the products.

    Returns:
        B x n x side x side, float32, zero outside the target.
    """
    batch, pixels, channels = source.shape
    output = torch.empty(batch, pixels, side, side, dtype=torch.float32, device=source.device)
    integer_windows_kernel[(batch * pixels,)](
        source, target, corners, output, pixels, *target.shape[1:3], channels, scale,
        side=side, padded_window=triton.next_power_of_2(side * side), chunk=32,
    )  # fmt: skip
    return output
