"""Augmentation of optical flow samples as in RAFT: color jitter, erased boxes, scale, stretch, flips and a crop.

`sample_flow_parameters` samples the parameters of one sample from its key alone, `apply_flow` applies them to a batch
on any device, and `augment_flow` does both.

Differences from RAFT: the order of the color changes is fixed, images are resampled once, and an image may be scaled to
exactly the size of the crop, without a margin of 8 pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.datasets.augmentation.photometric import (
    NEUTRAL,
    Box,
    Jitter,
    Key,
    ParameterSampler,
    check_settings,
    erase,
    jitter,
    sample_boxes,
    sample_jitter,
)
from protoformer.datasets.augmentation.spatial import Placement, Resampling
from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.io.config_reader import bounded
from protoformer.synthetic.samples import FlowSample


@dataclass(frozen=True)
class Augmentation:
    """Configuration of the flow augmentation; the defaults are those of RAFT for FlyingChairs.

    Bilinear sampling skips no pixel down to half the size, so there is no other anti-aliasing; smaller scales are
    rejected.

    Attributes:
        crop: (height, width) of the output, in pixels. Smaller images are scaled up to cover it.
        min_scale: Lower bound of the scale, as an exponent of 2.
        max_scale: Upper bound of the scale, as an exponent of 2.
        scale_probability: Probability that the image is scaled.
        stretch: Maximum additional scale per axis, as an exponent of 2, in both directions.
        stretch_probability: Probability of a stretch if the image is scaled.
        flip_horizontal: Probability of a horizontal flip.
        flip_vertical: Probability of a vertical flip.
        brightness: Strength; the factor lies in [1 - strength, 1 + strength].
        contrast: Strength, as for brightness.
        saturation: Strength, as for brightness.
        hue: Maximum rotation of the hue, in radians, in both directions.
        asymmetric: Probability that the second image has a color jitter of its own.
        erase: Probability that one or two boxes of the second image are filled with its mean color, to simulate
            occlusion; the flow is unchanged.
        erase_size: Minimum and maximum side of these boxes, in pixels.
        sparse: Whether the ground truth is sparse and is moved vector by vector; dense ground truth is interpolated.
    """

    crop: tuple[int, int] = bounded((368, 496), min=1)
    min_scale: float = -0.1
    max_scale: float = 1.0
    scale_probability: float = bounded(0.8, min=0, max=1)
    stretch: float = bounded(0.2, min=0)
    stretch_probability: float = bounded(0.8, min=0, max=1)
    flip_horizontal: float = bounded(0.5, min=0, max=1)
    flip_vertical: float = bounded(0.1, min=0, max=1)
    brightness: float = bounded(0.4, min=0)
    contrast: float = bounded(0.4, min=0)
    saturation: float = bounded(0.4, min=0)
    hue: float = bounded(1.0, min=0)
    asymmetric: float = bounded(0.2, min=0, max=1)
    erase: float = bounded(0.5, min=0, max=1)
    erase_size: tuple[int, int] = bounded((50, 100), min=1)
    sparse: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.min_scale - self.stretch < -1:
            raise InputError(
                f"the augmentation's min_scale {self.min_scale} less its stretch {self.stretch} is below -1 (half the"
                " size), where sampling would skip pixels; raise min_scale or lower stretch."
            )


AUGMENTATIONS: dict[str, Augmentation] = {
    "chairs": Augmentation(),
    "things": Augmentation(crop=(432, 960), min_scale=-0.4, max_scale=0.8),
    "sintel": Augmentation(crop=(432, 960), min_scale=-0.2, max_scale=0.6),
    "kitti": Augmentation(
        crop=(432, 960),
        min_scale=-0.2,
        max_scale=0.4,
        stretch_probability=0.0,
        flip_horizontal=0.0,
        flip_vertical=0.0,
        brightness=0.3,
        contrast=0.3,
        saturation=0.3,
        hue=0.6,
        asymmetric=0.0,
        sparse=True,
    ),
}


@dataclass(frozen=True)
class Parameters:
    """Augmentation parameters of one sample.

    The boxes (x, y, w, h) erased from the second image are in its pixels before resampling.
    """

    placement: Placement
    first: Jitter = NEUTRAL
    second: Jitter = NEUTRAL
    erased: tuple[Box, ...] = ()


def sample_flow_parameters(config: Augmentation, key: Key, size: tuple[int, int]) -> Parameters:
    """Sample the parameters of the sample with a key (seed, epoch, index) and images of size (height, width)."""
    draws = ParameterSampler(key)
    first = sample_jitter(config, draws, "first")
    second = sample_jitter(config, draws, "second") if draws.bernoulli("asymmetric", config.asymmetric) else first
    return Parameters(_sample_placement(config, draws, size), first, second, sample_boxes(config, draws, size))


def _sample_placement(config: Augmentation, draws: ParameterSampler, size: tuple[int, int]) -> Placement:
    scale_x, scale_y = 1.0, 1.0
    if draws.bernoulli("scaled", config.scale_probability):
        scale_x = scale_y = 2 ** draws.uniform("scale", config.min_scale, config.max_scale)
        if draws.bernoulli("stretched", config.stretch_probability):
            scale_x *= 2 ** draws.uniform("stretch x", -config.stretch, config.stretch)
            scale_y *= 2 ** draws.uniform("stretch y", -config.stretch, config.stretch)
    (height, width), (crop_height, crop_width) = size, config.crop
    min_scale = max(crop_height / height, crop_width / width)
    scale_x, scale_y = max(scale_x, min_scale), max(scale_y, min_scale)
    # The tolerance keeps a rounding error of the minimum scale from costing a pixel.
    max_x = max(0, math.floor(scale_x * width - crop_width + 1e-6))
    max_y = max(0, math.floor(scale_y * height - crop_height + 1e-6))
    return Placement(
        size=size,
        crop=config.crop,
        scale=(scale_x, scale_y),
        flip=(
            draws.bernoulli("flip horizontal", config.flip_horizontal),
            draws.bernoulli("flip vertical", config.flip_vertical),
        ),
        corner=(draws.integer("corner x", 0, max_x), draws.integer("corner y", 0, max_y)),
    )


def apply_flow(sample: FlowSample, parameters: Sequence[Parameters], sparse: bool) -> FlowSample:
    """Apply augmentation parameters to a batch.

    Dense flow is valid where all vectors it is interpolated from are valid; sparse flow and its occlusion are moved
    without interpolation. Pixels whose flow leaves the crop are added to the occlusion mask, if there is one; erased
    pixels are not.

    Args:
        sample: N pairs of images in [0, 1], with flow in pixels.
        parameters: One per pair.
        sparse: Whether the flow is sparse.

    Returns:
        N pairs of the size of the crop.
    """
    resampling = _build_resampling(sample.first, parameters)
    second = jitter(sample.second, [params.second for params in parameters])
    second = erase(second, [params.erased for params in parameters])
    occlusion = None if sample.occlusion is None else resampling.nearest(sample.occlusion)
    if sparse:
        extra = () if sample.occlusion is None else (sample.occlusion,)
        valid, flow, *splatted_occlusion = resampling.splat(sample.valid, sample.flow, *extra)
        if occlusion is not None:
            occlusion = torch.where(valid, splatted_occlusion[0], occlusion)
    else:
        valid, flow = resampling.bilinear_valid(sample.valid), resampling.bilinear(sample.flow)
    flow = flow * resampling.slope.to(flow.dtype)[:, :, None, None]
    flow = torch.where(valid, flow, torch.zeros_like(flow))
    if occlusion is not None:
        height, width = flow.shape[-2:]
        occlusion = occlusion | ~inside_image(pixel_grid(height, width, flow.device) + flow, height, width)
    return replace(
        sample,
        first=resampling.bilinear(jitter(sample.first, [params.first for params in parameters])),
        second=resampling.bilinear(second),
        flow=flow,
        valid=valid,
        occlusion=occlusion,
    )


def _build_resampling(images: Tensor, parameters: Sequence[Parameters]) -> Resampling:
    if len(parameters) != len(images):
        raise ValueError(f"a batch of {len(images)} needs as many parameters, not {len(parameters)}")
    resampling = Resampling([params.placement for params in parameters], images.device)
    if resampling.size != tuple(images.shape[-2:]):
        raise ValueError(f"the parameters are for images of {resampling.size}, not of {tuple(images.shape[-2:])}")
    return resampling


def augment_flow(sample: FlowSample, config: Augmentation, keys: Sequence[Key]) -> FlowSample:
    """Augment a batch of N pairs, with one key (seed, epoch, index) per pair; returns pairs of the size of the crop."""
    height, width = sample.first.shape[-2:]
    return apply_flow(sample, [sample_flow_parameters(config, key, (height, width)) for key in keys], config.sparse)
