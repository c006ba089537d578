"""The sums that the flow's loss is made of, and their gradient, in one pass each, in Triton."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.runtime import split_rows

BLOCK = 1024
"""Pixels that are looked at together."""
PROGRAMS = 1024
"""Programs that share the pixels of a sum, at most."""
LOG_2 = tl.constexpr(math.log(2))


@triton.jit
def errors_of(estimate, flow, counted, pixel, inside, area, width, by_image, by_channel, by_row):
    """Errors along x and y of some pixels of all images, zero where they do not count, and whether they do."""
    image, within = pixel // area, pixel % area
    place = estimate + image * by_image + within // width * by_row + within % width
    truth = flow + 2 * image * area + within
    counts = tl.load(counted + pixel, mask=inside, other=0) != 0
    x = tl.load(place, mask=counts, other=0.0) - tl.load(truth, mask=counts, other=0.0)
    y = tl.load(place + by_channel, mask=counts, other=0.0) - tl.load(truth + area, mask=counts, other=0.0)
    return x, y, counts


@triton.jit
def scales_of(log_scale, counts, pixel, area, width, by_image, by_row):
    """Logarithms of scales; those of pixels that do not count are 0."""
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
    """Three sums of one part of the pixels: parts x 3."""
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
    """The gradients of some pixels, N x 2 x H x W and N x 1 x H x W, from those of the three sums."""
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
    """As `losses.error_sums`; rows of estimate and log_scale are contiguous, flow and counted are throughout."""
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
    """Gradients of estimate and log_scale from those of the three sums."""
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
    """Pixels of all images, of one, and blocks of them."""
    return counted.numel(), counted.shape[2] * counted.shape[3], triton.cdiv(counted.numel(), BLOCK)
