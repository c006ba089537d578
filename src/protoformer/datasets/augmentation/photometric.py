"""Photometric augmentation of image batches: color jitter, blur, noise and erased boxes, with parameters per sample.

All operations are element-wise, and means are integer sums, which do not depend on the order of summation. The result
for a sample is therefore bit-identical whatever else is in its batch.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.config_reader import check_fields
from protoformer.synthetic.scene import to_device

_LUMA = (0.299, 0.587, 0.114)
_MEAN_STEPS = 2**20  # quantization of [0, 1] when a mean is taken

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Jitter:
    """Color jitter of one image: factors, 1 leaving the image unchanged, and the rotation of the hue in radians."""

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0


NEUTRAL = Jitter()


def jitter(images: Tensor, jitters: Sequence[Jitter]) -> Tensor:
    """Change brightness, contrast, saturation and hue of images, N x 3 x H x W in [0, 1], in this order.

    Values are clamped to [0, 1] after each; `NEUTRAL` leaves an image unchanged.
    """
    rows = [astuple(each) for each in jitters]
    return jitter_by(images, torch.tensor(rows, dtype=torch.float64).view(len(rows), 4))


def jitter_by(images: Tensor, params: Tensor) -> Tensor:
    """Apply `jitter` with parameters N x 4: brightness, contrast, saturation and hue."""
    table = to_device(params.to(images.dtype).view(len(params), 4, 1, 1, 1), images.device)
    brightness, contrast, saturation, hue = table.unbind(dim=1)
    images = (images * brightness).clamp(0, 1)
    images = _blend(images, mean(_gray(images)), contrast)
    images = _blend(images, _gray(images), saturation)
    return rotate_hue(images, hue)


def rotate_hue(images: Tensor, angle: Tensor) -> Tensor:
    """Rotate the hue in HSV space; value and saturation are preserved, so colors stay in [0, 1] and gray stays gray.

    `images` are N x 3 x H x W, RGB in [0, 1]; `angle` is N x 1 x 1 x 1, radians, positive from red to green.
    """
    red, green, blue = images.split(1, dim=1)
    value = images.amax(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    divisor = torch.where(chroma > 0, chroma, 1)
    # The hue in sixths of the wheel: red 0, green 2, blue 4.
    hue = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    hue = hue + angle * (3 / torch.pi)
    offset = to_device(torch.tensor((5.0, 3.0, 1.0), dtype=images.dtype).view(1, 3, 1, 1), images.device)
    sector = (hue + offset) % 6
    rotated = value - chroma * torch.minimum(sector, 4 - sector).clamp(0, 1)
    return torch.where(angle == 0, images, rotated.clamp(0, 1))


def erase(images: Tensor, boxes: Sequence[Sequence[Box]]) -> Tensor:
    """Fill boxes (x, y, w, h), in pixels, of each image of N x 3 x H x W with the mean color of the image."""
    max_boxes = max((len(image_boxes) for image_boxes in boxes), default=0)
    if max_boxes == 0:
        return images
    padded = [[*image_boxes, *[(0, 0, 0, 0)] * (max_boxes - len(image_boxes))] for image_boxes in boxes]
    return erase_by(images, to_device(torch.tensor(padded), images.device))


def erase_by(images: Tensor, boxes: Tensor) -> Tensor:
    """Apply `erase` with boxes N x M x 4, integers on the device of the images; empty boxes have no effect."""
    height, width = images.shape[-2:]
    left, top, box_width, box_height = boxes[..., None].unbind(dim=2)
    x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
    columns, rows = (x >= left) & (x < left + box_width), (y >= top) & (y < top + box_height)
    erased = (rows[..., :, None] & columns[..., None, :]).any(dim=1, keepdim=True)
    return torch.where(erased, mean(images), images)


def blur(images: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Blur each image of N x 3 x H x W with a Gaussian that is truncated at 3 sigma; borders are replicated.

    `sigmas` are standard deviations per image, in pixels; 0 leaves an image unchanged.
    """
    radius = math.ceil(3 * max(sigmas, default=0.0))
    if not radius:
        return images
    offsets = range(-radius, radius + 1)
    weights = [
        images.new_tensor([_gaussian_weight(offset, sigma) for sigma in sigmas]).view(-1, 1, 1, 1) for offset in offsets
    ]
    total_weight = sum(weights[1:], weights[0])
    for dim in (2, 3):
        length = images.shape[dim]
        position = torch.arange(length, device=images.device)
        terms = [
            weight * images.index_select(dim, (position + offset).clamp(0, length - 1))
            for weight, offset in zip(weights, offsets, strict=True)
        ]
        images = sum(terms[1:], terms[0]) / total_weight
    return images


