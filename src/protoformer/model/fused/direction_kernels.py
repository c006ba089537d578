"""Vectors at unit length in Triton, and numbers in two halves of float16, exact enough to compare directions by."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.fused.tiles import in_rows, padded

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
    centres, uppers, lowers, count, channels, centre_batch, centre_row, padded_channels: tl.constexpr
):
    """One centre at unit length, times SIZE, in two halves. uppers, lowers: B x K x C."""
    place, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, padded_channels)
    within = channel < channels
    centre = tl.load(centres + image * centre_batch + place * centre_row + channel, mask=within, other=0.0)
    upper, lower = halves_of(centre / tl.maximum(tl.sqrt(tl.sum(centre * centre, 0)), 1e-12) * SIZE)
    start = (image * count + place) * channels + channel
    tl.store(uppers + start, upper, mask=within)
    tl.store(lowers + start, lower, mask=within)


def directions(centres: Tensor) -> tuple[Tensor, Tensor]:
    """Centres (B x K x C, float32) at unit length, times SIZE, as sums of two in float16."""
    centres = in_rows(centres)
    uppers, lowers = (centres.new_empty(centres.shape, dtype=torch.float16) for _ in range(2))
    batch, count, channels = centres.shape
    with torch.cuda.device_of(centres):
        directions_kernel[(count, batch)](
            centres, uppers, lowers, count, channels, *centres.stride()[:2], padded_channels=padded(channels)
        )
    return uppers, lowers
