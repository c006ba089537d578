"""Triton helpers shared by the kernels: masked blocks, unit vectors, and float32 numbers as two in float16."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.reference import HALVES_SCALE
from protoformer.models.kernels.tiles import padded, with_contiguous_rows

SCALE = tl.constexpr(HALVES_SCALE)


@triton.jit
def load_matrix(start, row, column, rows, columns, stride):
    """Load the values at `row` x `column` of a matrix; zero outside of rows x columns."""
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(start + row.to(tl.int64)[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_matrix(start, row, column, rows, columns, stride, values):
    """The inverse of `load_matrix`."""
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    offset = row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(start + offset, values.to(start.dtype.element_ty), mask=mask)


@triton.jit
def load_rows(start, row_stride, rows, inside, width: tl.constexpr, padded_width: tl.constexpr):
    """Load rows of `width` values, padded with zeros to `padded_width`; rows that are not inside are zero."""
    column = tl.arange(0, padded_width)
    mask = inside[:, None] & (column[None, :] < width)
    return tl.load(start + rows[:, None] * row_stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(start, row_stride, rows, inside, values, width: tl.constexpr, padded_width: tl.constexpr):
    """The inverse of `load_rows`."""
    column = tl.arange(0, padded_width)
    mask = inside[:, None] & (column[None, :] < width)
    tl.store(start + rows[:, None] * row_stride + column[None, :], values.to(start.dtype.element_ty), mask=mask)


@triton.jit
def normalize_rows(vector, min_norm):
    """Return v / n with n = max(|v|, min_norm), n, and n / |v| (0 for zero vectors), by row."""
    length = tl.sqrt(tl.sum(vector * vector, 1))
    norm = tl.maximum(length, min_norm)
    return vector / norm[:, None], norm, tl.where(length > 0.0, norm / tl.maximum(length, 1e-37), 0.0)


@triton.jit
def load_prior(coefficients, rows, exists):
    """Load the coefficients of (x, y, 1) of the spatial prior of some prototypes (rows of n x 3)."""
    start = coefficients + rows * 3
    slope_x = tl.load(start, mask=exists, other=0.0)
    slope_y = tl.load(start + 1, mask=exists, other=0.0)
    return slope_x, slope_y, tl.load(start + 2, mask=exists, other=0.0)


@triton.jit
def load_positions(positions, pixel, inside):
    """Load the positions (x, y) of some pixels from HW x 2."""
    start = positions + pixel * 2
    return tl.load(start, mask=inside, other=0.0), tl.load(start + 1, mask=inside, other=0.0)


@triton.jit
def split_halves(value):
    """Split float32 values of magnitude about 1 into sums of two float16 values, exact to 22 bits."""
    upper = value.to(tl.float16)
    return upper, (value - upper.to(tl.float32)).to(tl.float16)


@triton.jit
def directions_kernel(
    centers, uppers, lowers,
    num_prototypes, channels, center_batch, center_row,
    padded_channels: tl.constexpr,
):  # fmt: skip
    """Normalize one center to length SCALE, as the sum of two float16 vectors; uppers, lowers: B x K x C."""
    prototype, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, padded_channels)
    mask = channel < channels
    center = tl.load(centers + image * center_batch + prototype * center_row + channel, mask=mask, other=0.0)
    upper, lower = split_halves(center / tl.maximum(tl.sqrt(tl.sum(center * center, 0)), 1e-12) * SCALE)
    offset = (image * num_prototypes + prototype) * channels + channel
    tl.store(uppers + offset, upper, mask=mask)
    tl.store(lowers + offset, lower, mask=mask)


def directions(centers: Tensor) -> tuple[Tensor, Tensor]:
    """Normalize centers (B x K x C, float32) to length `HALVES_SCALE`, as the sum of two float16 tensors."""
    centers = with_contiguous_rows(centers)
    uppers, lowers = (centers.new_empty(centers.shape, dtype=torch.float16) for _ in range(2))
    batch, num_prototypes, channels = centers.shape
    with torch.cuda.device_of(centers):
        directions_kernel[(num_prototypes, batch)](
            centers, uppers, lowers, num_prototypes, channels, *centers.stride()[:2], padded_channels=padded(channels)
        )
    return uppers, lowers
