"""Augmentation of depth samples that keeps the intrinsics exact.

An image that is rotated about the optical axis, scaled, flipped and cropped is the image of a rotated or flipped scene
taken by a camera with another focal length and principal point. Depth along the optical axis is unchanged as long as
pixels stay square, so images are never stretched.

The apparent size of objects is a depth cue. Images are therefore first resized to the resolution used at inference, and
then scaled down and up, so that inference lies well inside the range seen in training.
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
from protoformer.geometry.warps import limited_size, pixel_grid, shrink, shrink_position
from protoformer.geometry.warps import sample as sample_bilinear
from protoformer.io.config_reader import bounded
from protoformer.synthetic.samples import DepthSample

MAX_ROTATION = 1.0
"""Maximum rotation, in radians; beyond it little of the image is left for a crop."""
MIN_SCALE_EXPONENT = -1.0
"""Minimum scale, as an exponent of 2; bilinear sampling skips pixels below half the size."""
KITTI_PIXELS = 376 * 1242
"""Pixels of the largest images of KITTI; those of Virtual KITTI 2 and Sintel have fewer."""


@dataclass(frozen=True)
class DepthAugmentation:
    """Configuration of the depth augmentation; the defaults are strong, for a few hundred photographs of rooms.

    Color jitter, blur, noise and erased boxes apply to the crop.

    Attributes:
        crop: (height, width) of the output, in pixels; it never extends beyond the image.
        pixels: Larger images are first shrunk to about this many pixels, as at inference (`depth_pixels` of a model).
        min_scale: Lower bound of the scale relative to that size, as an exponent of 2. The scale is raised where the
            crop would not fit, so a crop of the inference size only ever shows enlarged images.
        max_scale: Upper bound of the scale, as an exponent of 2.
        rotation: Maximum rotation about the optical axis, in radians, in both directions; at most 1.
        flip_horizontal: Probability of a horizontal flip.
        brightness: Strength; the factor lies in [1 - strength, 1 + strength].
        contrast: Strength, as for brightness.
        saturation: Strength, as for brightness.
        hue: Maximum rotation of the hue, in radians, in both directions.
        blur: Maximum standard deviation of the Gaussian blur, in pixels.
        blur_probability: Probability of blur.
        noise: Maximum standard deviation of the noise, for images in [0, 1].
        noise_probability: Probability of noise.
        erase: Probability that one or two boxes are filled with the mean color; the depth is unchanged.
        erase_size: Minimum and maximum side of these boxes, in pixels.
    """

    crop: tuple[int, int] = bounded((192, 256), min=1)
    pixels: int = bounded(240 * 320, min=1)
    min_scale: float = bounded(-0.32, min=MIN_SCALE_EXPONENT)
    max_scale: float = 0.68
    rotation: float = bounded(0.09, min=0, max=MAX_ROTATION)
    flip_horizontal: float = bounded(0.5, min=0, max=1)
    brightness: float = bounded(0.3, min=0)
    contrast: float = bounded(0.3, min=0)
    saturation: float = bounded(0.4, min=0)
    hue: float = bounded(0.4, min=0)
    blur: float = bounded(1.5, min=0)
    blur_probability: float = bounded(0.3, min=0, max=1)
    noise: float = bounded(0.04, min=0)
    noise_probability: float = bounded(0.4, min=0, max=1)
    erase: float = bounded(0.3, min=0, max=1)
    erase_size: tuple[int, int] = bounded((20, 80), min=1)

    def __post_init__(self) -> None:
        check_settings(self)


DEPTH_AUGMENTATIONS: dict[str, DepthAugmentation] = {
    "rooms": DepthAugmentation(),
    # Cameras on cars are level, and a rotation would break up the scan lines of the laser.
    "streets": DepthAugmentation(
        crop=(320, 960),
        pixels=KITTI_PIXELS,
        min_scale=-0.22,
        max_scale=0.4,
        rotation=0.0,
        hue=0.2,
        blur=0.0,
        noise=0.02,
        erase=0.0,
    ),
    "sintel-depth": DepthAugmentation(
        crop=(352, 832), pixels=KITTI_PIXELS, min_scale=-0.25, max_scale=0.6, rotation=0.05, erase_size=(50, 100)
    ),
}


@dataclass(frozen=True)
class RotatedCropGeometry:
    """Geometry of one crop: the image is rotated about `center`, scaled, flipped, and cropped around it.

    Attributes:
        crop: (height, width), in pixels.
        center: (x, y) in the image, in pixels.
        scale: Factor.
        angle: Radians, positive from x to y.
        flipped: Whether the crop is flipped horizontally.
    """

    crop: tuple[int, int]
    center: tuple[float, float]
    scale: float = 1.0
    angle: float = 0.0
    flipped: bool = False

    @property
    def matrix(self) -> Tensor:
        """Map from image to crop, 3 x 3, float64, for (x, y, 1) with the center of the first pixel at (0, 0)."""
        height, width = self.crop
        cosine, sine = self.scale * math.cos(self.angle), self.scale * math.sin(self.angle)
        sign = -1.0 if self.flipped else 1.0
        linear = torch.tensor([[sign * cosine, -sign * sine], [sine, cosine]], dtype=torch.float64)
        crop_center = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
        shift = crop_center - linear @ torch.tensor(self.center, dtype=torch.float64)
        return torch.cat((torch.cat((linear, shift[:, None]), dim=1), torch.tensor([[0.0, 0.0, 1.0]]).double()))


@dataclass(frozen=True)
class DepthParameters:
    """Augmentation parameters of one sample.

    Attributes:
        geometry: Scale, rotation, flip and position of the crop.
        colors: Color jitter.
        blur: Standard deviation of the blur, in pixels.
        noise: Standard deviation of the noise.
        seed: Seed of the noise.
        erased: Boxes (x, y, w, h) erased from the crop, in pixels.
    """

    geometry: RotatedCropGeometry
    colors: Jitter = NEUTRAL
    blur: float = 0.0
    noise: float = 0.0
    seed: int = 0
    erased: tuple[Box, ...] = ()


def sample_depth_parameters(config: DepthAugmentation, key: Key, size: tuple[int, int]) -> DepthParameters:
    """Sample the parameters of the sample with a key (seed, epoch, index) and a resized image of (height, width)."""
    draws = ParameterSampler(key)
    return DepthParameters(
        geometry=_sample_geometry(config, draws, size),
        colors=sample_jitter(config, draws, "first"),
        blur=draws.uniform("blur", 0.0, config.blur) if draws.bernoulli("blurred", config.blur_probability) else 0.0,
        noise=draws.uniform("noise", 0.0, config.noise) if draws.bernoulli("noisy", config.noise_probability) else 0.0,
        seed=draws.integer("noise seed", 0, 2**31 - 1),
        erased=sample_boxes(config, draws, config.crop),
    )


def _sample_geometry(config: DepthAugmentation, draws: ParameterSampler, size: tuple[int, int]) -> RotatedCropGeometry:
    angle = draws.uniform("rotation", -config.rotation, config.rotation)
    cosine, sine = abs(math.cos(angle)), abs(math.sin(angle))
    crop_height, crop_width = config.crop
    # (width, height) of the axis-aligned box around the rotated crop, in pixels of the scaled image.
    extent = (crop_width * cosine + crop_height * sine, crop_width * sine + crop_height * cosine)
    min_scale = max(extent[0] / size[1], extent[1] / size[0])
    scale = max(2 ** draws.uniform("scale", config.min_scale, config.max_scale), min_scale)
    slack_x, slack_y = (
        max(0.0, length - needed / scale) for length, needed in zip((size[1], size[0]), extent, strict=True)
    )
    return RotatedCropGeometry(
        crop=config.crop,
        center=(
            (size[1] - 1) / 2 + slack_x * (draws.random("centre x") - 0.5),
            (size[0] - 1) / 2 + slack_y * (draws.random("centre y") - 0.5),
        ),
        scale=scale,
        angle=angle,
        flipped=draws.bernoulli("flip horizontal", config.flip_horizontal),
    )


def apply_depth(sample: DepthSample, parameters: Sequence[DepthParameters]) -> DepthSample:
    """Apply parameters to a batch, one per image; depth is sampled at the nearest pixels, never interpolated."""
    if len(parameters) != len(sample.image):
        raise ValueError(f"a batch of {len(sample.image)} needs as many parameters, not {len(parameters)}")
    matrices = torch.stack([params.geometry.matrix for params in parameters])
    positions = _sampling_positions(matrices, parameters[0].geometry.crop, sample.image)
    image = jitter(sample_bilinear(sample.image, positions), [params.colors for params in parameters])
    image = blur(image, [params.blur for params in parameters])
    image = add_noise(image, [params.noise for params in parameters], [params.seed for params in parameters])
    return replace(
        sample,
        image=erase(image, [params.erased for params in parameters]),
        depth=_sample_nearest(sample.depth, positions),
        valid=_sample_nearest(sample.valid, positions),
        intrinsics=None if sample.intrinsics is None else _transform_intrinsics(sample.intrinsics, matrices),
    )


def augment_depth(sample: DepthSample, config: DepthAugmentation, keys: Sequence[Key]) -> DepthSample:
    """Augment a batch of N images, with one key (seed, epoch, index) per image; returns crops."""
    sample = _resize_to_inference(sample, config.pixels)
    height, width = sample.image.shape[-2:]
    return apply_depth(sample, [sample_depth_parameters(config, key, (height, width)) for key in keys])


def _resize_to_inference(sample: DepthSample, pixels: int) -> DepthSample:
    """Resize a batch to the resolution used at inference, with nearest depth and scaled intrinsics."""
    height, width = sample.image.shape[-2:]
    new_height, new_width = limited_size((height, width), pixels)
    if (new_height, new_width) == (height, width):
        return sample
    intrinsics = None if sample.intrinsics is None else sample.intrinsics.clone()
    if intrinsics is not None:
        for row, before, after in ((0, width, new_width), (1, height, new_height)):
            intrinsics[:, row, :2] *= after / before
            intrinsics[:, row, 2] = shrink_position(intrinsics[:, row, 2], before, after)
    return replace(
        sample,
        image=shrink(sample.image, (new_height, new_width)),
        depth=F.interpolate(sample.depth, (new_height, new_width), mode="nearest-exact"),
        valid=F.interpolate(sample.valid.float(), (new_height, new_width), mode="nearest-exact") > 0,
        intrinsics=intrinsics,
    )


def _sampling_positions(matrices: Tensor, crop: tuple[int, int], images: Tensor) -> Tensor:
    """Return the position of each crop pixel in its image, clamped to the image: N x 2 x h x w."""
    inverse = torch.linalg.inv(matrices).float().to(images.device)
    grid = pixel_grid(*crop, images.device).flatten(1)
    positions = (inverse[:, :2, :2] @ grid + inverse[:, :2, 2:]).view(-1, 2, *crop)
    x, y = positions.split(1, dim=1)
    return torch.cat((x.clamp(0, images.shape[3] - 1), y.clamp(0, images.shape[2] - 1)), dim=1)


def _sample_nearest(maps: Tensor, positions: Tensor) -> Tensor:
    """Sample maps, N x 1 x H x W, at the pixels nearest to the positions: N x 1 x h x w."""
    x, y = (positions + 0.5).floor().long().split(1, dim=1)
    index = (y.clamp_max(maps.shape[2] - 1) * maps.shape[3] + x.clamp_max(maps.shape[3] - 1)).flatten(1)
    return maps.flatten(1).gather(1, index).view(len(maps), 1, *positions.shape[2:])


def _transform_intrinsics(intrinsics: Tensor, matrices: Tensor) -> Tensor:
    """Return the intrinsics, N x 3 x 3, of the crops: scaled focal lengths and the mapped principal point.

    The rest of the map, a rotation and a flip, is a transformation of the scene.
    """
    output = intrinsics.clone()
    center = (matrices.to(intrinsics.device) @ intrinsics.double())[:, :2, 2]
    scale = torch.linalg.det(matrices[:, :2, :2]).abs().sqrt().to(intrinsics)
    output[:, :2, :2] = intrinsics[:, :2, :2] * scale.view(-1, 1, 1)
    output[:, :2, 2] = center.to(intrinsics.dtype)
    return output
