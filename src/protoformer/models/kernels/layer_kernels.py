"""Layer norm of tokens and instance norm of maps in Triton.

Statistics are float32 whatever the input. Sums over rows are added up in parts, in an order that is always the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.runtime import split_rows

ELEMENTS = 2048
"""Numbers that a program holds of one tensor."""
PROGRAMS = 512
"""Programs that share the rows of a sum, at most."""


@triton.jit
def normalized_rows(row, within, width, eps):
    """Rows (block x padded, zero beyond their width) less their mean and at unit variance, and one over its root."""
    mean = tl.sum(row, 1) / width
    centered = tl.where(within[None, :], row - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / width + eps)
    return centered * scale[:, None], scale


@triton.jit
def layer_norm_kernel(tokens, weight, bias, found, rows, width, eps, block: tl.constexpr, padded_width: tl.constexpr):
    """Some rows of tokens, rows x width."""
    row = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    channel = tl.arange(0, padded_width)
    within = channel < width
    kept = (row < rows)[:, None] & within[None, :]
    place = row[:, None] * width + channel[None, :]
    number = tl.load(tokens + place, mask=kept, other=0.0).to(tl.float32)
    unit, _ = normalized_rows(number, within, width, eps)
    gain = tl.load(weight + channel, mask=within, other=0.0)
    offset = tl.load(bias + channel, mask=within, other=0.0)
    tl.store(found + place, unit * gain[None, :] + offset[None, :], mask=kept)


@triton.jit
def layer_norm_gradient_kernel(
    arriving,
    tokens,
    weight,
    d_tokens,
    d_parts,
    rows,
    width,
    each,
    eps,
    block: tl.constexpr,
    padded_width: tl.constexpr,
):
    """One part of the rows: their gradient, and its shares of those of weight and bias (parts x 2 x width)."""
    part = tl.program_id(0)
    channel = tl.arange(0, padded_width)
    within = channel < width
    gain = tl.load(weight + channel, mask=within, other=0.0)
    by_weight = tl.zeros((block, padded_width), tl.float32)
    by_bias = tl.zeros((block, padded_width), tl.float32)
    for first in range(part * each, tl.minimum((part + 1) * each, rows), block):
        row = (first + tl.arange(0, block)).to(tl.int64)
        kept = (row < tl.minimum((part + 1) * each, rows))[:, None] & within[None, :]
        place = row[:, None] * width + channel[None, :]
        number = tl.load(tokens + place, mask=kept, other=0.0).to(tl.float32)
        arrives = tl.load(arriving + place, mask=kept, other=0.0).to(tl.float32)
        unit, scale = normalized_rows(number, within, width, eps)
        slope = arrives * gain[None, :]
        mean = tl.sum(slope, 1) / width
        along = tl.sum(slope * unit, 1) / width
        change = (slope - mean[:, None] - unit * along[:, None]) * scale[:, None]
        tl.store(d_tokens + place, change.to(d_tokens.dtype.element_ty), mask=kept)
        by_weight += arrives * unit
        by_bias += arrives
    start = d_parts + part * 2 * width + channel
    tl.store(start, tl.sum(by_weight, 0), mask=within)
    tl.store(start + width, tl.sum(by_bias, 0), mask=within)


@triton.jit
def map_sums_kernel(
    maps,
    arriving,
    moments,
    parts,
    pixels,
    channels,
    each,
    backward: tl.constexpr,
    rectified: tl.constexpr,
    block: tl.constexpr,
    padded_channels: tl.constexpr,
):
    """Two sums over a part of the pixels of an image, by channel: into images x parts x 2 x channels.

    Forward, of the numbers less those of the first pixel, and of their squares: sums of the squares of the numbers
    themselves would lose the variance of what is large and all but constant. Backward, of what arrives and of that
    times the normalized numbers; moments: images x 2 x channels, mean and one over the deviation.
    """
    image, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    channel = tl.arange(0, padded_channels)
    within = channel < channels
    one = tl.zeros((block, padded_channels), tl.float32)
    other = tl.zeros((block, padded_channels), tl.float32)
    start = image * pixels * channels
    if backward:
        mean = tl.load(moments + image * 2 * channels + channel, mask=within, other=0.0)
        scale = tl.load(moments + (image * 2 + 1) * channels + channel, mask=within, other=0.0)
    else:
        around = tl.load(maps + start + channel, mask=within, other=0.0).to(tl.float32)
    last = tl.minimum((part + 1) * each, pixels)
    for first in range(part * each, last, block):
        pixel = first + tl.arange(0, block)
        kept = (pixel < last)[:, None] & within[None, :]
        place = start + pixel[:, None] * channels + channel[None, :]
        number = tl.load(maps + place, mask=kept, other=0.0).to(tl.float32)
        if backward:
            unit = (number - mean[None, :]) * scale[None, :]
            arrives = tl.load(arriving + place, mask=kept, other=0.0).to(tl.float32)
            if rectified:
                arrives = tl.where(unit > 0, arrives, 0.0)
            one += arrives
            other += arrives * unit
        else:
            apart = tl.where(kept, number - around[None, :], 0.0)
            one += apart
            other += apart * apart
    target = parts + ((image * tl.num_programs(0) + part) * 2) * channels + channel
    tl.store(target, tl.sum(one, 0), mask=within)
    tl.store(target + channels, tl.sum(other, 0), mask=within)


@triton.jit
def map_norm_kernel(
    maps,
    arriving,
    moments,
    sums,
    found,
    pixels,
    channels,
    backward: tl.constexpr,
    rectified: tl.constexpr,
    block: tl.constexpr,
    padded_channels: tl.constexpr,
):
    """Some pixels of an image, normalized, or, backward, their gradient. sums: images x 2 x channels, of all pixels."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    within = channel < channels
    kept = (pixel < pixels)[:, None] & within[None, :]
    mean = tl.load(moments + image * 2 * channels + channel, mask=within, other=0.0)
    scale = tl.load(moments + (image * 2 + 1) * channels + channel, mask=within, other=0.0)
    place = image * pixels * channels + pixel[:, None] * channels + channel[None, :]
    unit = (tl.load(maps + place, mask=kept, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    if backward:
        arrives = tl.load(arriving + place, mask=kept, other=0.0).to(tl.float32)
        if rectified:
            arrives = tl.where(unit > 0, arrives, 0.0)
        whole = tl.load(sums + image * 2 * channels + channel, mask=within, other=0.0) / pixels
        along = tl.load(sums + (image * 2 + 1) * channels + channel, mask=within, other=0.0) / pixels
        result = (arrives - whole[None, :] - unit * along[None, :]) * scale[None, :]
    else:
        result = tl.where(unit < 0, 0.0, unit) if rectified else unit  # what is not a number stays so
    tl.store(found + place, result.to(found.dtype.element_ty), mask=kept)


def layer_norm(tokens: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Tokens, rows x width, contiguous; in float32."""
    rows, width = tokens.shape
    found = torch.empty(tokens.shape, dtype=torch.float32, device=tokens.device)
    padded, block = _block(width)
    layer_norm_kernel[(triton.cdiv(rows, block),)](
        tokens, weight, bias, found, rows, width, eps, block=block, padded_width=padded
    )
    return found


def layer_norm_gradient(arriving: Tensor, tokens: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of tokens, weight and bias."""
    rows, width = tokens.shape
    padded, block = _block(width)
    parts, each = split_rows(rows, block, PROGRAMS)
    d_tokens, d_parts = torch.empty_like(tokens), weight.new_empty(parts, 2, width)
    layer_norm_gradient_kernel[(parts,)](
        arriving, tokens, weight, d_tokens, d_parts, rows, width, each, eps, block=block, padded_width=padded
    )
    d_weight, d_bias = d_parts.sum(dim=0)
    return d_tokens, d_weight, d_bias


def instance_norm(maps: Tensor, eps: float, rectified: bool) -> tuple[Tensor, Tensor]:
    """Maps, images x pixels x channels, at zero mean and unit variance over pixels, and rectified; their moments."""
    pixels = maps.shape[1]
    mean, square = (_sums(maps, maps, maps, False, rectified) / pixels).unbind(dim=1)
    scale = ((square - mean * mean).clamp_min(0) + eps).rsqrt()
    moments = torch.stack((mean + maps[:, 0].float(), scale), dim=1)
    return _normed(maps, maps, moments, moments, False, rectified), moments


def instance_norm_gradient(arriving: Tensor, maps: Tensor, moments: Tensor, rectified: bool) -> Tensor:
    """The gradient of maps; all contiguous."""
    sums = _sums(maps, arriving, moments, True, rectified)
    return _normed(maps, arriving, moments, sums, True, rectified)


def _sums(maps: Tensor, arriving: Tensor, moments: Tensor, backward: bool, rectified: bool) -> Tensor:
    images, pixels, channels = maps.shape
    padded, block = _block(channels)
    parts, each = split_rows(pixels, block, PROGRAMS // images)
    found = torch.empty(images, parts, 2, channels, dtype=torch.float32, device=maps.device)
    map_sums_kernel[(parts, images)](
        maps,
        arriving,
        moments,
        found,
        pixels,
        channels,
        each,
        backward=backward,
        rectified=rectified,
        block=block,
        padded_channels=padded,
    )
    return found.sum(dim=1)


def _normed(maps: Tensor, arriving: Tensor, moments: Tensor, sums: Tensor, backward: bool, rectified: bool) -> Tensor:
    images, pixels, channels = maps.shape
    padded, block = _block(channels)
    found = torch.empty_like(maps)
    map_norm_kernel[(triton.cdiv(pixels, block), images)](
        maps,
        arriving,
        moments,
        sums,
        found,
        pixels,
        channels,
        backward=backward,
        rectified=rectified,
        block=block,
        padded_channels=padded,
    )
    return found


def _block(width: int) -> tuple[int, int]:
    """A row padded to a power of two, and rows of a program."""
    padded = triton.next_power_of_2(width)
    return padded, max(1, ELEMENTS // padded)


ACTIVATION_ELEMENTS = 2048
"""Numbers that a program holds of one tensor."""
ACTIVATION_PROGRAMS = 512
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
    padded, block = _activation_block(width)
    activate_kernel[(triton.cdiv(count, block), triton.cdiv(width, padded))](
        rows, bias, found, count, width, stride, rectified=rectified, block=block, padded_width=padded
    )
    return found


def activate_gradient(
    arriving: Tensor, found: Tensor, bias: Tensor, rectified: bool, stride: int
) -> tuple[Tensor, Tensor]:
    """Gradients of rows, which have `stride` numbers, and of the bias, from that of what `activate` found."""
    count, width = arriving.shape
    padded, block = _activation_block(stride)
    parts, each = split_rows(count, block, ACTIVATION_PROGRAMS)
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


def _activation_block(width: int) -> tuple[int, int]:
    """Channels of a program, and rows."""
    padded = min(128, triton.next_power_of_2(width))
    return padded, ACTIVATION_ELEMENTS // padded


POSITION_ELEMENTS = 512
"""Numbers that a program holds of one tensor."""
POSITION_PROGRAMS = 1024
"""Programs that share the pixels of a sum, at most."""


@triton.jit
def neighbors(maps, pixel, inside, channel, within, height, width, channels, tap):
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
        total += weight[None, :] * neighbors(maps, pixel, inside, channel, within, height, width, channels, tap)
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
            arrives *= neighbors(maps, pixel, inside, channel, within, height, width, channels, tap)
        total += arrives
    tl.store(parts + (part * 10 + tap) * channels + channel, tl.sum(total, 0), mask=within)


def position(maps: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Maps, B x H x W x C, plus their convolution with taps, 9 x C, plus a bias; float32, contiguous."""
    return _position(maps, taps, bias, backward=False)


def position_gradient(arriving: Tensor, maps: Tensor, taps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of maps, taps and bias."""
    batch, height, width, channels = maps.shape
    padded, block = _position_block(channels)
    count = batch * height * width
    many, each = split_rows(count, block, POSITION_PROGRAMS)
    parts = maps.new_empty(many, 10, channels)
    taps_gradient_kernel[(len(parts), 10)](
        arriving, maps, parts, count, height, width, channels, each, block=block, padded_channels=padded
    )
    sums = parts.sum(dim=0)
    return _position(arriving, taps, taps, backward=True), sums[:9], sums[9]


def _position(maps: Tensor, taps: Tensor, bias: Tensor, backward: bool) -> Tensor:
    batch, height, width, channels = maps.shape
    padded, block = _position_block(channels)
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


def _position_block(channels: int) -> tuple[int, int]:
    """Channels padded to a power of two, and pixels of a program."""
    padded = triton.next_power_of_2(channels)
    return padded, max(1, POSITION_ELEMENTS // padded)
