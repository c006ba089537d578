"""Triton kernels of the flow loss: the error sums and their gradients, each in one pass."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.runtime import split_rows

BLOCK = 1024
"""Pixels of a block."""
PROGRAMS = 1024
"""Largest number of parts of a sum."""
LOG_2 = tl.constexpr(math.log(2))


@triton.jit
def _load_errors(
    estimate, log_scale, flow, mask, pixel, inside,
    area, width, image_stride, channel_stride, row_stride, scale_image_stride, scale_row_stride,
):  # fmt: skip
    """Load the errors along x and y and the log scales of a block of pixels (0 outside the mask), and the mask."""
    image, within = pixel // area, pixel % area
    row, column = within // width, within % width
    source = estimate + image * image_stride + row * row_stride + column
    target = flow + 2 * image * area + within
    valid = tl.load(mask + pixel, mask=inside, other=0) != 0
    x = tl.load(source, mask=valid, other=0.0) - tl.load(target, mask=valid, other=0.0)
    y = tl.load(source + channel_stride, mask=valid, other=0.0) - tl.load(target + area, mask=valid, other=0.0)
    source = log_scale + image * scale_image_stride + row * scale_row_stride + column
    return x, y, tl.load(source, mask=valid, other=0.0), valid


@triton.jit
def error_sums_kernel(
    estimate, log_scale, flow, mask, partial_sums,
    count, area, width, image_stride, channel_stride, row_stride, scale_image_stride, scale_row_stride,
    pixels_per_part,
    block: tl.constexpr,
):  # fmt: skip
    """Partial sums of the L1 error, of its NLL |e| exp(-s) + 2 (s + log 2), and of the end-point error: parts x 3."""
    part = tl.program_id(0)
    l1, nll, epe = tl.zeros((block,), tl.float32), tl.zeros((block,), tl.float32), tl.zeros((block,), tl.float32)
    last = tl.minimum((part + 1) * pixels_per_part, count)
    for first in range(part * pixels_per_part, last, block):
        pixel = (first + tl.arange(0, block)).to(tl.int64)
        x, y, scale, valid = _load_errors(
            estimate, log_scale, flow, mask, pixel, pixel < last,
            area, width, image_stride, channel_stride, row_stride, scale_image_stride, scale_row_stride,
        )  # fmt: skip
        deviation = tl.abs(x) + tl.abs(y)
        l1 += deviation
        nll += tl.where(valid, deviation * tl.exp(-scale) + 2.0 * (scale + LOG_2), 0.0)
        epe += tl.sqrt(x * x + y * y)
    tl.store(partial_sums + 3 * part, tl.sum(l1, 0))
    tl.store(partial_sums + 3 * part + 1, tl.sum(nll, 0))
    tl.store(partial_sums + 3 * part + 2, tl.sum(epe, 0))


@triton.jit
def error_sums_gradient_kernel(
    d_sums, estimate, log_scale, flow, mask, d_estimate, d_log_scale,
    count, area, width, image_stride, channel_stride, row_stride, scale_image_stride, scale_row_stride,
    block: tl.constexpr,
):  # fmt: skip
    """Gradients of estimate (N x 2 x H x W) and log_scale (N x 1 x H x W), given those of the sums."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    x, y, scale, valid = _load_errors(
        estimate, log_scale, flow, mask, pixel, inside,
        area, width, image_stride, channel_stride, row_stride, scale_image_stride, scale_row_stride,
    )  # fmt: skip
    d_l1, d_nll = tl.load(d_sums), tl.load(d_sums + 1)
    target = d_estimate + 2 * (pixel // area) * area + pixel % area
    tl.store(target, d_l1 * (tl.where(x > 0, 1.0, 0.0) - tl.where(x < 0, 1.0, 0.0)), mask=inside)
    tl.store(target + area, d_l1 * (tl.where(y > 0, 1.0, 0.0) - tl.where(y < 0, 1.0, 0.0)), mask=inside)
    slope = 2.0 - (tl.abs(x) + tl.abs(y)) * tl.exp(-scale)
    tl.store(d_log_scale + pixel, tl.where(valid, d_nll * slope, 0.0), mask=inside)


def error_sums(estimate: Tensor, log_scale: Tensor, flow: Tensor, mask: Tensor) -> Tensor:
    """Compute the sums of `losses.error_sums` as one vector of three.

    Args:
        estimate: predicted flow, N x 2 x H x W, float32, with contiguous rows.
        log_scale: logarithm of the Laplace scale, N x 1 x H x W, float32, with contiguous rows.
        flow: true flow, N x 2 x H x W, float32, contiguous.
        mask: pixels to sum over, N x 1 x H x W, bool, contiguous.
    """
    parts, pixels_per_part = split_rows(mask.numel(), BLOCK, PROGRAMS)
    partial_sums = flow.new_empty(parts, 3)
    error_sums_kernel[(parts,)](
        estimate, log_scale, flow, mask.view(torch.uint8), partial_sums,
        *_sizes(estimate, log_scale, mask), pixels_per_part, block=BLOCK,
    )  # fmt: skip
    return partial_sums.sum(dim=0)


def error_sums_gradient(
    d_sums: Tensor, estimate: Tensor, log_scale: Tensor, flow: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of estimate and log_scale from those of the three sums; the others as in `error_sums`."""
    d_estimate, d_log_scale = torch.empty_like(flow), flow.new_empty(mask.shape)
    error_sums_gradient_kernel[(triton.cdiv(mask.numel(), BLOCK),)](
        d_sums, estimate, log_scale, flow, mask.view(torch.uint8), d_estimate, d_log_scale,
        *_sizes(estimate, log_scale, mask), block=BLOCK,
    )  # fmt: skip
    return d_estimate, d_log_scale


def _sizes(estimate: Tensor, log_scale: Tensor, mask: Tensor) -> tuple[int, ...]:
    """Return the number of pixels, those of an image, the width of an image, and the strides."""
    height, width = mask.shape[2:]
    return mask.numel(), height * width, width, *estimate.stride()[:3], log_scale.stride(0), log_scale.stride(2)
