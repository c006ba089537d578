"""Augmentation of optical flow samples as in RAFT: color jitter, erased boxes, scale, stretch, flips and a crop.

`sample_flow_parameters` samples the parameters of one sample from its key alone, `apply_flow` applies them to a batch
on any device, and `augment_flow` does both.

Scale, stretch, flip and crop are one affine map per axis, applied in a single resampling (`Resampling`). The map is
separable, so bilinear sampling interpolates between two rows and then between two columns. Positions are computed in
float64 on the CPU, one per row and one per column. Integer positions therefore reproduce the pixels exactly, and the
result for a sample does not depend on the rest of its batch.

Differences from RAFT: the order of the color changes is fixed, images are resampled once, and an image may be scaled to
exactly the size of the crop, without a margin of 8 pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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
from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.io.config_reader import bounded
from protoformer.synthetic.samples import FlowSample


@dataclass(frozen=True)
class CropGeometry:
    """Geometry of one crop: the image is scaled, then flipped, then cropped.

    Attributes:
        size: (height, width) of the image.
        crop: (height, width) of the crop.
        scale: Factors (x, y).
        flip: (horizontal, vertical).
        corner: (x, y) of the first pixel of the crop in the scaled and flipped image.
    """

    size: tuple[int, int]
    crop: tuple[int, int]
    scale: tuple[float, float] = (1.0, 1.0)
    flip: tuple[bool, bool] = (False, False)
    corner: tuple[int, int] = (0, 0)

    @property
    def x(self) -> tuple[float, float]:
        """(a, b) of the map a x + b from image to crop; pixel centers are at integers, and a < 0 if flipped."""
        return _affine(self.size[1], self.scale[0], self.flip[0], self.corner[0])

    @property
    def y(self) -> tuple[float, float]:
        """(a, b) of the map a y + b from image to crop."""
        return _affine(self.size[0], self.scale[1], self.flip[1], self.corner[1])


def _affine(length: int, scale: float, flip: bool, start: int) -> tuple[float, float]:
    """Return (a, b) of one axis; edges are aligned: -0.5 maps to -0.5 and length - 0.5 to scale * length - 0.5."""
    if flip:
        return -scale, scale * length - 0.5 - 0.5 * scale - start
    return scale, 0.5 * scale - 0.5 - start


@dataclass(frozen=True)
class _Axis:
    """Sampling positions along one axis of a batch, with `length` pixels in the image and `count` in the crop.

    Slope and shift of the map from image to crop are N x 1, float64, on the CPU; indices and masks are N x count, on
    the device.
    """

    slope: Tensor
    shift: Tensor
    length: int
    count: int
    device: torch.device

    @cached_property
    def _position(self) -> Tensor:
        return (torch.arange(self.count, dtype=torch.float64) - self.shift) / self.slope

    def _index(self, position: Tensor) -> Tensor:
        """Convert integer positions to pixel indices, clamped to the image."""
        return position.clamp(0, self.length - 1).long().to(self.device)

    @cached_property
    def below(self) -> Tensor:
        return self._index(self._position.floor())

    @cached_property
    def above(self) -> Tensor:
        return self._index(self._position.floor() + 1)

    @cached_property
    def weight(self) -> Tensor:
        """Weight of `above`, float32; the weight of `below` is 1 minus it."""
        return (self._position - self._position.floor()).float().to(self.device)

    @cached_property
    def nearest(self) -> Tensor:
        return self._index((self._position + 0.5).floor())

    @cached_property
    def inside(self) -> Tensor:
        """Whether a pixel center lies on the image, which extends half a pixel beyond its outer pixel centers."""
        return ((self._position >= -0.5) & (self._position <= self.length - 0.5)).to(self.device)

    @cached_property
    def landing(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The nearer and the farther source pixel of each position, and whether each maps into this crop pixel."""
        nearer = (self._position + 0.5).floor()
        farther = torch.where(self._position > nearer, nearer + 1, nearer - 1)
        return self._lands(nearer), self._lands(farther)

    def _lands(self, pixel: Tensor) -> tuple[Tensor, Tensor]:
        target = (self.slope * pixel + self.shift + 0.5).floor()
        lands = (target == torch.arange(self.count)) & (pixel >= 0) & (pixel < self.length)
        return self._index(pixel), lands.to(self.device)


