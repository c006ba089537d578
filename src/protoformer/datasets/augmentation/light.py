"""Photometric augmentation of rendered samples: color jitter, soft moving shadows and erased boxes.

Rendered scenes are well lit. This adds dark and desaturated images, and shadows that move independently of the surface
they fall on. Random numbers belong to the scene and are addressed by name (see `SceneRandom`), so a sample is the same
in every batch.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.datasets.augmentation.photometric import check_box_sides, erase_by, jitter_by
from protoformer.geometry.warps import pixel_grid
from protoformer.io.config_reader import bounded, check_fields
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample
from protoformer.synthetic.scene import to_device

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
    colors2 = torch.where(draws.whether("light.asymmetric", light.asymmetric, (1,)), independent, colors1)
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
    strength = draws.uniform("shadow.taken", 0.0, light.shade) * draws.whether("shadow.is", light.shadow)
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
    sides = draws.integer("erase.sides", min_side, max_side + 1, (2, 2)) * draws.whether(
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
