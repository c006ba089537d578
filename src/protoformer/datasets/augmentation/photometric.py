"""Photometric augmentation: color jitter, blur, noise, erased boxes and moving shadows.

All operations are element-wise, and means are integer sums, which do not depend on the order of summation. The result
for a sample is therefore bit-identical whatever else is in its batch.

Rendered scenes are well lit. `relight_flow` and `relight_depth` add dark and desaturated images, and shadows that move
independently of the surface they fall on. Their random numbers belong to the scene and are addressed by name (see
`SceneRandom`).
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.warps import pixel_grid
from protoformer.io.config_reader import bounded, check_fields
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample
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


NUM_WAVES = 3
"""Number of cosine waves that form the outline of a shadow."""
MAX_WAVELENGTH, MIN_WAVELENGTH = 2.5, 0.4
"""Range of the wavelength, as a fraction of the image width."""
MIN_SHARPNESS, MAX_SHARPNESS = 2.0, 30.0
"""Range of the slope of the sigmoid between light and shadow."""
MAX_SHADOW_MOTION = 0.12
"""Maximum motion of a shadow between two images along each axis, as a fraction of the image width."""


@dataclass(frozen=True)
class Light:
    """Configuration of the lighting augmentation; the defaults change nothing.

    Attributes:
        brightness: Strength; the factor lies in [1 - strength, 1 + strength].
        contrast: Strength, as for brightness.
        saturation: Strength, as for brightness.
        hue: Maximum rotation of the hue, in radians, in both directions.
        gamma: Colors in [0, 1] are raised to a power between 2^-gamma and 2^gamma.
        asymmetric: Probability that the second image of a pair has colors of its own.
        shadow: Probability of soft shadows, which move independently of the scene.
        shade: Maximum fraction of the light that a shadow removes, 0 to 1.
        erase: Probability that two boxes of the second image are filled with its mean color and count as occluded.
        erase_size: Minimum and maximum side of these boxes, in pixels.
    """

    brightness: float = bounded(0.0, min=0)
    contrast: float = bounded(0.0, min=0)
    saturation: float = bounded(0.0, min=0)
    hue: float = bounded(0.0, min=0)
    gamma: float = bounded(0.0, min=0)
    asymmetric: float = bounded(0.0, min=0, max=1)
    shadow: float = bounded(0.0, min=0, max=1)
    shade: float = bounded(0.7, min=0, max=1)
    erase: float = bounded(0.0, min=0, max=1)
    erase_size: tuple[int, int] = bounded((50, 100), min=1)

    def __post_init__(self) -> None:
        check_fields(self, "light")
        check_box_sides(self.erase_size, "light")


def relight_flow(sample: FlowSample, light: Light, draws: SceneRandom) -> FlowSample:
    """Apply the lighting augmentation to a batch of pairs; erased boxes are added to the occlusion mask.

    `draws` are the random numbers of the N scenes.
    """
    size = (sample.first.shape[2], sample.first.shape[3])
    colors1, independent = _sample_colors(light, draws, "first"), _sample_colors(light, draws, "second")
    colors2 = torch.where(draws.bernoulli("light.asymmetric", light.asymmetric, (1,)), independent, colors1)
    first, second = (recolor(image, colors) for image, colors in ((sample.first, colors1), (sample.second, colors2)))
    if light.shadow:
        shadow1, shadow2 = _sample_shadows(light, draws, size)
        first, second = add_shadows(first, shadow1), add_shadows(second, shadow2)
    relit = replace(sample, first=first, second=second)
    return _erase_boxes(relit, _sample_boxes(light, draws, size)) if light.erase else relit


def relight_depth(sample: DepthSample, light: Light, draws: SceneRandom) -> DepthSample:
    """Apply the lighting augmentation to a batch of single images; `asymmetric` and `erase` do not apply to them."""
    image = recolor(sample.image, _sample_colors(light, draws, "first"))
    if light.shadow:
        image = add_shadows(image, _sample_shadows(light, draws, (image.shape[2], image.shape[3]))[0])
    return replace(sample, image=image)


def recolor(images: Tensor, params: Tensor) -> Tensor:
    """Apply gamma and color jitter to N x 3 x H x W images; params: N x 5, the gamma and those of `jitter_by`."""
    gamma = to_device(params[:, :1].float(), images.device).view(-1, 1, 1, 1)
    return jitter_by(images.clamp(0, 1) ** gamma, params[:, 1:])


def add_shadows(images: Tensor, shadows: Tensor) -> Tensor:
    """Darken images, N x 3 x H x W, by soft shadows whose outline is a sum of cosine waves.

    `shadows`, N x (2 + 4 * NUM_WAVES): the fraction of light that is removed, the sharpness of the edge, and the
    frequency along x and y (radians per pixel), phase and amplitude of each wave.
    """
    count, _, height, width = images.shape
    shadows = to_device(shadows.float(), images.device)
    strength, sharpness = shadows[:, :2].view(count, 2, 1, 1).unbind(dim=1)
    freq_x, freq_y, phase, amplitude = shadows[:, 2:].view(count, 4, NUM_WAVES, 1, 1).unbind(dim=1)
    x = torch.arange(width, device=images.device, dtype=images.dtype)
    y = torch.arange(height, device=images.device, dtype=images.dtype)[:, None]
    wave = (amplitude * (freq_x * x + freq_y * y + phase).cos()).sum(dim=1)
    attenuation = strength * (sharpness * wave).sigmoid()
    return images * (1 - attenuation)[:, None]


def _sample_colors(light: Light, draws: SceneRandom, image: str) -> Tensor:
    """Sample the parameters of `recolor` for one image of each pair, N x 5."""

    def factor(name: str, strength: float) -> Tensor:
        return draws.uniform(f"light.{image}.{name}", max(0.0, 1 - strength), 1 + strength)

    gamma = draws.log_uniform(f"light.{image}.gamma", 2.0**-light.gamma, 2.0**light.gamma)
    hue = draws.uniform(f"light.{image}.hue", -light.hue, light.hue)
    brightness, contrast = factor("brightness", light.brightness), factor("contrast", light.contrast)
    return torch.stack((gamma, brightness, contrast, factor("saturation", light.saturation), hue), dim=1)


def _sample_shadows(light: Light, draws: SceneRandom, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Sample the parameters of `add_shadows` for the first and the second image."""
    width = size[1]
    strength = draws.uniform("shadow.taken", 0.0, light.shade) * draws.bernoulli("shadow.is", light.shadow)
    sharpness = draws.log_uniform("shadow.sharp", MIN_SHARPNESS, MAX_SHARPNESS)
    wavelength = draws.log_uniform("shadow.length", MIN_WAVELENGTH, MAX_WAVELENGTH, (NUM_WAVES,)) * width
    heading, phase = (draws.uniform(f"shadow.{name}", 0.0, 2 * math.pi, (NUM_WAVES,)) for name in ("heading", "phase"))
    amplitude = draws.uniform("shadow.tall", 0.3, 1.0, (NUM_WAVES,))
    freq_x, freq_y = (2 * math.pi / wavelength * component for component in (heading.cos(), heading.sin()))
    max_motion = MAX_SHADOW_MOTION * width
    motion = draws.uniform("shadow.passed", -max_motion, max_motion, (2, 1))
    moved_phase = phase - freq_x * motion[:, 0] - freq_y * motion[:, 1]
    shared = torch.stack((strength, sharpness), dim=1)
    first, second = (torch.cat((shared, freq_x, freq_y, phases, amplitude), dim=1) for phases in (phase, moved_phase))
    return first, second


