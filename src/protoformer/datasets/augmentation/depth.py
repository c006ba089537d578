"""Augmentation of images with depth, by which the camera stays known.

A picture that is turned about its optical axis, scaled, mirrored and cut is that of another camera before another
world: one with a longer lens and another center, before a world that is turned or mirrored as a whole. Depths along the
axis stay as they are, exactly, as long as pixels are square; so pixels are never stretched.

A network knows things by the size at which it was shown them. So images are first shrunk as they are in use, and are
then made smaller and larger than that: what it will see lies well inside of what it has seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.datasets.augmentation.photometric import (
    NEUTRAL,
    Box,
    Jitter,
    Key,
    ParameterSampler,
    add_noise,
    blur,
    check_settings,
    erase,
    jitter,
    sample_boxes,
    sample_jitter,
)
from protoformer.errors import InputError
from protoformer.geometry.resizing import limited_size, shrink, shrink_position
from protoformer.geometry.warps import pixel_grid
from protoformer.geometry.warps import sample as sampled
from protoformer.synthetic.samples import DepthSample

STEEPEST = 1.0
"""Radians: a picture that is turned farther than this has little left that a crop fits in."""
LEAST_SCALE = -1.0
"""Exponent of 2: bilinear sampling passes pixels over below half the size."""
CAR_PIXELS = 376 * 1242
"""Of the largest images of KITTI; those of Virtual KITTI 2 and of Sintel have fewer."""


@dataclass(frozen=True)
class DepthAugmentation:
    """How much images with depth are varied; the defaults are strong, for a few hundred photographs of rooms.

    crop: (height, width) of what comes out, pixels; never anything from beyond the image.
    pixels: larger images are first shrunk to about so many, as in use; a model's `depth_pixels`.
    min_scale, max_scale: exponents of 2 between which the scale of that lies; more where the crop would not fit into
        less, so a crop of the use size would be one of enlarged images alone.
    rotation: turn about the optical axis, either way, radians, at most 1. flip_horizontal: probability.
    brightness, contrast, saturation: factors lie in 1 - strength .. 1 + strength. hue: turn either way, radians.
    blur, blur_probability: most pixels that a Gaussian is wide. noise, noise_probability: most that gray is off by.
    erase: probability that one or two boxes turn the image's mean color (their depths stay); erase_size: least and
        most pixels a side.

    Colors, blur, noise and boxes are those of the crop.
    """

    crop: tuple[int, int] = (192, 256)
    pixels: int = 240 * 320
    min_scale: float = -0.32
    max_scale: float = 0.68
    rotation: float = 0.09
    flip_horizontal: float = 0.5
    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.4
    hue: float = 0.4
    blur: float = 1.5
    blur_probability: float = 0.3
    noise: float = 0.04
    noise_probability: float = 0.4
    erase: float = 0.3
    erase_size: tuple[int, int] = (20, 80)

    def __post_init__(self) -> None:
        check_settings(self)
        if not isinstance(self.pixels, int) or self.pixels < 1:
            raise InputError(f"the augmentation's pixels is {self.pixels!r}, but it must be a whole number, 1 or more.")
        if self.rotation > STEEPEST:
            raise InputError(f"the augmentation's rotation is {self.rotation:g}, but it must be at most {STEEPEST:g}.")
        if self.min_scale < LEAST_SCALE:
            raise InputError(
                f"the augmentation's min_scale is {self.min_scale:g}, but it must be {LEAST_SCALE:g} or more: "
                "sampling passes pixels over below half the size."
            )


DEPTH_AUGMENTATIONS: dict[str, DepthAugmentation] = {
    "rooms": DepthAugmentation(),
    # From a car everything stands upright, and laser points lie in rows that a turn would tear.
    "streets": DepthAugmentation(
        crop=(320, 960),
        pixels=CAR_PIXELS,
        min_scale=-0.22,
        max_scale=0.4,
        rotation=0.0,
        hue=0.2,
        blur=0.0,
        noise=0.02,
        erase=0.0,
    ),
    "film": DepthAugmentation(
        crop=(352, 832), pixels=CAR_PIXELS, min_scale=-0.25, max_scale=0.6, rotation=0.05, erase_size=(50, 100)
    ),
}


@dataclass(frozen=True)
class CropPlan:
    """Where a crop comes from: the image is turned about `center`, scaled, mirrored, and cut around it.

    center: (x, y) in the image, pixels. angle: radians, positive from x to y. crop: (height, width).
    """

    crop: tuple[int, int]
    center: tuple[float, float]
    scale: float = 1.0
    angle: float = 0.0
    mirrored: bool = False

    @property
    def matrix(self) -> Tensor:
        """Image to crop, 3 x 3: positions (x, y, 1), the center of the first pixel being (0, 0), float64."""
        height, width = self.crop
        cosine, sine = self.scale * math.cos(self.angle), self.scale * math.sin(self.angle)
        side = -1.0 if self.mirrored else 1.0
        turn = torch.tensor([[side * cosine, -side * sine], [sine, cosine]], dtype=torch.float64)
        middle = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
        shift = middle - turn @ torch.tensor(self.center, dtype=torch.float64)
        return torch.cat((torch.cat((turn, shift[:, None]), dim=1), torch.tensor([[0.0, 0.0, 1.0]]).double()))


@dataclass(frozen=True)
class DepthParameters:
    """Everything random about one sample. erased: boxes (x, y, w, h) of the crop, pixels. seed: of the noise."""

    cutting: CropPlan
    colors: Jitter = NEUTRAL
    blur: float = 0.0
    noise: float = 0.0
    seed: int = 0
    erased: tuple[Box, ...] = ()


def sample_depth_parameters(config: DepthAugmentation, key: Key, size: tuple[int, int]) -> DepthParameters:
    """The parameters of the sample with this key, (seed, epoch, index), whose image, shrunk, is (height, width)."""
    draws = ParameterSampler(key)
    return DepthParameters(
        cutting=_draw_cutting(config, draws, size),
        colors=sample_jitter(config, draws, "first"),
        blur=draws.between("blur", 0.0, config.blur) if draws.happens("blurred", config.blur_probability) else 0.0,
        noise=draws.between("noise", 0.0, config.noise) if draws.happens("noisy", config.noise_probability) else 0.0,
        seed=draws.whole("noise seed", 0, 2**31 - 1),
        erased=sample_boxes(config, draws, config.crop),
    )


def _draw_cutting(config: DepthAugmentation, draws: ParameterSampler, size: tuple[int, int]) -> CropPlan:
    angle = draws.between("rotation", -config.rotation, config.rotation)
    cosine, sine = abs(math.cos(angle)), abs(math.sin(angle))
    high, wide = config.crop
    # Sides of the upright box around the turned crop, in pixels of the scaled image.
    around = (wide * cosine + high * sine, wide * sine + high * cosine)
    covering = max(around[0] / size[1], around[1] / size[0])
    scale = max(2 ** draws.between("scale", config.min_scale, config.max_scale), covering)
    room_x, room_y = (max(0.0, side - part / scale) for side, part in zip((size[1], size[0]), around, strict=True))
    return CropPlan(
        crop=config.crop,
        center=(
            (size[1] - 1) / 2 + room_x * (draws.fraction("centre x") - 0.5),
            (size[0] - 1) / 2 + room_y * (draws.fraction("centre y") - 0.5),
        ),
        scale=scale,
        angle=angle,
        mirrored=draws.happens("flip horizontal", config.flip_horizontal),
    )


def apply_depth(sample: DepthSample, parameters: Sequence[DepthParameters]) -> DepthSample:
    """A batch of N images by N parameters, cut to one size; depths are those of the nearest pixels, never mixed."""
    if len(parameters) != len(sample.image):
        raise ValueError(f"a batch of {len(sample.image)} needs as many parameters, not {len(parameters)}")
    matrices = torch.stack([each.cutting.matrix for each in parameters])
    positions = _positions(matrices, parameters[0].cutting.crop, sample.image)
    image = jitter(sampled(sample.image, positions), [each.colors for each in parameters])
    image = blur(image, [each.blur for each in parameters])
    image = add_noise(image, [each.noise for each in parameters], [each.seed for each in parameters])
    return replace(
        sample,
        image=erase(image, [each.erased for each in parameters]),
        depth=_nearest(sample.depth, positions),
        valid=_nearest(sample.valid, positions),
        intrinsics=None if sample.intrinsics is None else _placed(sample.intrinsics, matrices),
    )


def augment_depth(sample: DepthSample, config: DepthAugmentation, keys: Sequence[Key]) -> DepthSample:
    """The batch augmented, a key (seed, epoch, index) a sample: N images of the crop's size."""
    sample = _as_in_use(sample, config.pixels)
    height, width = sample.image.shape[-2:]
    return apply_depth(sample, [sample_depth_parameters(config, key, (height, width)) for key in keys])


