"""Triton kernels of single layers: norms, bias and ReLU, and the positional convolution.

Statistics are float32 for any input. Sums over rows are computed in parts, which are added in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.models.kernels.common_kernels import load_matrix, store_matrix
from protoformer.models.runtime import split_rows

ELEMENTS, POSITION_ELEMENTS = 2048, 512
"""Values of one tensor that a program holds."""
PROGRAMS, POSITION_PROGRAMS = 512, 1024
"""Largest number of parts of a sum."""
MAX_ACTIVATION_WIDTH = 128
"""Channels of an activation program."""


def _block_shape(width: int, elements: int = ELEMENTS) -> tuple[int, int]:
    """Return the width padded to a power of two, and the rows of a program."""
    padded = triton.next_power_of_2(width)
    return padded, max(1, elements // padded)


@triton.jit
def _normalized(values, inside, width, eps):
    """Normalize rows to zero mean and unit variance; also return the inverse standard deviations."""
    mean = tl.sum(values, 1) / width
    centered = tl.where(inside[None, :], values - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / width + eps)
    return centered * scale[:, None], scale


@triton.jit
def layer_norm_kernel(tokens, weight, bias, output, rows, width, eps, block: tl.constexpr, padded_width: tl.constexpr):
    """Layer norm of a block of rows: (x - mean) / sqrt(variance + eps) * weight + bias."""
    row = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    channel = tl.arange(0, padded_width)
    inside = channel < width
    unit, _ = _normalized(load_matrix(tokens, row, channel, rows, width, width).to(tl.float32), inside, width, eps)
    gain = tl.load(weight + channel, mask=inside, other=0.0)
    offset = tl.load(bias + channel, mask=inside, other=0.0)
    store_matrix(output, row, channel, rows, width, width, unit * gain[None, :] + offset[None, :])


@triton.jit
def layer_norm_gradient_kernel(
    d_output, tokens, weight, d_tokens, partial_sums,
    rows, width, rows_per_part, eps,
    block: tl.constexpr, padded_width: tl.constexpr,
):  # fmt: skip
    """Gradient of one part of the rows, and its terms of those of weight and bias (parts x 2 x width)."""
    part = tl.program_id(0)
    channel = tl.arange(0, padded_width)
    inside = channel < width
    gain = tl.load(weight + channel, mask=inside, other=0.0)
    d_weight = tl.zeros((block, padded_width), tl.float32)
    d_bias = tl.zeros((block, padded_width), tl.float32)
    last = tl.minimum((part + 1) * rows_per_part, rows)
    for first in range(part * rows_per_part, last, block):
        row = (first + tl.arange(0, block)).to(tl.int64)
        values = load_matrix(tokens, row, channel, last, width, width).to(tl.float32)
        d_normed = load_matrix(d_output, row, channel, last, width, width).to(tl.float32)
        unit, scale = _normalized(values, inside, width, eps)
        d_unit = d_normed * gain[None, :]
        mean = tl.sum(d_unit, 1) / width
        projection = tl.sum(d_unit * unit, 1) / width
        change = (d_unit - mean[:, None] - unit * projection[:, None]) * scale[:, None]
        store_matrix(d_tokens, row, channel, last, width, width, change)
        d_weight += d_normed * unit
        d_bias += d_normed
    target = partial_sums + part * 2 * width + channel
    tl.store(target, tl.sum(d_weight, 0), mask=inside)
    tl.store(target + width, tl.sum(d_bias, 0), mask=inside)


def layer_norm(tokens: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalize tokens, rows x width, contiguous; the output is float32."""
    rows, width = tokens.shape
    output = torch.empty(tokens.shape, dtype=torch.float32, device=tokens.device)
    padded, block = _block_shape(width)
    layer_norm_kernel[(triton.cdiv(rows, block),)](
        tokens, weight, bias, output, rows, width, eps, block=block, padded_width=padded
    )
    return output