def _sample_boxes(light: Light, draws: SceneRandom, size: tuple[int, int]) -> Tensor:
    """Sample two boxes (x, y, w, h) to erase from each second image, in pixels, possibly empty: N x 2 x 4."""
    (height, width), (min_side, max_side) = size, light.erase_size
    sides = draws.integer("erase.sides", min_side, max_side + 1, (2, 2)) * draws.bernoulli(
        "erase.is", light.erase, (1, 1)
    )
    x, y = draws.integer("erase.x", 0, width, (2,)), draws.integer("erase.y", 0, height, (2,))
    return torch.cat((torch.stack((x, y), dim=2), sides), dim=2)


def _erase_boxes(sample: FlowSample, boxes: Tensor) -> FlowSample:
    """Erase boxes from the second images and mark the pixels that move into them as occluded."""
    boxes = to_device(boxes, sample.second.device)
    second = erase_by(sample.second, boxes)
    if sample.occlusion is None:
        return replace(sample, second=second)
    height, width = sample.first.shape[-2:]
    target = pixel_grid(height, width, sample.flow.device) + sample.flow
    low = boxes[..., :2].reshape(*boxes.shape[:2], 2, 1, 1) - 0.5  # the edge of the first pixel, not its center
    high = low + boxes[..., 2:].reshape(*boxes.shape[:2], 2, 1, 1)
    covered = ((target[:, None] >= low) & (target[:, None] < high)).all(dim=2).any(dim=1, keepdim=True)
    return replace(sample, second=second, occlusion=sample.occlusion | (covered & sample.valid))
