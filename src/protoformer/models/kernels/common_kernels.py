"""Vectors at unit length in Triton, and numbers in two halves of float16, exact enough to compare directions by."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.tiles import in_rows, padded

SIZE = tl.constexpr(64.0)
"""How long directions are made: what is left of them after a first rounding is then nothing that float16 rounds off."""


@triton.jit
def direction_of(vector, least):
    """Rows at unit length (shorter, if all but zero), what they were divided by, and that over their own length."""
    length = tl.sqrt(tl.sum(vector * vector, 1))
    norm = tl.maximum(length, least)
    return vector / norm[:, None], norm, tl.where(length > 0.0, norm / tl.maximum(length, 1e-37), 0.0)


@triton.jit
def halves_of(number):
    """Numbers of the size of 1 as the sums of two in float16, exact to 22 bits."""
    upper = number.to(tl.float16)
    return upper, (number - upper.to(tl.float32)).to(tl.float16)


@triton.jit
def halved_directions(vector, least):
    """Rows at unit length (shorter, if all but zero), times SIZE, in halves."""
    direction, _, _ = direction_of(vector, least)
    return halves_of(direction * SIZE)


@triton.jit
def directions_kernel(
    centers, uppers, lowers, count, channels, center_batch, center_row, padded_channels: tl.constexpr
):
    """One center at unit length, times SIZE, in two halves. uppers, lowers: B x K x C."""
    place, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, padded_channels)
    within = channel < channels
    center = tl.load(centers + image * center_batch + place * center_row + channel, mask=within, other=0.0)
    upper, lower = halves_of(center / tl.maximum(tl.sqrt(tl.sum(center * center, 0)), 1e-12) * SIZE)
    start = (image * count + place) * channels + channel
    tl.store(uppers + start, upper, mask=within)
    tl.store(lowers + start, lower, mask=within)


def directions(centers: Tensor) -> tuple[Tensor, Tensor]:
    """Centers (B x K x C, float32) at unit length, times SIZE, as sums of two in float16."""
    centers = in_rows(centers)
    uppers, lowers = (centers.new_empty(centers.shape, dtype=torch.float16) for _ in range(2))
    batch, count, channels = centers.shape
    with torch.cuda.device_of(centers):
        directions_kernel[(count, batch)](
            centers, uppers, lowers, count, channels, *centers.stride()[:2], padded_channels=padded(channels)
        )
    return uppers, lowers


@triton.jit
def load_rows(start, row_stride, rows, inside, width: tl.constexpr, padded_width: tl.constexpr):
    """Rows of `width` numbers, padded with zeros to `padded_width`; rows that are not inside are zero."""
    channel = tl.arange(0, padded_width)
    kept = inside[:, None] & (channel[None, :] < width)
    return tl.load(start + rows[:, None] * row_stride + channel[None, :], mask=kept, other=0.0)


@triton.jit
def store_rows(start, row_stride, rows, inside, numbers, width: tl.constexpr, padded_width: tl.constexpr):
    """The inverse of `load_rows`."""
    channel = tl.arange(0, padded_width)
    kept = inside[:, None] & (channel[None, :] < width)
    tl.store(start + rows[:, None] * row_stride + channel[None, :], numbers.to(start.dtype.element_ty), mask=kept)


@triton.jit
def load_matrix(start, row, column, rows, columns, stride):
    """The numbers where `row` and `column` meet; zeros outside of rows x columns."""
    kept = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(start + row.to(tl.int64)[:, None] * stride + column[None, :], mask=kept, other=0.0)
