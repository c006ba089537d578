"""A bias, and a ReLU after it, in Triton, forward and backward in one pass each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.parts import parts_of

ELEMENTS = 2048
"""Numbers that a program holds of one tensor."""
PROGRAMS = 512
"""Programs that share the rows on the way back, at most."""


@triton.jit
def activate_kernel(
    rows, bias, found, count, width, stride, rectified: tl.constexpr, block: tl.constexpr, padded_width: tl.constexpr
):
    """Some rows, count x width, `stride` apart, and their bias, rectified or not."""
    row = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    channel = tl.program_id(1) * padded_width + tl.arange(0, padded_width)
    within = channel < width
    kept = (row < count)[:, None] & within[None, :]
    place = row[:, None] * width + channel[None, :]
    number = tl.load(rows + row[:, None] * stride + channel[None, :], mask=kept, other=0.0).to(tl.float32)
    number += tl.load(bias + channel, mask=within, other=0.0)[None, :]
    if rectified:
        number = tl.where(number < 0, 0.0, number)  # what is not a number stays so
    tl.store(found + place, number.to(found.dtype.element_ty), mask=kept)


@triton.jit
def activate_gradient_kernel(
    arriving,
    found,
    d_rows,
    d_parts,
    count,
    width,
    stride,
    each,
    rectified: tl.constexpr,
    block: tl.constexpr,
    padded_width: tl.constexpr,
):
    """One part of the rows: their gradient, zero from `width` on, and its share of that of the bias (parts x width)."""
    part = tl.program_id(0)
    channel = tl.program_id(1) * padded_width + tl.arange(0, padded_width)
    within = channel < width
    total = tl.zeros((block, padded_width), tl.float32)
    last = tl.minimum((part + 1) * each, count)
    for first in range(part * each, last, block):
        row = (first + tl.arange(0, block)).to(tl.int64)
        kept = (row < last)[:, None] & within[None, :]
        place = row[:, None] * width + channel[None, :]
        change = tl.load(arriving + place, mask=kept, other=0.0).to(tl.float32)
        if rectified:
            number = tl.load(found + place, mask=kept, other=0.0).to(tl.float32)
            change = tl.where(number > 0, change, 0.0)
        target = d_rows + row[:, None] * stride + channel[None, :]
        tl.store(target, change.to(d_rows.dtype.element_ty), mask=(row < last)[:, None] & (channel < stride)[None, :])
        total += change
    tl.store(d_parts + part * width + channel, tl.sum(total, 0), mask=within)


def activate(rows: Tensor, bias: Tensor, rectified: bool) -> Tensor:
    """Rows, of which the first `width` numbers count, contiguous, plus a bias (width), rectified or not."""
    (count, stride), width = rows.shape, len(bias)
    found = rows.new_empty(count, width)
    padded, block = _block(width)
    activate_kernel[(triton.cdiv(count, block), triton.cdiv(width, padded))](
        rows, bias, found, count, width, stride, rectified=rectified, block=block, padded_width=padded
    )
    return found


def activate_gradient(
    arriving: Tensor, found: Tensor, bias: Tensor, rectified: bool, stride: int
) -> tuple[Tensor, Tensor]:
    """Gradients of rows, which have `stride` numbers, and of the bias, from that of what `activate` found."""
    count, width = arriving.shape
    padded, block = _block(stride)
    parts, each = parts_of(count, block, PROGRAMS)
    d_rows = arriving.new_empty(count, stride)
    d_parts = torch.empty(parts, width, dtype=torch.float32, device=arriving.device)
    activate_gradient_kernel[(parts, triton.cdiv(stride, padded))](
        arriving,
        found,
        d_rows,
        d_parts,
        count,
        width,
        stride,
        each,
        rectified=rectified,
        block=block,
        padded_width=padded,
    )
    return d_rows, d_parts.sum(dim=0).to(bias.dtype)


def _block(width: int) -> tuple[int, int]:
    """Channels of a program, and rows."""
    padded = min(128, triton.next_power_of_2(width))
    return padded, ELEMENTS // padded
