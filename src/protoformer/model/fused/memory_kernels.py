"""Reading and writing rows of numbers in Triton, with zeros where there are none."""

import triton
import triton.language as tl


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
