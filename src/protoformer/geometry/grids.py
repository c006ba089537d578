"""Grids of pixels, and grids of cells laid over them."""

import math

import torch
from torch import Tensor


def pixel_grid(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Coordinates of every pixel centre, (x right, y down) in pixels: 2 x height x width, float32."""
    y = torch.arange(height, device=device, dtype=torch.float32)
    x = torch.arange(width, device=device, dtype=torch.float32)
    return torch.stack((x.expand(height, width), y[:, None].expand(height, width)))


def grid_shape(count: int) -> tuple[int, int]:
    """The most nearly square (rows, columns) with rows * columns == count and rows <= columns.

    100 is 10 x 10, 10 is 2 x 5, 50 is 5 x 10, 200 is 10 x 20; a prime number is one row.
    """
    if count < 1:
        raise ValueError(f"a grid needs at least one cell, not {count}")
    rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)
    return rows, count // rows


def cells(length: int, count: int, device: torch.device | None = None) -> Tensor:
    """Which of `length` positions lie in which of `count` bands: count x length, bool.

    The bands are those of adaptive average pooling: band i is floor(i length / count) .. ceil((i + 1) length / count),
    so neighbours share a position where the division leaves a remainder.
    """
    band = torch.arange(count, device=device)[:, None]
    position = torch.arange(length, device=device)
    start = torch.div(band * length, count, rounding_mode="floor")
    end = torch.div((band + 1) * length + count - 1, count, rounding_mode="floor")
    return (position >= start) & (position < end)


def cell_of_pixel(size: tuple[int, int], grid: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """The one cell, 0 .. rows * columns - 1, that each pixel lies in: height * width, int64."""
    (height, width), (rows, columns) = size, grid
    row = torch.div(torch.arange(height, device=device) * rows, height, rounding_mode="floor")
    column = torch.div(torch.arange(width, device=device) * columns, width, rounding_mode="floor")
    return (row[:, None] * columns + column).flatten()
