"""What a lens, a sensor and a codec do to a clean image.

Images are float32 RGB in [0, 1], N x 3 x H x W, in and out; every other number is a tensor of N, one an image. All is
arithmetic pixel by pixel on shifted copies, without a look at the values: an image comes out the same in any batch.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.synthetic.rng import hashed_normal

Transform = Callable[[Sequence[Tensor]], list[Tensor]]

# Each blur is (1, 2, 1) / 4 along rows and columns with its taps this many pixels apart: together, a tent.
SPACINGS = (1, 2, 4)
# A disc of diameter d has the variance d^2 / 16 along an axis; these blurs have spacing^2 / 2. Squared diameters:
_SQUARED_DIAMETERS = (0.0, 8.0, 40.0, 168.0)
NEAREST = 1e-3  # meters: closer than this is no scene

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
# Flat blocks often lie half way between two levels, and codecs round those up: so does this, whatever the last bits.
HALF = 0.501
# Row u: the cosine of frequency u at the samples 0 .. 3 of eight; the other four mirror them, with a minus if u is odd.
COSINES = tuple(
    tuple((0.5 if u else math.sqrt(0.125)) * math.cos((2 * k + 1) * u * math.pi / 16) for k in range(4))
    for u in range(8)
)


def defocus(image: Tensor, depth: Tensor, focus: Tensor, aperture: Tensor) -> Tensor:
    """Blur by a circle of diameter aperture * |1 / depth - 1 / focus| pixels, at most 12.96.

    depth: N x 1 x H x W, meters, infinity allowed; focus: N, meters; aperture: N, pixels times meters, 0 for an image
    sharp throughout. The blur's deviation along an axis is that of the circle, a quarter of the diameter.

    What is in front hides what is behind: things behind the focus blur without mixing with sharper ones before them,
    things before the focus blur over all else.
    """
    inverse_focus = 1 / focus.clamp_min(NEAREST)
    nearness = _each(aperture) * (1 / depth.clamp_min(NEAREST) - _each(inverse_focus))
    near, far = _levels(nearness.clamp_min(0)), _levels((-nearness).clamp_min(0))
    opaque = torch.cat((image, torch.ones_like(depth)), dim=1)

    # Each side sums what lies between its levels, blurring as it goes: the outermost level passes every blur.
    behind, before = opaque * far[-1], opaque * near[-1]
    for level in (2, 1):
        behind = _over(opaque * far[level], _blur(behind, SPACINGS[level]))
        before = _over(_blur(before, SPACINGS[level]), opaque * near[level])
    behind, before = _blur(behind, SPACINGS[0]), _blur(before, SPACINGS[0])
    # A pixel is on one side, so that of the two sharp shares one is 1 and the other counts.
    seen = _over(before, _over(opaque * (near[0] * far[0]), behind))
    # Light that came from outside the levels' own pixels is missing, not black.
    return (seen[:, :3] / seen[:, 3:].clamp_min(1e-6)).clamp(0, 1)


def vignette(image: Tensor, strength: Tensor) -> Tensor:
    """Darken with the squared distance from the center; strength: N, the share of light lost in the corners."""
    height, width = image.shape[-2:]
    y = torch.arange(height, device=image.device, dtype=image.dtype) - (height - 1) / 2
    x = torch.arange(width, device=image.device, dtype=image.dtype) - (width - 1) / 2
    corner = max(1.0, ((height - 1) ** 2 + (width - 1) ** 2) / 4)
    squared = (y[:, None] ** 2 + x**2) / corner
    return image * (1 - _each(strength) * squared)


def expose(image: Tensor, gain: Tensor, gamma: Tensor, offset: Tensor) -> Tensor:
    """(gain * image) ** gamma + offset, kept to [0, 1] after the gain, as a sensor saturates, and at the end.

    gain: N, or N x 3 to shift the white balance; gamma: N, positive, below 1 lightens; offset: N, lifts the blacks.
    """
    light = (image * gain.reshape(len(image), -1, 1, 1)).clamp(0, 1)
    # A power of 1 is not the identity to the last bit everywhere.
    toned = torch.where(_each(gamma) == 1, light, light ** _each(gamma))
    return (toned + _each(offset)).clamp(0, 1)


def sensor_noise(image: Tensor, keys: Tensor, read: Tensor, shot: Tensor) -> Tensor:
    """Add independent Gaussian noise to every value, kept to [0, 1].

    keys: N, int64, which decide the noise. read: N, its deviation at black, the electronics' own; shot: N, that which
    counting photons adds at white, and which grows with the root of the signal. 1 is the range of the image.
    """
    deviation = (_each(read) ** 2 + _each(shot) ** 2 * image).sqrt()
    return (image + deviation * hashed_normal(keys, tuple(image.shape[1:]), image.device)).clamp(0, 1)


def compress(image: Tensor, quality: Tensor) -> Tensor:
    """The image after JPEG with chroma at half size: whole multiples of 1 / 255.

    quality: N, 1 (worst) to 100, on the usual scale of encoders.
    """
    height, width = image.shape[-2:]
    padded = F.pad((image * 255).round(), (0, -width % 16, 0, -height % 16), mode="replicate")
    luma, chroma = _to_ycbcr(padded)
    luma = _quantized(luma, _table(_LUMINANCE, quality))
    chroma = _doubled(_quantized(_halved(chroma), _table(_CHROMINANCE, quality)))
    return (_to_rgb(luma, chroma)[..., :height, :width].round().clamp(0, 255) / 255).contiguous()


def steps_of(quality: Tensor) -> Tensor:
    """The steps of luma's and chroma's frequencies in `compress`: N x 2 x 8 x 8."""
    tables = [_table(base, quality)[..., 0, 0, 0] for base in (_LUMINANCE, _CHROMINANCE)]
    return torch.stack(tables).permute(3, 0, 1, 2)


def _each(numbers: Tensor) -> Tensor:
    """One number an image, N to N x 1 x 1 x 1."""
    return numbers.view(-1, 1, 1, 1)


def _levels(diameter: Tensor) -> list[Tensor]:
    """Shares of the levels of blur that together have the variance of a circle of this diameter; they sum to 1."""
    squared = diameter**2
    passed = [
        ((squared - below) / (above - below)).clamp(0, 1) for below, above in itertools.pairwise(_SQUARED_DIAMETERS)
    ]
    return [1 - passed[0], passed[0] - passed[1], passed[1] - passed[2], passed[2]]


def _blur(layer: Tensor, spacing: int) -> Tensor:
    """(1, 2, 1) / 4 along both axes, taps `spacing` pixels apart, the border repeated."""
    height, width = layer.shape[-2:]
    wide = F.pad(layer, (spacing, spacing, 0, 0), mode="replicate")
    rows = (wide[..., :width] + wide[..., 2 * spacing :]).add_(layer, alpha=2)
    tall = F.pad(rows, (0, 0, spacing, spacing), mode="replicate")
    return (tall[..., :height, :] + tall[..., 2 * spacing :, :]).add_(rows, alpha=2).mul_(1 / 16)


def _over(front: Tensor, back: Tensor) -> Tensor:
    """The front layer, and of the back one what there is room for: N x 4 x H x W, color times opacity, and opacity.

    Unlike the usual product of transparencies, shares of one surface that sum to 1 stay a sum.
    """
    opacity = back[:, 3:]
    room = (1 - front[:, 3:]).clamp_min(0)
    return front + back * (torch.minimum(room, opacity) / opacity.clamp_min(1e-6))


def _to_ycbcr(rgb: Tensor) -> tuple[Tensor, Tensor]:
    """RGB in 0 .. 255 to whole luma N x 1 x H x W and chroma N x 2 x H x W, all about 0."""
    red, green, blue = rgb.split(1, dim=1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    chroma = torch.cat(((blue - luma) / 1.772, (red - luma) / 1.402), dim=1)
    return luma.round() - 128, chroma.round().clamp(-128, 127)


def _to_rgb(luma: Tensor, chroma: Tensor) -> Tensor:
    """The way back from `_to_ycbcr`, not rounded and not kept to the range."""
    to_blue, to_red = chroma.split(1, dim=1)
    luma = luma + 128
    red, blue = luma + 1.402 * to_red, luma + 1.772 * to_blue
    green = luma - (0.114 * 1.772 * to_blue + 0.299 * 1.402 * to_red) / 0.587
    return torch.cat((red, green, blue), dim=1)


def _halved(chroma: Tensor) -> Tensor:
    """The mean of every 2 x 2 pixels, whole; halves go down in one column and up in the next, as encoders have it."""
    rows = chroma[..., ::2, :] + chroma[..., 1::2, :]
    bias = torch.arange(chroma.shape[-1] // 2, device=chroma.device) % 2 + 1
    return ((rows[..., ::2] + rows[..., 1::2] + bias) * 0.25).floor()


def _doubled(chroma: Tensor) -> Tensor:
    """Twice the size, linear between the centers of pixels."""
    count, channels, height, width = chroma.shape
    chroma, tall = chroma * 0.75, F.pad(chroma * 0.25, (0, 0, 1, 1), mode="replicate")
    rows = torch.stack((chroma + tall[..., :-2, :], chroma + tall[..., 2:, :]), dim=3)
    rows = rows.view(count, channels, 2 * height, width)
    rows, wide = rows * 0.75, F.pad(rows * 0.25, (1, 1, 0, 0), mode="replicate")
    columns = torch.stack((rows + wide[..., :-2], rows + wide[..., 2:]), dim=4)
    return columns.view(count, channels, 2 * height, 2 * width)


def _table(base: Sequence[Sequence[int]], quality: Tensor) -> Tensor:
    """Steps of the 8 x 8 frequencies at each quality: 8 x 8 x N x 1 x 1 x 1."""
    scale = torch.where(quality < 50, (5000 / quality).floor(), 200 - 2 * quality)
    steps = torch.tensor(base, device=quality.device, dtype=torch.float32)[..., None]
    return ((steps * scale + 50) / 100).floor().clamp(1, 255)[..., None, None, None]


def _quantized(planes: Tensor, steps: Tensor) -> Tensor:
    """Planes N x C x H x W about 0, sides multiples of 8, with every 8 x 8 block's frequencies rounded to the steps."""
    count, channels, height, width = planes.shape
    blocks = planes.view(count, channels, height // 8, 8, width // 8, 8)
    # Place in the block first, so that one place of all blocks lies together in memory.
    blocks = blocks.permute(3, 5, 0, 1, 2, 4).contiguous()
    frequencies = _along(_along(blocks, 0, _cosine_transform), 1, _cosine_transform)
    frequencies = ((frequencies.abs() / steps + HALF).floor() * steps).copysign(frequencies)
    blocks = _along(_along(frequencies, 0, _inverse_transform), 1, _inverse_transform)
    planes = blocks.permute(2, 3, 4, 0, 5, 1).reshape(count, channels, height, width)
    return (planes + HALF).floor().clamp(-128, 127)


def _along(blocks: Tensor, dim: int, transform: Transform) -> Tensor:
    return torch.stack(transform(blocks.unbind(dim)), dim=dim)


def _cosine_transform(samples: Sequence[Tensor]) -> list[Tensor]:
    """Eight samples to eight frequencies, orthonormal."""
    # Sums in this very order: a matrix product promises none, and a last bit can turn a rounding.
    sums = [samples[k] + samples[7 - k] for k in range(4)]
    differences = [samples[k] - samples[7 - k] for k in range(4)]
    return [_weighted(COSINES[u], differences if u % 2 else sums) for u in range(8)]


def _inverse_transform(frequencies: Sequence[Tensor]) -> list[Tensor]:
    """The way back from `_cosine_transform`."""
    even = [_weighted([COSINES[u][k] for u in (0, 2, 4, 6)], frequencies[0::2]) for k in range(4)]
    odd = [_weighted([COSINES[u][k] for u in (1, 3, 5, 7)], frequencies[1::2]) for k in range(4)]
    return [even[k] + odd[k] for k in range(4)] + [even[k] - odd[k] for k in (3, 2, 1, 0)]


def _weighted(weights: Sequence[float], terms: Sequence[Tensor]) -> Tensor:
    total = terms[0] * weights[0]
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        total = total + term * weight
    return total
