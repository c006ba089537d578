"""A 3x3 convolution of each channel by itself, added to what it reads, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.parts import parts_of

ELEMENTS = 512
"""Numbers that a program holds of one tensor."""
PROGRAMS = 1024
"""Programs that share the pixels of a sum, at most."""


@triton.jit
def neighbours(maps, pixel, inside, channel, within, height, width, channels, tap):
    """The numbers one step away from pixels (of all images, flat) in the direction of a tap; zero outside an image."""
    column, row = pixel % width + tap % 3 - 1, (pixel // width) % height + tap // 3 - 1
    there = inside & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    start = (pixel + (tap // 3 - 1) * width + tap % 3 - 1) * channels
    return tl.load(maps + start[:, None] + channel[None, :], mask=there[:, None] & within[None, :], other=0.0)


@triton.jit
def position_kernel(
    maps,
    taps,
    bias,
    found,
    count,
    height,
    width,
    channels,
    backward: tl.constexpr,
    block: tl.constexpr,
    padded_channels: tl.constexpr,
):
    """Some pixels of all images. Backward, maps are what arrives, taps are turned around, and there is no bias."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = pixel < count
    channel = tl.arange(0, padded_channels)
    within = channel < channels
    place = pixel[:, None] * channels + channel[None, :]
    total = tl.load(maps + place, mask=inside[:, None] & within[None, :], other=0.0)
    if not backward:
        total += tl.load(bias + channel, mask=within, other=0.0)[None, :]
    for tap in tl.static_range(9):
        weight = tl.load(taps + (8 - tap if backward else tap) * channels + channel, mask=within, other=0.0)
        total += weight[None, :] * neighbours(maps, pixel, inside, channel, within, height, width, channels, tap)
    tl.store(found + place, total, mask=inside[:, None] & within[None, :])


@triton.jit
def taps_gradient_kernel(
    arriving,
    maps,
    parts,
    count,
    height,
    width,
    channels,
    each,
    block: tl.constexpr,
    padded_channels: tl.constexpr,
):
    """Shares of one part of the pixels in the gradient of one tap, or, as the tenth, of the bias: parts x 10 x C."""
    part, tap = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, padded_channels)
    within = channel < channels
    total = tl.zeros((block, padded_channels), tl.float32)
    last = tl.minimum((part + 1) * each, count)
    for first in range(part * each, last, block):
        pixel = (first + tl.arange(0, block)).to(tl.int64)
        inside = pixel < last
        place = pixel[:, None] * channels + channel[None, :]
        arrives = tl.load(arriving + place, mask=inside[:, None] & within[None, :], other=0.0)
        if tap < 9:
            arrives *= neighbours(maps, pixel, inside, channel, within, height, width, channels, tap)
        total += arrives
    tl.store(parts + (part * 10 + tap) * channels + channel, tl.sum(total, 0), mask=within)


def position(maps: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Maps, B x H x W x C, plus their convolution with taps, 9 x C, plus a bias; float32, contiguous."""
    return _position(maps, taps, bias, backward=False)


def position_gradient(arriving: Tensor, maps: Tensor, taps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of maps, taps and bias."""
    batch, height, width, channels = maps.shape
    padded, block = _block(channels)
    count = batch * height * width
    many, each = parts_of(count, block, PROGRAMS)
    parts = maps.new_empty(many, 10, channels)
    taps_gradient_kernel[(len(parts), 10)](
        arriving, maps, parts, count, height, width, channels, each, block=block, padded_channels=padded
    )
    sums = parts.sum(dim=0)
    return _position(arriving, taps, taps, backward=True), sums[:9], sums[9]


def _position(maps: Tensor, taps: Tensor, bias: Tensor, backward: bool) -> Tensor:
    batch, height, width, channels = maps.shape
    padded, block = _block(channels)
    count = batch * height * width
    found = torch.empty_like(maps)
    position_kernel[(triton.cdiv(count, block),)](
        maps,
        taps,
        bias,
        found,
        count,
        height,
        width,
        channels,
        backward=backward,
        block=block,
        padded_channels=padded,
    )
    return found


def _block(channels: int) -> tuple[int, int]:
    """Channels padded to a power of two, and pixels of a program."""
    padded = triton.next_power_of_2(channels)
    return padded, max(1, ELEMENTS // padded)
