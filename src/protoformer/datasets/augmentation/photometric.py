"""Changes of color, blur, noise, and patches erased: batched, each sample by numbers of its own.

Everything here is arithmetic pixel by pixel, and means are sums of whole numbers, which no order of summation changes:
a sample comes out the same to the last bit whatever else is in its batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.synthetic.scene import to_device

_LUMA = (0.299, 0.587, 0.114)
_STEPS = 2**20  # of brightness between 0 and 1, when a mean is taken

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Jitter:
    """How the colors of one image change: three factors (1: as it was), and a turn of the hue, radians."""

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
    table = to_device(numbers.to(images.dtype).view(len(numbers), 4, 1, 1, 1), images.device)
    brightness, contrast, saturation, hue = table.unbind(dim=1)
    images = (images * brightness).clamp(0, 1)
    images = _blend(images, mean(_gray(images)), contrast)
    images = _blend(images, _gray(images), saturation)
    return rotate_hue(images, hue)


def rotate_hue(images: Tensor, angle: Tensor) -> Tensor:
    """Turn every hue of the HSV wheel, value and saturation kept, so colors stay in [0, 1] and gray stays gray.

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
    offset = to_device(torch.tensor((5.0, 3.0, 1.0), dtype=images.dtype).view(1, 3, 1, 1), images.device)
    place = (hue + offset) % 6
    turned = value - chroma * torch.minimum(place, 4 - place).clamp(0, 1)
    return torch.where(angle == 0, images, turned.clamp(0, 1))


def erase(images: Tensor, boxes: Sequence[Sequence[Box]]) -> Tensor:
    """Fill boxes (x, y, w, h; pixels; those of each image) with the image's mean color. images: N x 3 x H x W."""
    most = max((len(own) for own in boxes), default=0)
    if most == 0:
        return images
    padded = [[*own, *[(0, 0, 0, 0)] * (most - len(own))] for own in boxes]
    return erase_by(images, to_device(torch.tensor(padded), images.device))


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


def add_noise(images: Tensor, strengths: Sequence[float], seeds: Sequence[int]) -> Tensor:
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


def _gray(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    gray: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return gray


def _blend(images: Tensor, towards: Tensor, factor: Tensor) -> Tensor:
    """The images at factor 1, `towards` at factor 0, and further away from it beyond 1."""
    return (images * factor + towards * (1 - factor)).clamp(0, 1)


Key = tuple[int, int, int]

_SIZES = {"crop", "erase_size"}
_SWITCHES = {"sparse"}
_EXPONENTS = {"min_scale", "max_scale"}
_PROBABILITIES = {
    "scale_probability",
    "stretch_probability",
    "flip_horizontal",
    "flip_vertical",
    "asymmetric",
    "blur_probability",
    "noise_probability",
    "erase",
    "shadow",
}
_SHARES = {"shade"}


class Colors(Protocol):
    """The settings of an augmentation that say how colors change and what is erased."""

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
    """The random numbers of one key, by name."""

    def __init__(self, key: Key) -> None:
        self.key = " ".join(str(int(part)) for part in key)

    def fraction(self, name: str) -> float:
        """From 0 to below 1."""
        digest = blake2b(f"{self.key} {name}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / 2**53

    def between(self, name: str, low: float, high: float) -> float:
        """From low to high."""
        return low + (high - low) * self.fraction(name)

    def whole(self, name: str, low: int, high: int) -> int:
        """From low to high, both included."""
        return low + int(self.fraction(name) * (high - low + 1))

    def happens(self, name: str, probability: float) -> bool:
        """Whether something of this probability does."""
        return self.fraction(name) < probability


def check_settings(config: Any) -> None:
    """Raise `InputError` for the first field of an augmentation that is not what its name demands."""
    check_numbers(config, "augmentation")
    if not config.min_scale <= config.max_scale:
        raise InputError(f"the augmentation's min_scale {config.min_scale} is above its max_scale {config.max_scale}.")


def check_numbers(config: Any, what: str) -> None:
    """As `check_settings`, of any record with an `erase_size`. what: the word for such settings."""
    for field in fields(config):
        value = getattr(config, field.name)
        wanted = _wanted(field.name, value)
        if wanted:
            raise InputError(f"the {what}'s {field.name} is {value!r}, but it must be {wanted}.")
    if not config.erase_size[0] <= config.erase_size[1]:
        raise InputError(f"the {what}'s erase_size {config.erase_size} must go from the least to the most.")


def _wanted(name: str, value: object) -> str:
    """What a field's value must be, if it is not; else nothing."""
    if name in _SWITCHES:
        return "" if isinstance(value, bool) else "true or false"
    if name in _SIZES:
        sides = value if isinstance(value, tuple) else ()
        right = len(sides) == 2 and all(isinstance(side, int) and side >= 1 for side in sides)
        return "" if right else "two whole numbers, 1 or more"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "a number"
    if name in _PROBABILITIES:
        return "" if 0 <= value <= 1 else "a probability, 0 to 1"
    if name in _SHARES:
        return "" if 0 <= value <= 1 else "a share, 0 to 1"
    if name in _EXPONENTS:
        return ""
    return "" if value >= 0 else "0 or more"


def sample_jitter(config: Colors, draws: ParameterSampler, image: str) -> Jitter:
    """How the colors of an image change; image: what its numbers are called after."""

    def factor(name: str, strength: float) -> float:
        return draws.between(f"{image} {name}", max(0.0, 1 - strength), 1 + strength)

    return Jitter(
        brightness=factor("brightness", config.brightness),
        contrast=factor("contrast", config.contrast),
        saturation=factor("saturation", config.saturation),
        hue=draws.between(f"{image} hue", -config.hue, config.hue),
    )


def sample_boxes(config: Colors, draws: ParameterSampler, size: tuple[int, int]) -> tuple[Box, ...]:
    """Boxes to erase from an image of (height, width), one or two of them or none."""
    if not draws.happens("erase", config.erase):
        return ()
    (height, width), (least, most) = size, config.erase_size
    return tuple(
        (
            draws.whole(f"box {box} x", 0, width - 1),
            draws.whole(f"box {box} y", 0, height - 1),
            draws.whole(f"box {box} width", least, most),
            draws.whole(f"box {box} height", least, most),
        )
        for box in range(draws.whole("boxes", 1, 2))
    )
