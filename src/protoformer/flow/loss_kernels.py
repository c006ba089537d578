"""Triton kernels of the flow loss: the error sums and their gradients, each in one pass."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.runtime import split_rows

BLOCK = 1024
"""Pixels per block."""
PROGRAMS = 1024
"""Largest number of programs of a reduction."""
LOG_2 = tl.constexpr(math.log(2))


@triton.jit
def errors_of(estimate, flow, counted, pixel, inside, area, width, by_image, by_channel, by_row):
    """Load the errors along x and y of a block of pixels (0 outside the mask), and the mask."""
    image, within = pixel // area, pixel % area
    place = estimate + image * by_image + within // width * by_row + within % width
    truth = flow + 2 * image * area + within
    counts = tl.load(counted + pixel, mask=inside, other=0) != 0
    x = tl.load(place, mask=counts, other=0.0) - tl.load(truth, mask=counts, other=0.0)
    y = tl.load(place + by_channel, mask=counts, other=0.0) - tl.load(truth + area, mask=counts, other=0.0)
    return x, y, counts


@triton.jit
def scales_of(log_scale, counts, pixel, area, width, by_image, by_row):
    """Load the log scales of a block of pixels; 0 outside the mask."""
    within = pixel % area
    place = log_scale + pixel // area * by_image + within // width * by_row + within % width
    return tl.load(place, mask=counts, other=0.0)


@triton.jit
def error_sums_kernel(
    estimate,
    log_scale,
    flow,
    counted,
    parts,
    count,
    area,
    width,
    by_image,
    by_channel,
    by_row,
    scale_by_image,
    scale_by_row,
    each,
    block: tl.constexpr,
):
    """Write the partial sums of the L1 error, its NLL and the end-point error: parts x 3."""
    part = tl.program_id(0)
    distance, surprise, length = (
        tl.zeros((block,), tl.float32),
        tl.zeros((block,), tl.float32),
        tl.zeros((block,), tl.float32),
    )
    last = tl.minimum((part + 1) * each, count)
    for first in range(part * each, last, block):
        pixel = (first + tl.arange(0, block)).to(tl.int64)
        x, y, counts = errors_of(
            estimate, flow, counted, pixel, pixel < last, area, width, by_image, by_channel, by_row
        )
        scale = scales_of(log_scale, counts, pixel, area, width, scale_by_image, scale_by_row)
        deviation = tl.abs(x) + tl.abs(y)
        distance += deviation
        surprise += tl.where(counts, deviation * tl.exp(-scale) + 2.0 * (scale + LOG_2), 0.0)
        length += tl.sqrt(x * x + y * y)
    tl.store(parts + 3 * part, tl.sum(distance, 0))
    tl.store(parts + 3 * part + 1, tl.sum(surprise, 0))
    tl.store(parts + 3 * part + 2, tl.sum(length, 0))


@triton.jit
def error_sums_gradient_kernel(
    arriving,
    estimate,
    log_scale,
    flow,
    counted,
    d_estimate,
    d_log_scale,
    count,
    area,
    width,
    by_image,
    by_channel,
    by_row,
    scale_by_image,
    scale_by_row,
    block: tl.constexpr,
):
    """Write the gradients of estimate (N x 2 x H x W) and log_scale (N x 1 x H x W), given those of the sums."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    x, y, counts = errors_of(estimate, flow, counted, pixel, inside, area, width, by_image, by_channel, by_row)
    scale = scales_of(log_scale, counts, pixel, area, width, scale_by_image, scale_by_row)
    by_distance, by_surprise = tl.load(arriving), tl.load(arriving + 1)
    target = d_estimate + 2 * (pixel // area) * area + pixel % area
    tl.store(target, by_distance * (tl.where(x > 0, 1.0, 0.0) - tl.where(x < 0, 1.0, 0.0)), mask=inside)
    tl.store(target + area, by_distance * (tl.where(y > 0, 1.0, 0.0) - tl.where(y < 0, 1.0, 0.0)), mask=inside)
    slope = 2.0 - (tl.abs(x) + tl.abs(y)) * tl.exp(-scale)
    tl.store(d_log_scale + pixel, tl.where(counts, by_surprise * slope, 0.0), mask=inside)


def error_sums(estimate: Tensor, log_scale: Tensor, flow: Tensor, counted: Tensor) -> Tensor:
    """Compute the sums of `losses.error_sums` as one vector of three.

    Args:
        estimate: predicted flow, N x 2 x H x W, float32, with contiguous rows.
        log_scale: logarithm of the Laplace scale, N x 1 x H x W, float32, with contiguous rows.
        flow: true flow, N x 2 x H x W, float32, contiguous.
        counted: pixels to sum over, N x 1 x H x W, bool, contiguous.
    """
    count, area, _ = _counts(counted)
    many, each = split_rows(count, BLOCK, PROGRAMS)
    parts = flow.new_empty(many, 3)
    error_sums_kernel[(len(parts),)](
        estimate,
        log_scale,
        flow,
        counted.view(torch.uint8),
        parts,
        count,
        area,
        counted.shape[3],
        *estimate.stride()[:3],
        log_scale.stride(0),
        log_scale.stride(2),
        each,
        block=BLOCK,
    )
    return parts.sum(dim=0)


def error_sums_gradient(
    arriving: Tensor, estimate: Tensor, log_scale: Tensor, flow: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of estimate and log_scale.

    Args:
        arriving: gradients of the three sums, contiguous.
        estimate: as in `error_sums`.
        log_scale: as in `error_sums`.
        flow: as in `error_sums`.
        counted: as in `error_sums`.
    """
    count, area, blocks = _counts(counted)
    d_estimate, d_log_scale = torch.empty_like(flow), flow.new_empty(counted.shape)
    error_sums_gradient_kernel[(blocks,)](
        arriving,
        estimate,
        log_scale,
        flow,
        counted.view(torch.uint8),
        d_estimate,
        d_log_scale,
        count,
        area,
        counted.shape[3],
        *estimate.stride()[:3],
        log_scale.stride(0),
        log_scale.stride(2),
        block=BLOCK,
    )
    return d_estimate, d_log_scale


def _counts(counted: Tensor) -> tuple[int, int, int]:
    """Return the number of pixels in total, per image, and the number of blocks."""
    return counted.numel(), counted.shape[2] * counted.shape[3], triton.cdiv(counted.numel(), BLOCK)
