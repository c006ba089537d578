"""Convex upsampling and its gradient in Triton: the shares of the nine neighbors are never written down."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 16
"""Coarse pixels of a program."""
NEIGHBORS = tl.constexpr(9)


@triton.jit
def logits_of(weights, pixel, inside, neighbor, fine: tl.constexpr):
    """The logits of one neighbor for all fine pixels of some coarse ones: block x fine."""
    part = tl.arange(0, fine)
    start = weights + pixel[:, None] * (NEIGHBORS * fine) + neighbor * fine
    return tl.load(start + part[None, :], mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def softmax_of(weights, pixel, inside, block: tl.constexpr, fine: tl.constexpr):
    """The largest logit of each fine pixel, and the sum over neighbors of what they exceed e^largest by."""
    largest = logits_of(weights, pixel, inside, 0, fine)
    for neighbor in tl.static_range(1, NEIGHBORS):
        largest = tl.maximum(largest, logits_of(weights, pixel, inside, neighbor, fine))
    total = tl.zeros((block, fine), tl.float32)
    for neighbor in tl.static_range(NEIGHBORS):
        total += tl.exp(logits_of(weights, pixel, inside, neighbor, fine) - largest)
    return largest, total


@triton.jit
def places_of(pixel, height, width, channels, channel, factor: tl.constexpr):
    """Where in N x channels x (factor height) x (factor width) the fine pixels of coarse ones lie: block x factor^2."""
    part = tl.arange(0, factor * factor)
    image, within = pixel // (height * width), pixel % (height * width)
    row = (within // width)[:, None] * factor + (part // factor)[None, :]
    column = (within % width)[:, None] * factor + (part % factor)[None, :]
    return ((image * channels + channel)[:, None] * (factor * height) + row) * (factor * width) + column


@triton.jit
def around_of(around, pixel, inside, pixels, channels, channel, neighbor):
    """A channel of one neighbor of each coarse pixel; around: N x channels x 9 x pixels."""
    image, within = pixel // pixels, pixel % pixels
    start = around + ((image * channels + channel) * NEIGHBORS + neighbor) * pixels
    return tl.load(start + within, mask=inside, other=0.0)


@triton.jit
def upsample_kernel(
    around,
    weights,
    found,
    count,
    height,
    width,
    channels: tl.constexpr,
    factor: tl.constexpr,
    block: tl.constexpr,
):
    """Some coarse pixels of all images. weights: coarse pixels x 9 x factor^2, logits."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    fine: tl.constexpr = factor * factor
    largest, total = softmax_of(weights, pixel, inside, block, fine)
    for channel in tl.static_range(channels):
        value = tl.zeros((block, fine), tl.float32)
        for neighbor in tl.static_range(NEIGHBORS):
            share = tl.exp(logits_of(weights, pixel, inside, neighbor, fine) - largest)
            number = around_of(around, pixel, inside, height * width, channels, channel, neighbor)
            value += share * number[:, None]
        place = places_of(pixel, height, width, channels, channel, factor)
        tl.store(found + place, value / total, mask=inside[:, None])


@triton.jit
def upsample_gradient_kernel(
    arriving,
    around,
    weights,
    found,
    d_around,
    d_weights,
    count,
    height,
    width,
    channels: tl.constexpr,
    factor: tl.constexpr,
    block: tl.constexpr,
):
    """The gradients of neighbors and of logits; found: what `upsample_kernel` wrote."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    fine: tl.constexpr = factor * factor
    largest, total = softmax_of(weights, pixel, inside, block, fine)
    # The gradient of a share, averaged over the shares, is that of the value that they make.
    mean = tl.zeros((block, fine), tl.float32)
    for channel in tl.static_range(channels):
        place = places_of(pixel, height, width, channels, channel, factor)
        value = tl.load(found + place, mask=inside[:, None], other=0.0)
        mean += tl.load(arriving + place, mask=inside[:, None], other=0.0) * value
    image, within = pixel // (height * width), pixel % (height * width)
    part = tl.arange(0, fine)
    for neighbor in tl.static_range(NEIGHBORS):
        share = tl.exp(logits_of(weights, pixel, inside, neighbor, fine) - largest) / total
        slope = tl.zeros((block, fine), tl.float32)
        for channel in tl.static_range(channels):
            place = places_of(pixel, height, width, channels, channel, factor)
            arrives = tl.load(arriving + place, mask=inside[:, None], other=0.0)
            slope += arrives * around_of(around, pixel, inside, height * width, channels, channel, neighbor)[:, None]
            start = d_around + ((image * channels + channel) * NEIGHBORS + neighbor) * (height * width)
            tl.store(start + within, tl.sum(share * arrives, 1), mask=inside)
        start = d_weights + pixel[:, None] * (NEIGHBORS * fine) + neighbor * fine + part[None, :]
        tl.store(start, (share * (slope - mean)).to(d_weights.dtype.element_ty), mask=inside[:, None])


def upsample(around: Tensor, weights: Tensor, factor: int) -> Tensor:
    """Neighbors, N x C x 9 x H x W in float32, by logits, N x H x W x (9 factor^2): N x C x factor H x factor W."""
    batch, channels, _, height, width = around.shape
    found = around.new_empty(batch, channels, factor * height, factor * width)
    count = batch * height * width
    upsample_kernel[(triton.cdiv(count, PIXELS),)](
        around, weights, found, count, height, width, channels=channels, factor=factor, block=PIXELS
    )
    return found


def upsample_gradient(
    arriving: Tensor, around: Tensor, weights: Tensor, found: Tensor, factor: int
) -> tuple[Tensor, Tensor]:
    """The gradients of neighbors and logits from that of what `upsample` found; all contiguous."""
    batch, channels, _, height, width = around.shape
    d_around, d_weights = torch.empty_like(around), torch.empty_like(weights)
    count = batch * height * width
    upsample_gradient_kernel[(triton.cdiv(count, PIXELS),)](
        arriving,
        around,
        weights,
        found,
        d_around,
        d_weights,
        count,
        height,
        width,
        channels=channels,
        factor=factor,
        block=PIXELS,
    )
    return d_around, d_weights