class Resampling:
    """Resamples a batch with one geometry per sample.

    Args:
        geometries: One per sample, with the same image size and crop size.
        device: Device of the maps.
    """

    def __init__(self, geometries: Sequence[CropGeometry], device: torch.device) -> None:
        size, crop = geometries[0].size, geometries[0].crop
        if any(geometry.size != size or geometry.crop != crop for geometry in geometries):
            raise ValueError("the samples of a batch must share one image size and one crop size")
        x = torch.tensor([geometry.x for geometry in geometries], dtype=torch.float64)
        y = torch.tensor([geometry.y for geometry in geometries], dtype=torch.float64)
        self.size, self.crop = size, crop
        self.columns = _Axis(x[:, :1], x[:, 1:], size[1], crop[1], device)
        self.rows = _Axis(y[:, :1], y[:, 1:], size[0], crop[0], device)
        # The map from image to crop, N x 2, (x, y); a flow vector is multiplied by the slope.
        self.slope = torch.stack((x[:, 0], y[:, 0]), dim=1).to(device)
        self.shift = torch.stack((x[:, 1], y[:, 1]), dim=1).to(device)

    def bilinear(self, maps: Tensor) -> Tensor:
        """Sample N x C x H x W, float, bilinearly to N x C x h x w; borders are replicated."""
        maps = _lerp(
            _gather_rows(maps, self.rows.below), _gather_rows(maps, self.rows.above), self.rows.weight[:, None, :, None]
        )
        below, above = _gather_columns(maps, self.columns.below), _gather_columns(maps, self.columns.above)
        return _lerp(below, above, self.columns.weight[:, None, None, :])

    def bilinear_valid(self, valid: Tensor) -> Tensor:
        """Return where all values that `bilinear` combines are valid: N x 1 x H x W, bool, to N x 1 x h x w."""
        unused = (self.rows.weight == 0)[:, None, :, None]
        valid = _gather_rows(valid, self.rows.below) & (_gather_rows(valid, self.rows.above) | unused)
        unused = (self.columns.weight == 0)[:, None, None, :]
        valid = _gather_columns(valid, self.columns.below) & (_gather_columns(valid, self.columns.above) | unused)
        return valid & self.inside

    def nearest(self, maps: Tensor) -> Tensor:
        """Sample the nearest pixels of N x C x H x W to N x C x h x w; borders are replicated."""
        return _gather_columns(_gather_rows(maps, self.rows.nearest), self.columns.nearest)

    @property
    def inside(self) -> Tensor:
        """Pixels of the crop that lie on the image: N x 1 x h x w, bool."""
        return (self.rows.inside[:, :, None] & self.columns.inside[:, None, :])[:, None]

    def splat(self, valid: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
        """Move sparse measurements to the crop pixels they map into, without interpolation.

        If several map into one pixel, the one of the nearest row wins, then that of the nearest column. At scales of
        0.5 and more only the four pixels around a position can map into it.

        Args:
            valid: N x 1 x H x W, bool.
            *maps: N x C x H x W each.

        Returns:
            Where a measurement landed, N x 1 x h x w, bool, and the maps, N x C x h x w, 0 elsewhere.
        """
        batch, height, width = len(valid), *self.crop
        landed = torch.zeros(batch, height, width, dtype=torch.bool, device=valid.device)
        source = torch.zeros(batch, height, width, dtype=torch.int64, device=valid.device)
        flat = valid.flatten(1)
        for row, row_lands in self.rows.landing:
            for column, column_lands in self.columns.landing:
                index = row[:, :, None] * self.size[1] + column[:, None, :]
                has_value = flat.gather(1, index.flatten(1)).view(batch, height, width)
                lands = has_value & row_lands[:, :, None] & column_lands[:, None, :] & ~landed
                source = torch.where(lands, index, source)
                landed = landed | lands
        landed = landed[:, None]
        outputs = []
        for values in maps:
            index = source.flatten(1)[:, None].expand(-1, values.shape[1], -1)
            gathered = values.flatten(2).gather(2, index).view(batch, -1, height, width)
            outputs.append(torch.where(landed, gathered, torch.zeros_like(gathered)))
        return landed, *outputs


def _gather_rows(maps: Tensor, index: Tensor) -> Tensor:
    return maps.gather(2, index[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[3]))


def _gather_columns(maps: Tensor, index: Tensor) -> Tensor:
    return maps.gather(3, index[:, None, None, :].expand(-1, maps.shape[1], maps.shape[2], -1))


def _lerp(below: Tensor, above: Tensor, weight: Tensor) -> Tensor:
    # Not torch.lerp: its fused and unfused paths round differently, and which one a pixel takes depends on the batch.
    return below + (above - below) * weight.to(below.dtype)


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

    geometry: CropGeometry
    first: Jitter = NEUTRAL
    second: Jitter = NEUTRAL
    erased: tuple[Box, ...] = ()


def sample_flow_parameters(config: Augmentation, key: Key, size: tuple[int, int]) -> Parameters:
    """Sample the parameters of the sample with a key (seed, epoch, index) and images of size (height, width)."""
    draws = ParameterSampler(key)
    first = sample_jitter(config, draws, "first")
    second = sample_jitter(config, draws, "second") if draws.bernoulli("asymmetric", config.asymmetric) else first
    return Parameters(_sample_geometry(config, draws, size), first, second, sample_boxes(config, draws, size))


def _sample_geometry(config: Augmentation, draws: ParameterSampler, size: tuple[int, int]) -> CropGeometry:
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
    return CropGeometry(
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
    resampling = Resampling([params.geometry for params in parameters], images.device)
    if resampling.size != tuple(images.shape[-2:]):
        raise ValueError(f"the parameters are for images of {resampling.size}, not of {tuple(images.shape[-2:])}")
    return resampling


def augment_flow(sample: FlowSample, config: Augmentation, keys: Sequence[Key]) -> FlowSample:
    """Augment a batch of N pairs, with one key (seed, epoch, index) per pair; returns pairs of the size of the crop."""
    height, width = sample.first.shape[-2:]
    return apply_flow(sample, [sample_flow_parameters(config, key, (height, width)) for key in keys], config.sparse)
