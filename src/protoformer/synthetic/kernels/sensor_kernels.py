"""Triton kernels for lens, sensor and codec; they mirror the functions of `sensor`, and tests compare them.

A last bit can change the rounding of a codec, so that products are not fused with sums, and quotients are exact.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.synthetic import sensor
from protoformer.synthetic.kernels.surface_kernels import clamp01, rounded
from protoformer.synthetic.rng import spread_keys

HALF = tl.constexpr(sensor.HALF)
NEAREST = tl.constexpr(sensor.NEAREST)
TURN = tl.constexpr(6.283185307179586)
BLOCK = 512
TILE = 16
"""Side of a program's tile, pixels: two codec blocks."""


@triton.jit
def _levels(nearness):
    """Compute `sensor._blur_weights` of the diameter on one side of the focus."""
    squared = tl.maximum(nearness, 0.0) * tl.maximum(nearness, 0.0)
    first, second, third = clamp01(squared / 8), clamp01((squared - 8) / 32), clamp01((squared - 40) / 128)
    return 1 - first, first - second, second - third, third


@triton.jit
def _blurred(layer, row, column, height, width, SPACING: tl.constexpr):
    """(1, 2, 1) / 4 along both axes, taps apart, the border repeated."""
    left, right = tl.maximum(column - SPACING, 0), tl.minimum(column + SPACING, width - 1)
    up, down = layer + tl.maximum(row - SPACING, 0) * width, layer + tl.minimum(row + SPACING, height - 1) * width
    here = layer + row * width
    upper = tl.load(up + left) + tl.load(up + right) + 2 * tl.load(up + column)
    middle = tl.load(here + left) + tl.load(here + right) + 2 * tl.load(here + column)
    lower = tl.load(down + left) + tl.load(down + right) + 2 * tl.load(down + column)
    return (upper + lower + 2 * middle) / 16


@triton.jit
def _share(opacity, front):
    """Compute the visible fraction of a layer behind another: `sensor._composite`."""
    return tl.minimum(tl.maximum(1 - front, 0.0), opacity) / tl.maximum(opacity, 1e-6)


