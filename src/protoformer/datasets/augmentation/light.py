"""Rendered samples in another light: colors, soft shadows that go their own way, and patches that are hidden.

Scenes are lit well, and film is not: a learner must also have seen the dusk, a picture without color, and a shadow
that moves over ground which does not. Numbers are those of the scene, by name (see `Draws`): the same in any batch.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.datasets.augmentation.photometric import check_numbers, erase_by, jitter_by
from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample
from protoformer.synthetic.scene import to_device

WAVES = 3
"""Of which the outline of a shadow is made."""
LONGEST, SHORTEST = 2.5, 0.4
"""Lengths of those waves, as shares of an image's width."""
SOFT, SHARP = 2.0, 30.0
"""How fast the light goes over into shadow."""
PASSES_BY = 0.12
"""How far a shadow goes between two images along each axis, at most, as a share of their width."""


@dataclass(frozen=True)
class Light:
    """How much the light of scenes is varied; by default not at all.

    brightness, contrast, saturation: factors lie in 1 - strength .. 1 + strength. hue: turn either way, radians.
    gamma: exponent of 2, either way: colors in 0 .. 1 are raised to a power from 2^-gamma to 2^gamma.
    asymmetric: probability that the second image of a pair has colors of its own.
    shadow: probability of soft shadows, which have a motion of their own; shade: the most light that they take, 0 to 1.
    erase: probability that two boxes of the second image turn its mean color, and count as hidden; erase_size: their
        sides at least and at most, pixels.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    gamma: float = 0.0
    asymmetric: float = 0.0
    shadow: float = 0.0
    shade: float = 0.7
    erase: float = 0.0
    erase_size: tuple[int, int] = (50, 100)

    def __post_init__(self) -> None:
        check_numbers(self, "light")


def relight_flow(sample: FlowSample, light: Light, draws: SceneRandom) -> FlowSample:
    """A batch of pairs in another light. draws: of its scenes."""
    size = (sample.first.shape[2], sample.first.shape[3])
    numbers, own = _colors(light, draws, "first"), _colors(light, draws, "second")
    others = torch.where(draws.whether("light.asymmetric", light.asymmetric, (1,)), own, numbers)
    first, second = (recolor(image, of) for image, of in ((sample.first, numbers), (sample.second, others)))
    if light.shadow:
        shadow, passed = _shadow(light, draws, size)
        first, second = add_shadows(first, shadow), add_shadows(second, passed)
    relit = replace(sample, first=first, second=second)
    return _with_boxes(relit, _boxes(light, draws, size)) if light.erase else relit


def relight_depth(sample: DepthSample, light: Light, draws: SceneRandom) -> DepthSample:
    """A batch of images in another light: what is erased and what is asymmetric is of pairs alone."""
    image = recolor(sample.image, _colors(light, draws, "first"))
    if light.shadow:
        image = add_shadows(image, _shadow(light, draws, (image.shape[2], image.shape[3]))[0])
    return replace(sample, image=image)


def recolor(images: Tensor, numbers: Tensor) -> Tensor:
    """images: N x 3 x H x W in [0, 1]; numbers: N x 5, a power of the colors, then those of `jitter_by`."""
    power = to_device(numbers[:, :1].float(), images.device).view(-1, 1, 1, 1)
    return jitter_by(images.clamp(0, 1) ** power, numbers[:, 1:])


def add_shadows(images: Tensor, shadow: Tensor) -> Tensor:
    """Images with the shadow of some waves over them.

    images: N x 3 x H x W. shadow: N x (2 + 4 * WAVES), the share of light that is taken, how sharp the edge is, and of
    the waves how much they turn along x and along y (radians a pixel), their phases and their heights.
    """
    count, _, height, width = images.shape
    shadow = to_device(shadow.float(), images.device)
    taken, sharp = shadow[:, :2].view(count, 2, 1, 1).unbind(dim=1)
    across, down, phase, tall = shadow[:, 2:].view(count, 4, WAVES, 1, 1).unbind(dim=1)
    x = torch.arange(width, device=images.device, dtype=images.dtype)
    y = torch.arange(height, device=images.device, dtype=images.dtype)[:, None]
    outline = (tall * (across * x + down * y + phase).cos()).sum(dim=1)
    dark = taken * (sharp * outline).sigmoid()
    return images * (1 - dark)[:, None]


def _colors(light: Light, draws: SceneRandom, image: str) -> Tensor:
    """What `recolored` takes."""

    def factor(name: str, strength: float) -> Tensor:
        return draws.uniform(f"light.{image}.{name}", max(0.0, 1 - strength), 1 + strength)

    power = draws.log_uniform(f"light.{image}.gamma", 2.0**-light.gamma, 2.0**light.gamma)
    hue = draws.uniform(f"light.{image}.hue", -light.hue, light.hue)
    brightness, contrast = factor("brightness", light.brightness), factor("contrast", light.contrast)
    return torch.stack((power, brightness, contrast, factor("saturation", light.saturation), hue), dim=1)


def _shadow(light: Light, draws: SceneRandom, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """What `shaded` takes, of the first image and of the second."""
    width = size[1]
    taken = draws.uniform("shadow.taken", 0.0, light.shade) * draws.whether("shadow.is", light.shadow)
    sharp = draws.log_uniform("shadow.sharp", SOFT, SHARP)
    length = draws.log_uniform("shadow.length", SHORTEST, LONGEST, (WAVES,)) * width
    heading, phase = (draws.uniform(f"shadow.{name}", 0.0, 2 * math.pi, (WAVES,)) for name in ("heading", "phase"))
    tall = draws.uniform("shadow.tall", 0.3, 1.0, (WAVES,))
    across, down = (2 * math.pi / length * turned for turned in (heading.cos(), heading.sin()))
    reach = PASSES_BY * width
    passed = draws.uniform("shadow.passed", -reach, reach, (2, 1))
    later = phase - across * passed[:, 0] - down * passed[:, 1]
    of_both = torch.stack((taken, sharp), dim=1)
    first, second = (torch.cat((of_both, across, down, each, tall), dim=1) for each in (phase, later))
    return first, second


def _boxes(light: Light, draws: SceneRandom, size: tuple[int, int]) -> Tensor:
    """What to hide in each second image: x, y, w, h of two boxes, pixels, which may be empty: N x 2 x 4."""
    (height, width), (least, most) = size, light.erase_size
    sides = draws.integer("erase.sides", least, most + 1, (2, 2)) * draws.whether("erase.is", light.erase, (1, 1))
    x, y = draws.integer("erase.x", 0, width, (2,)), draws.integer("erase.y", 0, height, (2,))
    return torch.cat((torch.stack((x, y), dim=2), sides), dim=2)


def _with_boxes(sample: FlowSample, boxes: Tensor) -> FlowSample:
    """A batch whose second images lack what is in their boxes."""
    boxes = to_device(boxes, sample.second.device)
    second = erase_by(sample.second, boxes)
    if sample.occlusion is None:
        return replace(sample, second=second)
    height, width = sample.first.shape[-2:]
    place = pixel_grid(height, width, sample.flow.device) + sample.flow
    low = boxes[..., :2].reshape(*boxes.shape[:2], 2, 1, 1) - 0.5  # from the edge of the first pixel, not its center
    high = low + boxes[..., 2:].reshape(*boxes.shape[:2], 2, 1, 1)
    within = ((place[:, None] >= low) & (place[:, None] < high)).all(dim=2).any(dim=1, keepdim=True)
    return replace(sample, second=second, occlusion=sample.occlusion | (within & sample.valid))
