"""Changes of colour, blur, noise, and patches erased: batched, each sample by numbers of its own.

Everything here is arithmetic pixel by pixel, and means are sums of whole numbers, which no order of summation changes:
a sample comes out the same to the last bit whatever else is in its batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.world.scene import sent

_LUMA = (0.299, 0.587, 0.114)
_STEPS = 2**20  # of brightness between 0 and 1, when a mean is taken

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Jitter:
    """How the colours of one image change: three factors (1: as it was), and a turn of the hue, radians."""

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0


NEUTRAL = Jitter()


def jitter(images: Tensor, changes: Sequence[Jitter]) -> Tensor:
    """Brightness, contrast, saturation and hue, in this order, each kept to [0, 1].

    images: N x 3 x H x W, RGB in [0, 1]; changes: N of them. A neutral change leaves its image as it is.
    """
    numbers = [(change.brightness, change.contrast, change.saturation, change.hue) for change in changes]
    return jitter_by(images, torch.tensor(numbers, dtype=torch.float64).view(len(numbers), 4))


def jitter_by(images: Tensor, numbers: Tensor) -> Tensor:
    """As `jitter`; numbers: N x 4, brightness, contrast, saturation and hue."""
    table = sent(numbers.to(images.dtype).view(len(numbers), 4, 1, 1, 1), images.device)
    brightness, contrast, saturation, hue = table.unbind(dim=1)
    images = (images * brightness).clamp(0, 1)
    images = _blend(images, mean(_grey(images)), contrast)
    images = _blend(images, _grey(images), saturation)
    return turn_hue(images, hue)


def turn_hue(images: Tensor, angle: Tensor) -> Tensor:
    """Turn every hue of the HSV wheel, value and saturation kept, so colours stay in [0, 1] and grey stays grey.

    images: N x 3 x H x W, RGB in [0, 1]; angle: N x 1 x 1 x 1, radians, positive from red to green.
    """
    red, green, blue = images.split(1, dim=1)
    value, chroma = (
        images.amax(dim=1, keepdim=True),
        images.amax(dim=1, keepdim=True) - images.amin(dim=1, keepdim=True),
    )
    divisor = torch.where(chroma > 0, chroma, 1)
    # The hue in sixths of the wheel: red 0, green 2, blue 4.
    hue = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    hue = hue + angle * (3 / torch.pi)
    offset = sent(torch.tensor((5.0, 3.0, 1.0), dtype=images.dtype).view(1, 3, 1, 1), images.device)
    place = (hue + offset) % 6
    turned = value - chroma * torch.minimum(place, 4 - place).clamp(0, 1)
    return torch.where(angle == 0, images, turned.clamp(0, 1))


def erase(images: Tensor, boxes: Sequence[Sequence[Box]]) -> Tensor:
    """Fill boxes (x, y, w, h; pixels; those of each image) with the image's mean colour. images: N x 3 x H x W."""
    most = max((len(own) for own in boxes), default=0)
    if most == 0:
        return images
    padded = [[*own, *[(0, 0, 0, 0)] * (most - len(own))] for own in boxes]
    return erase_by(images, sent(torch.tensor(padded), images.device))


def erase_by(images: Tensor, boxes: Tensor) -> Tensor:
    """As `erase`; boxes: N x M x 4, whole numbers, where the images are; those without width hide nothing."""
    height, width = images.shape[-2:]
    left, top, wide, high = boxes[..., None].unbind(dim=2)
    x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
    columns, rows = (x >= left) & (x < left + wide), (y >= top) & (y < top + high)
    erased = (rows[..., :, None] & columns[..., None, :]).any(dim=1, keepdim=True)
    return torch.where(erased, mean(images), images)


def blur(images: Tensor, sigmas: Sequence[float]) -> Tensor:
    """As out of focus: a Gaussian of so many pixels, one an image, cut at 3 of them; 0 leaves an image as it is.

    images: N x 3 x H x W, repeated beyond their borders.
    """
    reach = math.ceil(3 * max(sigmas, default=0.0))
    if not reach:
        return images
    away = range(-reach, reach + 1)
    shares = [images.new_tensor([_gaussian(step, sigma) for sigma in sigmas]).view(-1, 1, 1, 1) for step in away]
    whole = sum(shares[1:], shares[0])
    for dim in (2, 3):
        length = images.shape[dim]
        place = torch.arange(length, device=images.device)
        parts = [
            share * images.index_select(dim, (place + step).clamp(0, length - 1))
            for share, step in zip(shares, away, strict=True)
        ]
        images = sum(parts[1:], parts[0]) / whole
    return images


def _gaussian(step: int, sigma: float) -> float:
    """How much a pixel so many steps away counts beside the one in the middle, which counts 1."""
    if abs(step) > math.ceil(3 * sigma):
        return 0.0
    return math.exp(-0.5 * (step / sigma) ** 2) if step else 1.0


def grain(images: Tensor, strengths: Sequence[float], seeds: Sequence[int]) -> Tensor:
    """Gaussian noise of a standard deviation, one an image, from a seed of its own; kept to [0, 1].

    images: N x 3 x H x W in [0, 1]. The noise is drawn on the CPU, so that it is the same on any device.
    """
    if not any(strengths):
        return images
    shape = images.shape[1:]
    noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
    return (images + noise.to(images) * images.new_tensor(strengths).view(-1, 1, 1, 1)).clamp(0, 1)


def mean(images: Tensor) -> Tensor:
    """The mean of every channel, to a millionth: N x C x H x W in [0, 1] to N x C x 1 x 1."""
    total = (images * _STEPS).round().long().sum(dim=(2, 3), keepdim=True)
    pixels = images.shape[2] * images.shape[3]
    return (total.double() / (_STEPS * pixels)).to(images.dtype)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    grey: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return grey


def _blend(images: Tensor, towards: Tensor, factor: Tensor) -> Tensor:
    """The images at factor 1, `towards` at factor 0, and further away from it beyond 1."""
    return (images * factor + towards * (1 - factor)).clamp(0, 1)