def _as_in_use(sample: DepthSample, pixels: int) -> DepthSample:
    """The batch at the size at which a network is shown it: depths of the nearest pixels, the camera scaled alike."""
    height, width = sample.image.shape[-2:]
    low, narrow = limited_size((height, width), pixels)
    if (low, narrow) == (height, width):
        return sample
    camera = None if sample.intrinsics is None else sample.intrinsics.clone()
    if camera is not None:
        for row, before, after in ((0, width, narrow), (1, height, low)):
            camera[:, row, :2] *= after / before
            camera[:, row, 2] = shrink_position(camera[:, row, 2], before, after)
    return replace(
        sample,
        image=shrink(sample.image, (low, narrow)),
        depth=F.interpolate(sample.depth, (low, narrow), mode="nearest-exact"),
        valid=F.interpolate(sample.valid.float(), (low, narrow), mode="nearest-exact") > 0,
        intrinsics=camera,
    )


def _positions(matrices: Tensor, crop: tuple[int, int], images: Tensor) -> Tensor:
    """Where in its image each pixel of a crop lies, on it: N x 2 x h x w."""
    back = torch.linalg.inv(matrices).float().to(images.device)
    grid = pixel_grid(*crop, images.device).flatten(1)
    places = (back[:, :2, :2] @ grid + back[:, :2, 2:]).view(-1, 2, *crop)
    x, y = places.split(1, dim=1)
    return torch.cat((x.clamp(0, images.shape[3] - 1), y.clamp(0, images.shape[2] - 1)), dim=1)


def _nearest(maps: Tensor, positions: Tensor) -> Tensor:
    """N x 1 x H x W at the pixels nearest to positions: N x 1 x h x w."""
    x, y = (positions + 0.5).floor().long().split(1, dim=1)
    index = (y.clamp_max(maps.shape[2] - 1) * maps.shape[3] + x.clamp_max(maps.shape[3] - 1)).flatten(1)
    return maps.flatten(1).gather(1, index).view(len(maps), 1, *positions.shape[2:])


def _placed(intrinsics: Tensor, matrices: Tensor) -> Tensor:
    """N x 3 x 3 for the crops: the lens as much longer as the picture is larger, the center where it came to lie.

    What is left of the map is a turn and a mirror, which are the world's.
    """
    placed = intrinsics.clone()
    moved = (matrices.to(intrinsics.device) @ intrinsics.double())[:, :2, 2]
    scale = torch.linalg.det(matrices[:, :2, :2]).abs().sqrt().to(intrinsics)
    placed[:, :2, :2] = intrinsics[:, :2, :2] * scale.view(-1, 1, 1)
    placed[:, :2, 2] = moved.to(intrinsics.dtype)
    return placed