@triton.jit
def _defocus(
    image, depths, lens, which, source, out,
    height, width,
    LEVEL: tl.constexpr, SPACING: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Apply one blur level to the selected images.

    source, out: red, green, blue and opacity of the background, then of the foreground. Level 3 starts from the image;
    level 0 writes to the image.
    """
    number = tl.program_id(1)
    chosen = tl.load(which + number).to(tl.int64)
    pixels = height * width
    offset = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = offset < pixels
    offset = tl.minimum(offset, pixels - 1)
    row, column = offset // width, offset % width
    aperture, focus = tl.load(lens + 2 * chosen), tl.load(lens + 2 * chosen + 1)
    depth = tl.load(depths + chosen * pixels + offset)
    nearness = aperture * (tl.div_rn(1.0, tl.maximum(depth, NEAREST)) - tl.div_rn(1.0, tl.maximum(focus, NEAREST)))
    near = _levels(nearness)
    far = _levels(-nearness)
    image += 3 * chosen * pixels
    source += 8 * number.to(tl.int64) * pixels
    out += 8 * number.to(tl.int64) * pixels
    behind_share, before_share = tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32)
    behind_opacity, before_opacity = far[LEVEL], near[LEVEL]
    sharp, seen_opacity = near[0] * far[0], tl.zeros((SIZE,), tl.float32)
    if LEVEL < 3:
        opacity = _blurred(source + 3 * pixels, row, column, height, width, SPACING)
        ahead = _blurred(source + 7 * pixels, row, column, height, width, SPACING)
        if LEVEL > 0:
            behind_share, before_share = _share(opacity, far[LEVEL]), _share(near[LEVEL], ahead)
            behind_opacity, before_opacity = far[LEVEL] + opacity * behind_share, ahead + near[LEVEL] * before_share
        else:
            # A pixel is on one side of the focus: one of its two sharp weights is 1, and the product is the other.
            behind_share = _share(opacity, sharp)
            seen_opacity = sharp + opacity * behind_share
            before_share = _share(seen_opacity, ahead)
            seen_opacity = ahead + seen_opacity * before_share
    for channel in tl.static_range(3):
        color = tl.load(image + channel * pixels + offset)
        if LEVEL == 3:
            behind, before = color * far[3], color * near[3]
        else:
            behind = _blurred(source + channel * pixels, row, column, height, width, SPACING)
            before = _blurred(source + (4 + channel) * pixels, row, column, height, width, SPACING)
            if LEVEL > 0:
                behind = color * far[LEVEL] + behind * behind_share
                before = before + color * near[LEVEL] * before_share
        if LEVEL > 0:
            tl.store(out + channel * pixels + offset, behind, inside)
            tl.store(out + (4 + channel) * pixels + offset, before, inside)
        else:
            seen = before + (color * sharp + behind * behind_share) * before_share
            # Normalize by opacity: uncovered light is missing, not black.
            tl.store(
                image + channel * pixels + offset, clamp01(tl.div_rn(seen, tl.maximum(seen_opacity, 1e-6))), inside
            )
    if LEVEL > 0:
        tl.store(out + 3 * pixels + offset, behind_opacity, inside)
        tl.store(out + 7 * pixels + offset, before_opacity, inside)


@triton.jit
def _word(index, low, high):
    """Compute `rng.hashed_uniform` of an index; words of 32 bits."""
    word = tl.add(index.to(tl.uint32), low, sanitize_overflow=False)
    word = word ^ (word >> 16)
    word = tl.mul(word, 0x7FEB352D, sanitize_overflow=False) ^ high
    word = word ^ (word >> 15)
    word = tl.mul(word, 0x846CA68B, sanitize_overflow=False)
    word = word ^ (word >> 16)
    return ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def _sensed(image, numbers, offset, inside, normal, height, width, corner):
    """Apply exposure, vignette and noise, in place. numbers: of the image, as in `developed_`."""
    value = tl.load(image + offset, inside, 0.0)
    channel, within = offset // (height * width), offset % (height * width)
    gamma, lift, dim = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    read, shot = tl.load(numbers + 6), tl.load(numbers + 7)
    light = clamp01(value * tl.load(numbers + channel, inside, 0.0))
    toned = tl.where(light > 0, tl.exp2(gamma * tl.log2(tl.maximum(light, 1e-30))), 0.0)
    toned = clamp01(tl.where(gamma == 1, light, toned) + lift)
    y, x = within // width - (height - 1) * 0.5, within % width - (width - 1) * 0.5
    toned = toned * (1 - dim * tl.div_rn(y * y + x * x, corner))
    tl.store(image + offset, clamp01(toned + tl.sqrt_rn(read * read + shot * shot * toned) * normal), inside)


@triton.jit
def _develop(image, numbers, keys, count, half, height, width, corner, SIZE: tl.constexpr):
    """Process values i and half + i together: Box-Muller makes two normal numbers of two uniform ones."""
    number = tl.program_id(1)
    offset = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    low, high = tl.load(keys + 2 * number).to(tl.uint32), tl.load(keys + 2 * number + 1).to(tl.uint32)
    radius = tl.sqrt_rn(-2 * tl.log(_word(offset, low, high)))
    turn = TURN * _word(offset + half, low, high)
    image += number.to(tl.int64) * count
    numbers += 8 * number
    _sensed(image, numbers, offset, offset < half, radius * tl.cos(turn), height, width, corner)
    offset += half
    _sensed(image, numbers, offset, offset < count, radius * tl.sin(turn), height, width, corner)


@triton.jit
def _quantized(plane, cosines, steps, row, column, SIZE: tl.constexpr):
    """`sensor._quantize_blocks` of SIZE x SIZE values, two blocks along each side. cosines: SIZE x SIZE."""
    step = tl.load(steps + (row % 8)[:, None] * 8 + (column % 8)[None, :])
    forward = tl.load(cosines + row[:, None] * SIZE + column[None, :])
    back = tl.load(cosines + column[None, :] * SIZE + row[:, None])
    coefficients = tl.dot(tl.dot(forward, plane, input_precision="ieee"), back, input_precision="ieee")
    kept = tl.floor(tl.div_rn(tl.abs(coefficients), step) + HALF) * step
    kept = tl.where(coefficients < 0, -kept, kept)
    values = tl.dot(tl.dot(back, kept, input_precision="ieee"), forward, input_precision="ieee")
    return tl.minimum(tl.maximum(tl.floor(values + HALF), -128.0), 127.0)


@triton.jit
def _luma_at(image, pixels, offset):
    """Return unrounded luma, and red and blue: 0 .. 255."""
    red, green = rounded(tl.load(image + offset) * 255), rounded(tl.load(image + pixels + offset) * 255)
    blue = rounded(tl.load(image + 2 * pixels + offset) * 255)
    return 0.299 * red + 0.587 * green + 0.114 * blue, red, blue


@triton.jit
def _luma(image, cosines, steps, out, height, width, tall, wide, SIZE: tl.constexpr):
    """Compute the luma of a tile. tall x wide: the image size rounded up to whole tiles."""
    number, tile = tl.program_id(1), tl.program_id(0)
    top, left = tile // (wide // SIZE) * SIZE, tile % (wide // SIZE) * SIZE
    row, column = tl.arange(0, SIZE), tl.arange(0, SIZE)
    offset = tl.minimum(top + row, height - 1)[:, None] * width + tl.minimum(left + column, width - 1)[None, :]
    luma, _, _ = _luma_at(image + number.to(tl.int64) * 3 * height * width, height * width, offset)
    kept = _quantized(rounded(luma) - 128, cosines, steps + number * 128, row, column, SIZE)
    out += number.to(tl.int64) * tall * wide
    tl.store(out + (top + row)[:, None] * wide + (left + column)[None, :], kept.to(tl.int32).to(tl.int8))


@triton.jit
def _chroma(image, cosines, steps, out, height, width, tall, wide, SIZE: tl.constexpr):
    """Compute the subsampled chroma of a tile: N x 2 x tall x wide."""
    number, tile = tl.program_id(1), tl.program_id(0)
    across = tl.cdiv(wide, SIZE)
    top, left = tile // across * SIZE, tile % across * SIZE
    row, column = tl.arange(0, SIZE), tl.arange(0, SIZE)
    image += number.to(tl.int64) * 3 * height * width
    to_blue, to_red = tl.zeros((SIZE, SIZE), tl.float32), tl.zeros((SIZE, SIZE), tl.float32)
    for part in tl.static_range(4):
        y = tl.minimum(2 * (top + row) + part // 2, height - 1)
        x = tl.minimum(2 * (left + column) + part % 2, width - 1)
        luma, red, blue = _luma_at(image, height * width, y[:, None] * width + x[None, :])
        to_blue += tl.minimum(rounded(tl.div_rn(blue - luma, 1.772)), 127.0)
        to_red += tl.minimum(rounded(tl.div_rn(red - luma, 1.402)), 127.0)
    # Halves round down and up in alternating columns, as in encoders.
    bias = (column % 2 + 1)[None, :]
    steps += number * 128 + 64
    to_blue = _quantized(tl.floor((to_blue + bias) * 0.25), cosines, steps, row, column, SIZE)
    to_red = _quantized(tl.floor((to_red + bias) * 0.25), cosines, steps, row, column, SIZE)
    inside = (top + row < tall)[:, None] & (left + column < wide)[None, :]
    out += number.to(tl.int64) * 2 * tall * wide + (top + row)[:, None] * wide + (left + column)[None, :]
    tl.store(out, to_blue.to(tl.int32).to(tl.int8), inside)
    tl.store(out + tall * wide, to_red.to(tl.int32).to(tl.int8), inside)


@triton.jit
def _doubled(chroma, above, beside, row, column, wide):
    """Interpolate chroma between pixel centers. above, beside: the other row and column, weighted by a quarter."""
    here = 0.75 * tl.load(chroma + row * wide + column).to(tl.float32)
    here += 0.25 * tl.load(chroma + above * wide + column).to(tl.float32)
    inside = 0.75 * tl.load(chroma + row * wide + beside).to(tl.float32)
    inside += 0.25 * tl.load(chroma + above * wide + beside).to(tl.float32)
    return 0.75 * here + 0.25 * inside


@triton.jit
def _level(value):
    """Round to a multiple of 1 / 255."""
    return tl.div_rn(tl.minimum(tl.maximum(rounded(value), 0.0), 255.0), 255.0)


@triton.jit
def _to_rgb(luma, chroma, out, height, width, tall, wide, SIZE: tl.constexpr):
    """Convert to RGB. tall, wide: size of the chroma; that of the luma is twice as large."""
    number = tl.program_id(1)
    offset = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = offset < height * width
    offset = tl.minimum(offset, height * width - 1)
    y, x = offset // width, offset % width
    bright = tl.load(luma + number.to(tl.int64) * 4 * tall * wide + y * 2 * wide + x).to(tl.float32) + 128
    row, column = y // 2, x // 2
    above = tl.minimum(tl.maximum(row + 2 * (y % 2) - 1, 0), tall - 1)
    beside = tl.minimum(tl.maximum(column + 2 * (x % 2) - 1, 0), wide - 1)
    chroma += number.to(tl.int64) * 2 * tall * wide
    to_blue = _doubled(chroma, above, beside, row, column, wide)
    to_red = _doubled(chroma + tall * wide, above, beside, row, column, wide)
    green = bright - tl.div_rn(0.114 * 1.772 * to_blue + 0.299 * 1.402 * to_red, 0.587)
    out += number.to(tl.int64) * 3 * height * width + offset
    tl.store(out, _level(bright + 1.402 * to_red), inside)
    tl.store(out + height * width, _level(green), inside)
    tl.store(out + 2 * height * width, _level(bright + 1.772 * to_blue), inside)


@cache
def _cosines(device: torch.device) -> Tensor:
    """Return the orthonormal DCT of two blocks at once: TILE x TILE, frequencies by samples."""
    rows = enumerate(sensor.COSINES)
    eight = torch.tensor([[*row, *((-1) ** u * value for value in reversed(row))] for u, row in rows])
    cosines: Tensor = torch.block_diag(eight, eight)
    return cosines.to(device)


def defocus_(image: Tensor, depth: Tensor, lens: Tensor, which: Tensor) -> None:
    """Run `sensor.defocus` on selected images, in place. lens: N x 2, aperture and focus. which: images, int64."""
    height, width = image.shape[-2:]
    layers = [image.new_empty(len(which), 8, height, width) for _ in range(2)]
    depth = depth.contiguous()
    for level, spacing in ((3, 0), *((level, sensor.SPACINGS[level]) for level in (2, 1, 0))):
        _defocus[(triton.cdiv(height * width, BLOCK), len(which))](
            image, depth, lens, which, layers[level % 2], layers[1 - level % 2], height, width,
            LEVEL=level, SPACING=spacing, SIZE=BLOCK,
        )  # fmt: skip


def developed_(image: Tensor, numbers: Tensor, words: Tensor) -> None:
    """Run `sensor.expose`, `sensor.vignette` and `sensor.sensor_noise`, in place.

    numbers: N x 8, color gains, gamma, offset, vignette strength, read and shot noise. words: N x 2, int64, from
    `key_words`.
    """
    batch, channels, height, width = image.shape
    count = channels * height * width
    half = (count + 1) // 2
    corner = max(1.0, ((height - 1) ** 2 + (width - 1) ** 2) / 4)
    _develop[(triton.cdiv(half, BLOCK), batch)](
        image, numbers, words, count, half, height, width, corner, SIZE=BLOCK, enable_fp_fusion=False
    )


def key_words(keys: Tensor) -> Tensor:
    """Hash the keys of `sensor_noise` for `developed_`: N x 2."""
    return torch.stack(spread_keys(keys), dim=1)


def compressed(image: Tensor, steps: Tensor) -> Tensor:
    """Run `sensor.compress`. steps: N x 2 x 8 x 8, from `sensor.steps_of`."""
    batch, _, height, width = image.shape
    image, steps, cosines = image.contiguous(), steps.contiguous(), _cosines(image.device)
    tall, wide = triton.cdiv(height, TILE) * TILE, triton.cdiv(width, TILE) * TILE
    luma = torch.empty(batch, tall, wide, dtype=torch.int8, device=image.device)
    _luma[(tall // TILE * (wide // TILE), batch)](
        image, cosines, steps, luma, height, width, tall, wide, SIZE=TILE, enable_fp_fusion=False
    )
    tall, wide = tall // 2, wide // 2
    chroma = torch.empty(batch, 2, tall, wide, dtype=torch.int8, device=image.device)
    _chroma[(triton.cdiv(tall, TILE) * triton.cdiv(wide, TILE), batch)](
        image, cosines, steps, chroma, height, width, tall, wide, SIZE=TILE, enable_fp_fusion=False
    )
    out = torch.empty_like(image)
    _to_rgb[(triton.cdiv(height * width, BLOCK), batch)](
        luma, chroma, out, height, width, tall, wide, SIZE=BLOCK, enable_fp_fusion=False
    )
    return out
