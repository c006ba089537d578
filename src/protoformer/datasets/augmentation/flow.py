"""Augmentation after RAFT: colors, erased patches, scale, stretch, flips and a crop.

Two steps. `draw` takes the random numbers of one sample from its key alone (see augmentation_numbers); `apply_flow`
uses them on a batch, on whatever device it is. `augment_flow` does both.

Unlike RAFT: the order of the color changes is fixed, the picture is resampled once, and an image may be scaled to just
the crop's size, without a margin of 8 pixels.
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
from protoformer.synthetic.samples import FlowSample

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Jitter",
    "Key",
    "Parameters",
    "Placement",
    "apply_flow",
    "augment_flow",
    "sample_flow_parameters",
]


@dataclass(frozen=True)
class Augmentation:
    """How much samples are varied; the defaults are RAFT's for FlyingChairs.

    crop: (height, width) of what comes out, pixels. An image too small for it is scaled up until it covers it.
    min_scale, max_scale: exponents of 2 between which the scale lies. scale_probability: else the size stays.
    stretch: exponent of 2, either way and each axis for itself, on top of the scale; stretch_probability.
    flip_horizontal, flip_vertical: probabilities of left and right, of top and bottom changing places.
    brightness, contrast, saturation: factors lie in 1 - strength .. 1 + strength. hue: turn either way, radians.
    asymmetric: probability that the second image's colors change in a way of their own.
    erase: probability that one or two boxes of the second image turn its mean color, as if hidden (the flow stays);
        erase_size: least and most pixels a side.
    sparse: the truth has gaps, so it is carried vector by vector; a dense truth is interpolated.

    Bilinear sampling passes no pixel over down to half the size, so there is no other guard against aliasing; smaller
    scales are refused.
    """

    crop: tuple[int, int] = (368, 496)
    min_scale: float = -0.1
    max_scale: float = 1.0
    scale_probability: float = 0.8
    stretch: float = 0.2
    stretch_probability: float = 0.8
    flip_horizontal: float = 0.5
    flip_vertical: float = 0.1
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 1.0
    asymmetric: float = 0.2
    erase: float = 0.5
    erase_size: tuple[int, int] = (50, 100)
    sparse: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.min_scale - self.stretch < -1:
            raise InputError(
                f"the augmentation's min_scale {self.min_scale} less its stretch {self.stretch} is below -1, half the"
                " size, where pixels would be passed over; raise one or lower the other."
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
    """Everything random about one sample. erased: boxes (x, y, w, h) of the second image, in its own pixels."""

    placement: Placement
    first: Jitter = NEUTRAL
    second: Jitter = NEUTRAL
    erased: tuple[Box, ...] = ()


def sample_flow_parameters(config: Augmentation, key: Key, size: tuple[int, int]) -> Parameters:
    """The parameters of the sample with this key, (seed, epoch, index), whose images have this (height, width)."""
    draws = ParameterSampler(key)
    first = sample_jitter(config, draws, "first")
    second = sample_jitter(config, draws, "second") if draws.happens("asymmetric", config.asymmetric) else first
    return Parameters(_draw_placement(config, draws, size), first, second, sample_boxes(config, draws, size))


def _draw_placement(config: Augmentation, draws: ParameterSampler, size: tuple[int, int]) -> Placement:
    across, down = 1.0, 1.0
    if draws.happens("scaled", config.scale_probability):
        across = down = 2 ** draws.between("scale", config.min_scale, config.max_scale)
        if draws.happens("stretched", config.stretch_probability):
            across *= 2 ** draws.between("stretch x", -config.stretch, config.stretch)
            down *= 2 ** draws.between("stretch y", -config.stretch, config.stretch)
    (height, width), (crop_height, crop_width) = size, config.crop
    covering = max(crop_height / height, crop_width / width)
    across, down = max(across, covering), max(down, covering)
    # The slack keeps a rounding error of the covering scale from costing a pixel.
    room_x = max(0, math.floor(across * width - crop_width + 1e-6))
    room_y = max(0, math.floor(down * height - crop_height + 1e-6))
    return Placement(
        size=size,
        crop=config.crop,
        scale=(across, down),
        flip=(
            draws.happens("flip horizontal", config.flip_horizontal),
            draws.happens("flip vertical", config.flip_vertical),
        ),
        corner=(draws.whole("corner x", 0, room_x), draws.whole("corner y", 0, room_y)),
    )


def apply_flow(sample: FlowSample, parameters: Sequence[Parameters], sparse: bool) -> FlowSample:
    """A batch of N pairs by N parameters; images in [0, 1] and flow in pixels, of the crop's size.

    A dense flow is valid where every vector it is interpolated from was; a sparse one is carried, and its occlusion
    with it. Pixels whose flow leaves the crop join the occlusion, where that is known; erased ones do not.
    """
    resampling = _resampling(sample.first, parameters)
    second = jitter(sample.second, [each.second for each in parameters])
    second = erase(second, [each.erased for each in parameters])
    occlusion = None if sample.occlusion is None else resampling.nearest(sample.occlusion)
    if sparse:
        extra = () if sample.occlusion is None else (sample.occlusion,)
        valid, flow, *hidden = resampling.carry(sample.valid, sample.flow, *extra)
        if occlusion is not None:
            occlusion = torch.where(valid, hidden[0], occlusion)
    else:
        valid, flow = resampling.bilinear_valid(sample.valid), resampling.bilinear(sample.flow)
    flow = flow * resampling.slope.to(flow.dtype)[:, :, None, None]
    flow = torch.where(valid, flow, torch.zeros_like(flow))
    if occlusion is not None:
        height, width = flow.shape[-2:]
        occlusion = occlusion | ~inside_image(pixel_grid(height, width, flow.device) + flow, height, width)
    return replace(
        sample,
        first=resampling.bilinear(jitter(sample.first, [each.first for each in parameters])),
        second=resampling.bilinear(second),
        flow=flow,
        valid=valid,
        occlusion=occlusion,
    )


def _resampling(images: Tensor, parameters: Sequence[Parameters]) -> Resampling:
    if len(parameters) != len(images):
        raise ValueError(f"a batch of {len(images)} needs as many parameters, not {len(parameters)}")
    resampling = Resampling([each.placement for each in parameters], images.device)
    if resampling.size != tuple(images.shape[-2:]):
        raise ValueError(f"the parameters are for images of {resampling.size}, not of {tuple(images.shape[-2:])}")
    return resampling


def augment_flow(sample: FlowSample, config: Augmentation, keys: Sequence[Key]) -> FlowSample:
    """The batch augmented, a key (seed, epoch, index) a sample: N pairs of the crop's size."""
    height, width = sample.first.shape[-2:]
    return apply_flow(sample, [sample_flow_parameters(config, key, (height, width)) for key in keys], config.sparse)
