"""Spatial augmentation: scale, stretch, flip and crop as one affine map per axis, applied in a single resampling.

The map is separable, so bilinear sampling interpolates between two rows and then between two columns. Positions are
computed in float64 on the CPU, one per row and one per column. Integer positions therefore reproduce the pixels
exactly, and the result for a sample does not depend on the rest of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placement:
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
    """Resamples a batch with one placement per sample.

    Args:
        placements: One per sample, with the same image size and crop size.
        device: Device of the maps.
    """

    def __init__(self, placements: Sequence[Placement], device: torch.device) -> None:
        size, crop = placements[0].size, placements[0].crop
        if any(placement.size != size or placement.crop != crop for placement in placements):
            raise ValueError("the samples of a batch must share one image size and one crop size")
        x = torch.tensor([placement.x for placement in placements], dtype=torch.float64)
        y = torch.tensor([placement.y for placement in placements], dtype=torch.float64)
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