def _gaussian_weight(offset: int, sigma: float) -> float:
    """Return the weight of a pixel at an offset, relative to that of the center pixel."""
    if abs(offset) > math.ceil(3 * sigma):
        return 0.0
    return math.exp(-0.5 * (offset / sigma) ** 2) if offset else 1.0


def add_noise(images: Tensor, strengths: Sequence[float], seeds: Sequence[int]) -> Tensor:
    """Add Gaussian noise, with a standard deviation and a seed per image, to N x 3 x H x W and clamp to [0, 1].

    The noise is drawn on the CPU, so that it is the same on every device.
    """
    if not any(strengths):
        return images
    shape = images.shape[1:]
    noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
    return (images + noise.to(images) * images.new_tensor(strengths).view(-1, 1, 1, 1)).clamp(0, 1)


def mean(images: Tensor) -> Tensor:
    """Return the mean of every channel to a precision of 1e-6: N x C x H x W in [0, 1] to N x C x 1 x 1."""
    total = (images * _MEAN_STEPS).round().long().sum(dim=(2, 3), keepdim=True)
    pixels = images.shape[2] * images.shape[3]
    return (total.double() / (_MEAN_STEPS * pixels)).to(images.dtype)


def _gray(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    gray: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return gray


def _blend(images: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """Interpolate from `target` (factor 0) to the images (factor 1), extrapolating beyond 1."""
    return (images * factor + target * (1 - factor)).clamp(0, 1)


Key = tuple[int, int, int]
"""(seed, epoch, index) of a sample."""


class Colors(Protocol):
    """Photometric settings that all augmentation configurations share."""

    @property
    def brightness(self) -> float: ...
    @property
    def contrast(self) -> float: ...
    @property
    def saturation(self) -> float: ...
    @property
    def hue(self) -> float: ...
    @property
    def erase(self) -> float: ...
    @property
    def erase_size(self) -> tuple[int, int]: ...


class ParameterSampler:
    """Random numbers of one sample, addressed by name, so that adding a parameter does not change the others."""

    def __init__(self, key: Key) -> None:
        self.key = " ".join(str(int(part)) for part in key)

    def random(self, name: str) -> float:
        """Return a uniform number in [0, 1)."""
        digest = blake2b(f"{self.key} {name}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / 2**53

    def uniform(self, name: str, low: float, high: float) -> float:
        """Return a uniform number in [low, high)."""
        return low + (high - low) * self.random(name)

    def integer(self, name: str, low: int, high: int) -> int:
        """Return a uniform integer in [low, high], both included."""
        return low + int(self.random(name) * (high - low + 1))

    def bernoulli(self, name: str, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random(name) < probability


def check_settings(config: Any) -> None:
    """Raise `InputError` if a field of an augmentation is out of range."""
    check_fields(config, "augmentation")
    check_box_sides(config.erase_size, "augmentation")
    if config.min_scale > config.max_scale:
        raise InputError(f"the augmentation's min_scale {config.min_scale} is above its max_scale {config.max_scale}.")


def check_box_sides(sides: tuple[int, int], section: str) -> None:
    """Raise `InputError` unless the sides of erased boxes are (minimum, maximum)."""
    if sides[0] > sides[1]:
        raise InputError(f"{section}.erase_size is {sides}, but it must be (minimum, maximum).")


def sample_jitter(config: Colors, draws: ParameterSampler, image: str) -> Jitter:
    """Sample the color jitter of an image; `image` is the prefix of the names of its random numbers."""

    def factor(name: str, strength: float) -> float:
        return draws.uniform(f"{image} {name}", max(0.0, 1 - strength), 1 + strength)

    return Jitter(
        brightness=factor("brightness", config.brightness),
        contrast=factor("contrast", config.contrast),
        saturation=factor("saturation", config.saturation),
        hue=draws.uniform(f"{image} hue", -config.hue, config.hue),
    )


def sample_boxes(config: Colors, draws: ParameterSampler, size: tuple[int, int]) -> tuple[Box, ...]:
    """Sample zero, one or two boxes (x, y, w, h) to erase from an image of size (height, width)."""
    if not draws.bernoulli("erase", config.erase):
        return ()
    (height, width), (min_side, max_side) = size, config.erase_size
    return tuple(
        (
            draws.integer(f"box {index} x", 0, width - 1),
            draws.integer(f"box {index} y", 0, height - 1),
            draws.integer(f"box {index} width", min_side, max_side),
            draws.integer(f"box {index} height", min_side, max_side),
        )
        for index in range(draws.integer("boxes", 1, 2))
    )
