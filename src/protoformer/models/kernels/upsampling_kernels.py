"""Triton kernels of convex upsampling and its gradient; the weights of the nine neighbors are not stored."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 16
"""Coarse pixels of a program."""
NUM_NEIGHBORS = tl.constexpr(9)


@triton.jit
def _load_logits(logits, pixel, inside, neighbor, fine: tl.constexpr):
    """Load the logits of one neighbor for all fine pixels of a block of coarse pixels: block x fine."""
    start = logits + pixel[:, None] * (NUM_NEIGHBORS * fine) + neighbor * fine
    return tl.load(start + tl.arange(0, fine)[None, :], mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def _softmax_terms(logits, pixel, inside, block: tl.constexpr, fine: tl.constexpr):
    """Return the largest logit m of each fine pixel, and the sum of exp(logit - m) over the neighbors."""
    largest = _load_logits(logits, pixel, inside, 0, fine)
    for neighbor in tl.static_range(1, NUM_NEIGHBORS):
        largest = tl.maximum(largest, _load_logits(logits, pixel, inside, neighbor, fine))
    total = tl.zeros((block, fine), tl.float32)
    for neighbor in tl.static_range(NUM_NEIGHBORS):
        total += tl.exp(_load_logits(logits, pixel, inside, neighbor, fine) - largest)
    return largest, total


@triton.jit
def _fine_offsets(pixel, height, width, channels, channel, factor: tl.constexpr):
    """Return offsets of fine pixels in N x channels x (factor height) x (factor width): block x factor^2."""
    part = tl.arange(0, factor * factor)
    image, within = pixel // (height * width), pixel % (height * width)
    row = (within // width)[:, None] * factor + (part // factor)[None, :]
    column = (within % width)[:, None] * factor + (part % factor)[None, :]
    return ((image * channels + channel)[:, None] * (factor * height) + row) * (factor * width) + column


@triton.jit
def _neighbor_offsets(pixel, pixels, channels, channel, neighbor):
    """Return offsets of a channel of one neighbor of coarse pixels in N x channels x 9 x pixels."""
    return ((pixel // pixels * channels + channel) * NUM_NEIGHBORS + neighbor) * pixels + pixel % pixels


@triton.jit
def upsample_kernel(
    neighbors, logits, output,
    count, height, width,
    channels: tl.constexpr, factor: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Fine pixels of a block of coarse pixels: the neighbors weighted by the softmax of the logits."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    fine: tl.constexpr = factor * factor
    largest, total = _softmax_terms(logits, pixel, inside, block, fine)
    for channel in tl.static_range(channels):
        value = tl.zeros((block, fine), tl.float32)
        for neighbor in tl.static_range(NUM_NEIGHBORS):
            weight = tl.exp(_load_logits(logits, pixel, inside, neighbor, fine) - largest)
            offset = _neighbor_offsets(pixel, height * width, channels, channel, neighbor)
            value += weight * tl.load(neighbors + offset, mask=inside, other=0.0)[:, None]
        offset = _fine_offsets(pixel, height, width, channels, channel, factor)
        tl.store(output + offset, value / total, mask=inside[:, None])


@triton.jit
def upsample_gradient_kernel(
    d_output, neighbors, logits, output, d_neighbors, d_logits,
    count, height, width,
    channels: tl.constexpr, factor: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradients of neighbors and logits; output: result of `upsample_kernel`."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    fine: tl.constexpr = factor * factor
    largest, total = _softmax_terms(logits, pixel, inside, block, fine)
    # The mean of the weights' gradients, weighted by the weights, is the gradient times the output.
    mean = tl.zeros((block, fine), tl.float32)
    for channel in tl.static_range(channels):
        offset = _fine_offsets(pixel, height, width, channels, channel, factor)
        value = tl.load(output + offset, mask=inside[:, None], other=0.0)
        mean += tl.load(d_output + offset, mask=inside[:, None], other=0.0) * value
    for neighbor in tl.static_range(NUM_NEIGHBORS):
        weight = tl.exp(_load_logits(logits, pixel, inside, neighbor, fine) - largest) / total
        d_weight = tl.zeros((block, fine), tl.float32)
        for channel in tl.static_range(channels):
            offset = _fine_offsets(pixel, height, width, channels, channel, factor)
            d_value = tl.load(d_output + offset, mask=inside[:, None], other=0.0)
            offset = _neighbor_offsets(pixel, height * width, channels, channel, neighbor)
            d_weight += d_value * tl.load(neighbors + offset, mask=inside, other=0.0)[:, None]
            tl.store(d_neighbors + offset, tl.sum(weight * d_value, 1), mask=inside)
        target = d_logits + pixel[:, None] * (NUM_NEIGHBORS * fine) + neighbor * fine + tl.arange(0, fine)[None, :]
        tl.store(target, (weight * (d_weight - mean)).to(d_logits.dtype.element_ty), mask=inside[:, None])


def upsample(neighbors: Tensor, logits: Tensor, factor: int) -> Tensor:
    """Combine neighbors, N x C x 9 x H x W in float32, to N x C x (factor H) x (factor W).

    Args:
        neighbors: The 3x3 neighborhood of each coarse pixel.
        logits: N x H x W x (9 factor^2), of the weights.
        factor: Upsampling factor; its square is a power of two.
    """
    batch, channels, _, height, width = neighbors.shape
    output = neighbors.new_empty(batch, channels, factor * height, factor * width)
    count = batch * height * width
    upsample_kernel[(triton.cdiv(count, PIXELS),)](
        neighbors, logits, output, count, height, width, channels=channels, factor=factor, block=PIXELS
    )
    return output


def upsample_gradient(
    d_output: Tensor, neighbors: Tensor, logits: Tensor, output: Tensor, factor: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of neighbors and logits; output: result of `upsample`; all contiguous."""
    batch, channels, _, height, width = neighbors.shape
    d_neighbors, d_logits = torch.empty_like(neighbors), torch.empty_like(logits)
    count = batch * height * width
    upsample_gradient_kernel[(triton.cdiv(count, PIXELS),)](
        d_output, neighbors, logits, output, d_neighbors, d_logits, count, height, width,
        channels=channels, factor=factor, block=PIXELS,
    )  # fmt: skip
    return d_neighbors, d_logits