def layer_norm_gradient(d_output: Tensor, tokens: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of tokens, weight and bias."""
    rows, width = tokens.shape
    padded, block = _block_shape(width)
    parts, rows_per_part = split_rows(rows, block, PROGRAMS)
    d_tokens, partial_sums = torch.empty_like(tokens), weight.new_empty(parts, 2, width)
    layer_norm_gradient_kernel[(parts,)](
        d_output, tokens, weight, d_tokens, partial_sums, rows, width, rows_per_part, eps,
        block=block, padded_width=padded,
    )  # fmt: skip
    d_weight, d_bias = partial_sums.sum(dim=0)
    return d_tokens, d_weight, d_bias


@triton.jit
def _load_moments(moments, image, channel, channels):
    """Load mean and inverse standard deviation of the channels of an image from images x 2 x channels."""
    start, inside = moments + image * 2 * channels + channel, channel < channels
    return tl.load(start, mask=inside, other=0.0), tl.load(start + channels, mask=inside, other=0.0)


@triton.jit
def _load_gradient(d_output, row, channel, last, channels, unit, relu: tl.constexpr):
    """Load the gradient of normalized values; with ReLU it is zero where they are not positive."""
    d_unit = load_matrix(d_output, row, channel, last, channels, channels).to(tl.float32)
    return tl.where(unit > 0, d_unit, 0.0) if relu else d_unit


@triton.jit
def map_sums_kernel(
    maps, d_output, moments, partial_sums,
    pixels, channels, pixels_per_part,
    backward: tl.constexpr, relu: tl.constexpr, block: tl.constexpr, padded_channels: tl.constexpr,
):  # fmt: skip
    """Compute two sums over a part of the pixels of an image, by channel: images x parts x 2 x channels.

    Forward: of x - x0 and (x - x0)^2, where x0 is the first pixel, as sums of x^2 would lose the variance of large and
    nearly constant values. Backward: of the gradient g and of g times the normalized value.
    """
    image, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    channel = tl.arange(0, padded_channels)
    inside = channel < channels
    first_sum = tl.zeros((block, padded_channels), tl.float32)
    second_sum = tl.zeros((block, padded_channels), tl.float32)
    start = image * pixels * channels
    if backward:
        mean, scale = _load_moments(moments, image, channel, channels)
    else:
        origin = tl.load(maps + start + channel, mask=inside, other=0.0).to(tl.float32)
    last = tl.minimum((part + 1) * pixels_per_part, pixels)
    for first in range(part * pixels_per_part, last, block):
        pixel = first + tl.arange(0, block)
        values = load_matrix(maps + start, pixel, channel, last, channels, channels).to(tl.float32)
        if backward:
            unit = (values - mean[None, :]) * scale[None, :]
            d_unit = _load_gradient(d_output + start, pixel, channel, last, channels, unit, relu)
            first_sum += d_unit
            second_sum += d_unit * unit
        else:
            difference = tl.where((pixel < last)[:, None] & inside[None, :], values - origin[None, :], 0.0)
            first_sum += difference
            second_sum += difference * difference
    target = partial_sums + ((image * tl.num_programs(0) + part) * 2) * channels + channel
    tl.store(target, tl.sum(first_sum, 0), mask=inside)
    tl.store(target + channels, tl.sum(second_sum, 0), mask=inside)


@triton.jit
def map_norm_kernel(
    maps, d_output, moments, sums, output,
    pixels, channels,
    backward: tl.constexpr, relu: tl.constexpr, block: tl.constexpr, padded_channels: tl.constexpr,
):  # fmt: skip
    """Normalize a block of pixels, or compute its gradient; sums: images x 2 x channels, over all pixels."""
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, padded_channels)
    start = image * pixels * channels
    mean, scale = _load_moments(moments, image, channel, channels)
    values = load_matrix(maps + start, pixel, channel, pixels, channels, channels).to(tl.float32)
    unit = (values - mean[None, :]) * scale[None, :]
    if backward:
        d_unit = _load_gradient(d_output + start, pixel, channel, pixels, channels, unit, relu)
        total, projection = _load_moments(sums, image, channel, channels)
        result = (d_unit - (total / pixels)[None, :] - unit * (projection / pixels)[None, :]) * scale[None, :]
    else:
        result = tl.where(unit < 0, 0.0, unit) if relu else unit  # keeps NaN
    store_matrix(output + start, pixel, channel, pixels, channels, channels, result)


def instance_norm(maps: Tensor, eps: float, relu: bool) -> tuple[Tensor, Tensor]:
    """Normalize maps, images x pixels x channels, over pixels, with an optional ReLU.

    Returns:
        The maps and their moments, images x 2 x channels: mean and inverse standard deviation.
    """
    pixels = maps.shape[1]
    mean, square = (_map_sums(maps, maps, maps, False, relu) / pixels).unbind(dim=1)
    scale = ((square - mean * mean).clamp_min(0) + eps).rsqrt()
    moments = torch.stack((mean + maps[:, 0].float(), scale), dim=1)
    return _map_norm(maps, maps, moments, moments, False, relu), moments


def instance_norm_gradient(d_output: Tensor, maps: Tensor, moments: Tensor, relu: bool) -> Tensor:
    """Return the gradient of maps; all contiguous."""
    sums = _map_sums(maps, d_output, moments, True, relu)
    return _map_norm(maps, d_output, moments, sums, True, relu)


def _map_sums(maps: Tensor, d_output: Tensor, moments: Tensor, backward: bool, relu: bool) -> Tensor:
    images, pixels, channels = maps.shape
    padded, block = _block_shape(channels)
    parts, pixels_per_part = split_rows(pixels, block, PROGRAMS // images)
    partial_sums = torch.empty(images, parts, 2, channels, dtype=torch.float32, device=maps.device)
    map_sums_kernel[(parts, images)](
        maps, d_output, moments, partial_sums, pixels, channels, pixels_per_part,
        backward=backward, relu=relu, block=block, padded_channels=padded,
    )  # fmt: skip
    return partial_sums.sum(dim=1)


def _map_norm(maps: Tensor, d_output: Tensor, moments: Tensor, sums: Tensor, backward: bool, relu: bool) -> Tensor:
    images, pixels, channels = maps.shape
    padded, block = _block_shape(channels)
    output = torch.empty_like(maps)
    map_norm_kernel[(triton.cdiv(pixels, block), images)](
        maps, d_output, moments, sums, output, pixels, channels,
        backward=backward, relu=relu, block=block, padded_channels=padded,
    )  # fmt: skip
    return output


@triton.jit
def activate_kernel(
    rows, bias, output,
    count, width, stride,
    relu: tl.constexpr, block: tl.constexpr, padded_width: tl.constexpr,
):  # fmt: skip
    """Add a bias to a block of rows, count x width, `stride` apart, with an optional ReLU."""
    row = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    channel = tl.program_id(1) * padded_width + tl.arange(0, padded_width)
    values = load_matrix(rows, row, channel, count, width, stride).to(tl.float32)
    values += tl.load(bias + channel, mask=channel < width, other=0.0)[None, :]
    if relu:
        values = tl.where(values < 0, 0.0, values)  # keeps NaN
    store_matrix(output, row, channel, count, width, width, values)


@triton.jit
def activate_gradient_kernel(
    d_output, output, d_rows, partial_sums,
    count, width, stride, rows_per_part,
    relu: tl.constexpr, block: tl.constexpr, padded_width: tl.constexpr,
):  # fmt: skip
    """Gradient of one part of the rows, zero from `width` on, and its term of that of the bias (parts x width)."""
    part = tl.program_id(0)
    channel = tl.program_id(1) * padded_width + tl.arange(0, padded_width)
    total = tl.zeros((block, padded_width), tl.float32)
    last = tl.minimum((part + 1) * rows_per_part, count)
    for first in range(part * rows_per_part, last, block):
        row = (first + tl.arange(0, block)).to(tl.int64)
        change = load_matrix(d_output, row, channel, last, width, width).to(tl.float32)
        if relu:
            values = load_matrix(output, row, channel, last, width, width).to(tl.float32)
            change = tl.where(values > 0, change, 0.0)
        store_matrix(d_rows, row, channel, last, stride, stride, change)
        total += change
    tl.store(partial_sums + part * width + channel, tl.sum(total, 0), mask=channel < width)


def activate(rows: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Add a bias (width) to the first `width` values of rows, contiguous, with an optional ReLU."""
    (count, stride), width = rows.shape, len(bias)
    output = rows.new_empty(count, width)
    padded, block = _block_shape(min(MAX_ACTIVATION_WIDTH, width))
    activate_kernel[(triton.cdiv(count, block), triton.cdiv(width, padded))](
        rows, bias, output, count, width, stride, relu=relu, block=block, padded_width=padded
    )
    return output


def activate_gradient(d_output: Tensor, output: Tensor, bias: Tensor, relu: bool, stride: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of rows, count x stride, and of the bias; output: result of `activate`."""
    count, width = d_output.shape
    padded, block = _block_shape(min(MAX_ACTIVATION_WIDTH, stride))
    parts, rows_per_part = split_rows(count, block, PROGRAMS)
    d_rows = d_output.new_empty(count, stride)
    partial_sums = torch.empty(parts, width, dtype=torch.float32, device=d_output.device)
    activate_gradient_kernel[(parts, triton.cdiv(stride, padded))](
        d_output, output, d_rows, partial_sums, count, width, stride, rows_per_part,
        relu=relu, block=block, padded_width=padded,
    )  # fmt: skip
    return d_rows, partial_sums.sum(dim=0).to(bias.dtype)


@triton.jit
def _load_neighbors(maps, pixel, inside, channel, height, width, channels, tap):
    """Load the neighbors of pixels (flat, of all images) at a tap of a 3x3 convolution; zero outside the image."""
    x, y = pixel % width + tap % 3 - 1, (pixel // width) % height + tap // 3 - 1
    inside = inside & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    start = (pixel + (tap // 3 - 1) * width + tap % 3 - 1) * channels
    mask = inside[:, None] & (channel < channels)[None, :]
    return tl.load(maps + start[:, None] + channel[None, :], mask=mask, other=0.0)


@triton.jit
def position_kernel(
    maps, taps, bias, output,
    count, height, width, channels,
    backward: tl.constexpr, block: tl.constexpr, padded_channels: tl.constexpr,
):  # fmt: skip
    """Add depthwise convolution (taps: 9 x C) and bias to some pixels; backward flips the taps and has no bias."""
    pixel = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    channel = tl.arange(0, padded_channels)
    total = load_matrix(maps, pixel, channel, count, channels, channels)
    if not backward:
        total += tl.load(bias + channel, mask=channel < channels, other=0.0)[None, :]
    for tap in tl.static_range(9):
        weight = tl.load(taps + (8 - tap if backward else tap) * channels + channel, mask=channel < channels, other=0.0)
        total += weight[None, :] * _load_neighbors(maps, pixel, pixel < count, channel, height, width, channels, tap)
    store_matrix(output, pixel, channel, count, channels, channels, total)


@triton.jit
def taps_gradient_kernel(
    d_output, maps, partial_sums,
    count, height, width, channels, pixels_per_part,
    block: tl.constexpr, padded_channels: tl.constexpr,
):  # fmt: skip
    """Terms of one part of the pixels of the gradient of one tap or, as tap 9, of the bias: parts x 10 x C."""
    part, tap = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, padded_channels)
    total = tl.zeros((block, padded_channels), tl.float32)
    last = tl.minimum((part + 1) * pixels_per_part, count)
    for first in range(part * pixels_per_part, last, block):
        pixel = (first + tl.arange(0, block)).to(tl.int64)
        product = load_matrix(d_output, pixel, channel, last, channels, channels)
        if tap < 9:
            product *= _load_neighbors(maps, pixel, pixel < last, channel, height, width, channels, tap)
        total += product
    tl.store(partial_sums + (part * 10 + tap) * channels + channel, tl.sum(total, 0), mask=channel < channels)


def position(maps: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Add the convolution with taps, 9 x C, and a bias to maps, B x H x W x C; float32, contiguous."""
    return _position(maps, taps, bias, backward=False)


def position_gradient(d_output: Tensor, maps: Tensor, taps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of maps, taps and bias."""
    batch, height, width, channels = maps.shape
    padded, block = _block_shape(channels, POSITION_ELEMENTS)
    count = batch * height * width
    parts, pixels_per_part = split_rows(count, block, POSITION_PROGRAMS)
    partial_sums = maps.new_empty(parts, 10, channels)
    taps_gradient_kernel[(parts, 10)](
        d_output, maps, partial_sums, count, height, width, channels, pixels_per_part,
        block=block, padded_channels=padded,
    )  # fmt: skip
    sums = partial_sums.sum(dim=0)
    return _position(d_output, taps, taps, backward=True), sums[:9], sums[9]


def _position(maps: Tensor, taps: Tensor, bias: Tensor, backward: bool) -> Tensor:
    batch, height, width, channels = maps.shape
    padded, block = _block_shape(channels, POSITION_ELEMENTS)
    count = batch * height * width
    output = torch.empty_like(maps)
    position_kernel[(triton.cdiv(count, block),)](
        maps, taps, bias, output, count, height, width, channels,
        backward=backward, block=block, padded_channels=padded,
    )  # fmt: skip
    return output
