"""Lens, sensor and codec model of the final pass.

Images are float32 RGB in [0, 1], N x 3 x H x W, in and out; every other parameter is a tensor of N, one per image. All
operations are elementwise on shifted copies and independent of the batch, so that an image comes out the same in any
batch.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.synthetic.rng import hashed_normal

Transform = Callable[[Sequence[Tensor]], list[Tensor]]

# Each blur is (1, 2, 1) / 4 along rows and columns with taps this many pixels apart; together they form a tent.
SPACINGS = (1, 2, 4)
# A disc of diameter d has the variance d^2 / 16 along an axis; these blurs have spacing^2 / 2. Squared diameters:
_SQUARED_DIAMETERS = (0.0, 8.0, 40.0, 168.0)
NEAREST = 1e-3  # minimum depth, meters

_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8 for _ in range(4)),
)
# Flat blocks often lie halfway between two levels, which codecs round up; slightly more than a half makes that robust.
HALF = 0.501
# Row u: the cosine of frequency u at the samples 0 .. 3 of eight; the other four mirror them, with a minus if u is odd.
COSINES = tuple(
    tuple((0.5 if u else math.sqrt(0.125)) * math.cos((2 * k + 1) * u * math.pi / 16) for k in range(4))
    for u in range(8)
)


def defocus(image: Tensor, depth: Tensor, focus: Tensor, aperture: Tensor) -> Tensor:
    """Blur by a circle of confusion of diameter aperture * |1 / depth - 1 / focus| pixels, at most 12.96.

    The standard deviation of the blur along an axis is that of the circle, a quarter of its diameter. Occlusion is
    respected: surfaces behind the focus do not bleed into sharper ones in front of them, and surfaces in front of the
    focus blur over everything else.

    Args:
        image: N x 3 x H x W.
        depth: N x 1 x H x W, meters; infinity is allowed.
        focus: N, focus distance, meters.
        aperture: N, pixels times meters; 0 for an image that is sharp everywhere.
    """
    inverse_focus = 1 / focus.clamp_min(NEAREST)
    signed_diameter = _per_image(aperture) * (1 / depth.clamp_min(NEAREST) - _per_image(inverse_focus))
    near, far = _blur_weights(signed_diameter.clamp_min(0)), _blur_weights((-signed_diameter).clamp_min(0))
    opaque = torch.cat((image, torch.ones_like(depth)), dim=1)

    # Each side accumulates its levels and blurs after each step, so that the outermost level passes through every blur.
    background, foreground = opaque * far[-1], opaque * near[-1]
    for level in (2, 1):
        background = _composite(opaque * far[level], _blur(background, SPACINGS[level]))
        foreground = _composite(_blur(foreground, SPACINGS[level]), opaque * near[level])
    background, foreground = _blur(background, SPACINGS[0]), _blur(foreground, SPACINGS[0])
    # A pixel is on one side of the focus: one of its two sharp weights is 1, and the product is the other.
    composited = _composite(foreground, _composite(opaque * (near[0] * far[0]), background))
    # Normalize by opacity: uncovered light is missing, not black.
    return (composited[:, :3] / composited[:, 3:].clamp_min(1e-6)).clamp(0, 1)


def vignette(image: Tensor, strength: Tensor) -> Tensor:
    """Darken with the squared distance from the center; strength: N, fraction of light lost in the corners."""
    height, width = image.shape[-2:]
    y = torch.arange(height, device=image.device, dtype=image.dtype) - (height - 1) / 2
    x = torch.arange(width, device=image.device, dtype=image.dtype) - (width - 1) / 2
    corner = max(1.0, ((height - 1) ** 2 + (width - 1) ** 2) / 4)
    squared = (y[:, None] ** 2 + x**2) / corner
    return image * (1 - _per_image(strength) * squared)


def expose(image: Tensor, gain: Tensor, gamma: Tensor, offset: Tensor) -> Tensor:
    """Compute (gain * image) ** gamma + offset, clamped to [0, 1] after the gain (saturation) and at the end.

    `gain` is N, or N x 3 to shift the white balance; a gamma below 1 brightens; `offset` raises the black level.
    """
    linear = (image * gain.reshape(len(image), -1, 1, 1)).clamp(0, 1)
    # x ** 1 is not bit-exact on every device.
    curved = torch.where(_per_image(gamma) == 1, linear, linear ** _per_image(gamma))
    return (curved + _per_image(offset)).clamp(0, 1)


def sensor_noise(image: Tensor, keys: Tensor, read: Tensor, shot: Tensor) -> Tensor:
    """Add independent Gaussian noise to every value and clamp to [0, 1].

    Args:
        image: N x 3 x H x W.
        keys: N, int64, keys that determine the noise.
        read: N, standard deviation at black (read noise), relative to the image range of 1.
        shot: N, standard deviation that photon noise adds at white; it grows with the square root of the signal.
    """
    deviation = (_per_image(read) ** 2 + _per_image(shot) ** 2 * image).sqrt()
    return (image + deviation * hashed_normal(keys, tuple(image.shape[1:]), image.device)).clamp(0, 1)


def compress(image: Tensor, quality: Tensor) -> Tensor:
    """Simulate JPEG compression with 4:2:0 chroma subsampling; values are multiples of 1 / 255.

    Args:
        image: N x 3 x H x W.
        quality: N, 1 (worst) to 100, on the usual encoder scale.
    """
    height, width = image.shape[-2:]
    padded = F.pad((image * 255).round(), (0, -width % 16, 0, -height % 16), mode="replicate")
    luma, chroma = _to_ycbcr(padded)
    luma = _quantize_blocks(luma, _quantization_table(_LUMINANCE, quality))
    chroma = _upsample_chroma(_quantize_blocks(_downsample_chroma(chroma), _quantization_table(_CHROMINANCE, quality)))
    return (_to_rgb(luma, chroma)[..., :height, :width].round().clamp(0, 255) / 255).contiguous()


def steps_of(quality: Tensor) -> Tensor:
    """Return the quantization steps of luma and chroma in `compress`: N x 2 x 8 x 8."""
    tables = [_quantization_table(base, quality)[..., 0, 0, 0] for base in (_LUMINANCE, _CHROMINANCE)]
    return torch.stack(tables).permute(3, 0, 1, 2)


def _per_image(numbers: Tensor) -> Tensor:
    """Reshape one value per image for broadcasting: N to N x 1 x 1 x 1."""
    return numbers.view(-1, 1, 1, 1)


def _blur_weights(diameter: Tensor) -> list[Tensor]:
    """Return weights of the blur levels, summing to 1, that match the variance of a circle of this diameter."""
    squared = diameter**2
    fractions = [
        ((squared - below) / (above - below)).clamp(0, 1) for below, above in itertools.pairwise(_SQUARED_DIAMETERS)
    ]
    return [1 - fractions[0], fractions[0] - fractions[1], fractions[1] - fractions[2], fractions[2]]


def _blur(layer: Tensor, spacing: int) -> Tensor:
    """Apply (1, 2, 1) / 4 along both axes with taps `spacing` pixels apart and replicated borders."""
    height, width = layer.shape[-2:]
    wide = F.pad(layer, (spacing, spacing, 0, 0), mode="replicate")
    rows = (wide[..., :width] + wide[..., 2 * spacing :]).add_(layer, alpha=2)
    tall = F.pad(rows, (0, 0, spacing, spacing), mode="replicate")
    return (tall[..., :height, :] + tall[..., 2 * spacing :, :]).add_(rows, alpha=2).mul_(1 / 16)


def _composite(front: Tensor, back: Tensor) -> Tensor:
    """Composite premultiplied RGBA layers, N x 4 x H x W: the front one, then as much of the back one as fits.

    Unlike the usual over operator, fractions of one surface that sum to 1 remain a sum.
    """
    opacity = back[:, 3:]
    remaining = (1 - front[:, 3:]).clamp_min(0)
    return front + back * (torch.minimum(remaining, opacity) / opacity.clamp_min(1e-6))


def _to_ycbcr(rgb: Tensor) -> tuple[Tensor, Tensor]:
    """Convert RGB in 0 .. 255 to integer luma N x 1 x H x W and chroma N x 2 x H x W, all centered at 0."""
    red, green, blue = rgb.split(1, dim=1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    chroma = torch.cat(((blue - luma) / 1.772, (red - luma) / 1.402), dim=1)
    return luma.round() - 128, chroma.round().clamp(-128, 127)


def _to_rgb(luma: Tensor, chroma: Tensor) -> Tensor:
    """Invert `_to_ycbcr` without rounding or clamping."""
    cb, cr = chroma.split(1, dim=1)
    luma = luma + 128
    red, blue = luma + 1.402 * cr, luma + 1.772 * cb
    green = luma - (0.114 * 1.772 * cb + 0.299 * 1.402 * cr) / 0.587
    return torch.cat((red, green, blue), dim=1)


def _downsample_chroma(chroma: Tensor) -> Tensor:
    """Average 2 x 2 pixels to integers; halves round down and up in alternating columns, as in encoders."""
    rows = chroma[..., ::2, :] + chroma[..., 1::2, :]
    bias = torch.arange(chroma.shape[-1] // 2, device=chroma.device) % 2 + 1
    return ((rows[..., ::2] + rows[..., 1::2] + bias) * 0.25).floor()


def _upsample_chroma(chroma: Tensor) -> Tensor:
    """Double the size, linear between pixel centers."""
    count, channels, height, width = chroma.shape
    chroma, tall = chroma * 0.75, F.pad(chroma * 0.25, (0, 0, 1, 1), mode="replicate")
    rows = torch.stack((chroma + tall[..., :-2, :], chroma + tall[..., 2:, :]), dim=3)
    rows = rows.view(count, channels, 2 * height, width)
    rows, wide = rows * 0.75, F.pad(rows * 0.25, (1, 1, 0, 0), mode="replicate")
    columns = torch.stack((rows + wide[..., :-2], rows + wide[..., 2:]), dim=4)
    return columns.view(count, channels, 2 * height, 2 * width)


def _quantization_table(base: Sequence[Sequence[int]], quality: Tensor) -> Tensor:
    """Return the steps of the 8 x 8 frequencies at each quality: 8 x 8 x N x 1 x 1 x 1."""
    scale = torch.where(quality < 50, (5000 / quality).floor(), 200 - 2 * quality)
    steps = torch.tensor(base, device=quality.device, dtype=torch.float32)[..., None]
    return ((steps * scale + 50) / 100).floor().clamp(1, 255)[..., None, None, None]


def _quantize_blocks(planes: Tensor, steps: Tensor) -> Tensor:
    """Quantize the frequencies of 8 x 8 blocks of planes N x C x H x W centered at 0, sides multiples of 8."""
    count, channels, height, width = planes.shape
    blocks = planes.view(count, channels, height // 8, 8, width // 8, 8)
    # Position in the block first, so that equal positions of all blocks are contiguous in memory.
    blocks = blocks.permute(3, 5, 0, 1, 2, 4).contiguous()
    frequencies = _transform_axis(_transform_axis(blocks, 0, _dct), 1, _dct)
    frequencies = ((frequencies.abs() / steps + HALF).floor() * steps).copysign(frequencies)
    blocks = _transform_axis(_transform_axis(frequencies, 0, _inverse_dct), 1, _inverse_dct)
    planes = blocks.permute(2, 3, 4, 0, 5, 1).reshape(count, channels, height, width)
    return (planes + HALF).floor().clamp(-128, 127)


def _transform_axis(blocks: Tensor, dim: int, transform: Transform) -> Tensor:
    return torch.stack(transform(blocks.unbind(dim)), dim=dim)


def _dct(samples: Sequence[Tensor]) -> list[Tensor]:
    """Transform eight samples to eight frequencies, orthonormal (DCT-II)."""
    # Fixed summation order: that of a matrix product is unspecified, and a last bit can change the rounding.
    sums = [samples[k] + samples[7 - k] for k in range(4)]
    differences = [samples[k] - samples[7 - k] for k in range(4)]
    return [_weighted_sum(COSINES[u], differences if u % 2 else sums) for u in range(8)]


def _inverse_dct(frequencies: Sequence[Tensor]) -> list[Tensor]:
    """Invert `_dct`."""
    even = [_weighted_sum([COSINES[u][k] for u in (0, 2, 4, 6)], frequencies[0::2]) for k in range(4)]
    odd = [_weighted_sum([COSINES[u][k] for u in (1, 3, 5, 7)], frequencies[1::2]) for k in range(4)]
    return [even[k] + odd[k] for k in range(4)] + [even[k] - odd[k] for k in (3, 2, 1, 0)]


def _weighted_sum(weights: Sequence[float], terms: Sequence[Tensor]) -> Tensor:
    total = terms[0] * weights[0]
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        total = total + term * weight
    return total
