"""Layer norm of tokens and instance norm of maps in Triton.

Statistics are float32 whatever the input. Sums over rows are added up in parts, in an order that is always the same.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.model.parts import parts_of

ELEMENTS = 2048
"""Numbers that a program holds of one tensor."""
PROGRAMS = 512
"""Programs that share the rows of a sum, at most."""


@triton.jit
def normalised_rows(row, within, width, eps):
    """Rows (block x padded, zero beyond their width) less their mean and at unit variance, and one over its root."""
    mean = tl.sum(row, 1) / width
    centred = tl.where(within[None, :], row - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    return centred * scale[:, None], scale


@triton.jit
def layer_norm_kernel(tokens, weight, bias, found, rows, width, eps, block: tl.constexpr, padded_width: tl.constexpr):
    """Some rows of tokens, rows x width."""
    row = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    channel = tl.arange(0, padded_width)
    within = channel < width
    kept = (row < rows)[:, None] & within[None, :]
    place = row[:, None] * width + channel[None, :]
    number = tl.load(tokens + place, mask=kept, other=0.0).to(tl.float32)
    unit, _ = normalised_rows(number, within, width, eps)
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
        unit, scale = normalised_rows(number, within, width, eps)
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
    times the normalised numbers; moments: images x 2 x channels, mean and one over the deviation.
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
    """Some pixels of an image, normalised, or, backward, their gradient. sums: images x 2 x channels, of all pixels."""
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
    parts, each = parts_of(rows, block, PROGRAMS)
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
    parts, each = parts_of(pixels, block, PROGRAMS // images)
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
