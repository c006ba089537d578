"""Backward through GELU, and sums over all rows of a tall matrix, in Triton: each number is read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.fused.tiles import MULTIPROCESSORS_OF_NOTHING

ROWS, COLUMNS, PROGRAMS = 32, 128, 4
"""Rows at a time, columns of a program, and programs begun for a multiprocessor."""


@triton.jit
def column_sums_kernel(numbers, sums, rows, columns, each, block: tl.constexpr, chunk: tl.constexpr):
    """Sums (parts x columns) over one part of the rows."""
    part = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * chunk + tl.arange(0, chunk)
    first = part * each
    last = tl.minimum(first + each, rows)
    total = tl.zeros((block, chunk), tl.float32)
    for start in range(first, last, block):
        row = start + tl.arange(0, block)
        kept = (row < last)[:, None] & (column < columns)[None, :]
        total += tl.load(numbers + row[:, None] * columns + column[None, :], mask=kept, other=0.0).to(tl.float32)
    tl.store(sums + part * columns + column, tl.sum(total, 0), mask=column < columns)


@triton.jit
def gelu_backward_kernel(hidden, gradient, active, sums, rows, columns, each, block: tl.constexpr, chunk: tl.constexpr):
    """GELU of `hidden` to `active`; its gradient in place of that of `active`, and summed over a part of the rows."""
    part = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * chunk + tl.arange(0, chunk)
    first = part * each
    last = tl.minimum(first + each, rows)
    total = tl.zeros((block, chunk), tl.float32)
    dtype = hidden.dtype.element_ty
    for start in range(first, last, block):
        row = start + tl.arange(0, block)
        kept = (row < last)[:, None] & (column < columns)[None, :]
        place = row[:, None] * columns + column[None, :]
        x = tl.load(hidden + place, mask=kept, other=0.0).to(tl.float32)
        below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        density = tl.exp(-0.5 * x * x) * 0.3989422804014327
        slope = tl.load(gradient + place, mask=kept, other=0.0).to(tl.float32) * (below + x * density)
        tl.store(active + place, (x * below).to(dtype), mask=kept)
        tl.store(gradient + place, slope.to(dtype), mask=kept)
        total += slope
    tl.store(sums + part * columns + column, tl.sum(total, 0), mask=column < columns)


def _cut(matrix: Tensor) -> tuple[tuple[int, int], Tensor, int]:
    """The grid of programs, room for their sums, and the rows of each; by the shape and the device alone."""
    rows, columns = matrix.shape
    units = MULTIPROCESSORS_OF_NOTHING
    if matrix.is_cuda:
        units = torch.cuda.get_device_properties(matrix.device).multi_processor_count
    chunks = triton.cdiv(columns, COLUMNS)
    each = ROWS * max(1, triton.cdiv(rows * chunks, units * PROGRAMS * ROWS))
    parts = triton.cdiv(rows, each)
    return (chunks, parts), matrix.new_empty(parts, columns, dtype=torch.float32), each


def column_sums(matrix: Tensor) -> Tensor:
    """The sum of all rows, float32; matrix: rows x columns, contiguous."""
    grid, sums, each = _cut(matrix)
    column_sums_kernel[grid](matrix, sums, *matrix.shape, each, block=ROWS, chunk=COLUMNS)
    return sums.sum(dim=0)


def gelu_backward(hidden: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """GELU of `hidden`, and the sum over all rows of the gradient of `hidden`, which is put in place of `gradient`."""
    grid, sums, each = _cut(hidden)
    active = torch.empty_like(hidden)
    gelu_backward_kernel[grid](hidden, gradient, active, sums, *hidden.shape, each, block=ROWS, chunk=COLUMNS)
    return active, sums.sum(dim=0)
