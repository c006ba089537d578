"""Scaling, stretching, flipping and cropping: one affine map an axis, and one resampling of every picture.

The map takes each axis alone, so a bilinear sample is a step between two rows and then between two columns. Positions
are worked out in float64 on the CPU, a number a row and a number a column; samples are plain products and sums. So
whole positions give back the pixels themselves, and a sample's bits do not depend on the rest of its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """Where a crop lies: the image is scaled, then flipped, then cut.

    size: (height, width) of the image; crop: (height, width) of what is cut. scale: (x, y) factors. flip: (left and
    right, top and bottom). corner: (x, y) of the crop's first pixel in the scaled and flipped image.
    """

    size: tuple[int, int]
    crop: tuple[int, int]
    scale: tuple[float, float] = (1.0, 1.0)
    flip: tuple[bool, bool] = (False, False)
    corner: tuple[int, int] = (0, 0)

    @property
    def x(self) -> tuple[float, float]:
        """(a, b): what was at x is at a x + b in the crop; the first pixel's center is 0 in both, a < 0 if flipped."""
        return _affine(self.size[1], self.scale[0], self.flip[0], self.corner[0])

    @property
    def y(self) -> tuple[float, float]:
        """(a, b): what was at y is at a y + b in the crop."""
        return _affine(self.size[0], self.scale[1], self.flip[1], self.corner[1])


def _affine(length: int, scale: float, flip: bool, start: int) -> tuple[float, float]:
    """Edges, not centers, are scaled: -0.5 stays where it is and length - 0.5 comes to scale * length - 0.5."""
    if flip:
        return -scale, scale * length - 0.5 - 0.5 * scale - start
    return scale, 0.5 * scale - 0.5 - start


@dataclass(frozen=True)
class _Axis:
    """One axis of a batch: `count` pixels of each crop and where they lie among `length` pixels of its image.

    slope, shift: N x 1, float64, on the CPU, of image to crop. Indices and masks come out N x count, on the device.
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
        """The pixel at a whole position, the last one beyond the border."""
        return position.clamp(0, self.length - 1).long().to(self.device)

    @cached_property
    def below(self) -> Tensor:
        return self._index(self._position.floor())

    @cached_property
    def above(self) -> Tensor:
        return self._index(self._position.floor() + 1)

    @cached_property
    def weight(self) -> Tensor:
        """The share of `above`, float32; that of `below` is the rest."""
        return (self._position - self._position.floor()).float().to(self.device)

    @cached_property
    def nearest(self) -> Tensor:
        return self._index((self._position + 0.5).floor())

    @cached_property
    def inside(self) -> Tensor:
        """Whether a pixel's center lies on the image, which reaches half a pixel beyond the centers of its own."""
        return ((self._position >= -0.5) & (self._position <= self.length - 0.5)).to(self.device)

    @cached_property
    def landing(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The nearer and the farther of the two pixels around each position, and whether each lands in this pixel."""
        nearer = (self._position + 0.5).floor()
        farther = torch.where(self._position > nearer, nearer + 1, nearer - 1)
        return self._lands(nearer), self._lands(farther)

    def _lands(self, pixel: Tensor) -> tuple[Tensor, Tensor]:
        target = (self.slope * pixel + self.shift + 0.5).floor()
        lands = (target == torch.arange(self.count)) & (pixel >= 0) & (pixel < self.length)
        return self._index(pixel), lands.to(self.device)


class Resampling:
    """The crops of a batch, one placement a sample: all of one image size and one crop size."""

    def __init__(self, placements: Sequence[Placement], device: torch.device) -> None:
        size, crop = placements[0].size, placements[0].crop
        if any(placement.size != size or placement.crop != crop for placement in placements):
            raise ValueError("the samples of a batch must share one image size and one crop size")
        x = torch.tensor([placement.x for placement in placements], dtype=torch.float64)
        y = torch.tensor([placement.y for placement in placements], dtype=torch.float64)
        self.size, self.crop = size, crop
        self.columns = _Axis(x[:, :1], x[:, 1:], size[1], crop[1], device)
        self.rows = _Axis(y[:, :1], y[:, 1:], size[0], crop[0], device)
        # What a vector of the image is multiplied by, and the whole map: N x 2, (x, y).
        self.slope = torch.stack((x[:, 0], y[:, 0]), dim=1).to(device)
        self.shift = torch.stack((x[:, 1], y[:, 1]), dim=1).to(device)

    def bilinear(self, maps: Tensor) -> Tensor:
        """N x C x H x W, float, to N x C x h x w; beyond the border its pixels are repeated."""
        maps = _between(_rows(maps, self.rows.below), _rows(maps, self.rows.above), self.rows.weight[:, None, :, None])
        below, above = _columns(maps, self.columns.below), _columns(maps, self.columns.above)
        return _between(below, above, self.columns.weight[:, None, None, :])

    def bilinear_valid(self, valid: Tensor) -> Tensor:
        """Where every value that `bilinear` takes a share of is valid: N x 1 x H x W, bool, to N x 1 x h x w."""
        unused = (self.rows.weight == 0)[:, None, :, None]
        valid = _rows(valid, self.rows.below) & (_rows(valid, self.rows.above) | unused)
        unused = (self.columns.weight == 0)[:, None, None, :]
        valid = _columns(valid, self.columns.below) & (_columns(valid, self.columns.above) | unused)
        return valid & self.inside

    def nearest(self, maps: Tensor) -> Tensor:
        """The nearest pixel of N x C x H x W, to N x C x h x w; beyond the border that on it."""
        return _columns(_rows(maps, self.rows.nearest), self.columns.nearest)

    @property
    def inside(self) -> Tensor:
        """Pixels of the crop that lie on the image: N x 1 x h x w, bool."""
        return (self.rows.inside[:, :, None] & self.columns.inside[:, None, :])[:, None]

    def carry(self, valid: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
        """Measurements with gaps, each carried to the one pixel that it lands in, and none made up between them.

        Where several land in one pixel, that of the nearest row stays, and of that row's the nearest; at scales of half
        and more only the four around a position can. valid: N x 1 x H x W, bool; maps: N x C x H x W. Returns where
        something landed, N x 1 x h x w, bool, and the maps, N x C x h x w, 0 elsewhere.
        """
        batch, height, width = len(valid), *self.crop
        landed = torch.zeros(batch, height, width, dtype=torch.bool, device=valid.device)
        source = torch.zeros(batch, height, width, dtype=torch.int64, device=valid.device)
        flat = valid.flatten(1)
        for row, row_lands in self.rows.landing:
            for column, column_lands in self.columns.landing:
                index = row[:, :, None] * self.size[1] + column[:, None, :]
                known = flat.gather(1, index.flatten(1)).view(batch, height, width)
                here = known & row_lands[:, :, None] & column_lands[:, None, :] & ~landed
                source = torch.where(here, index, source)
                landed = landed | here
        landed = landed[:, None]
        carried = []
        for values in maps:
            index = source.flatten(1)[:, None].expand(-1, values.shape[1], -1)
            taken = values.flatten(2).gather(2, index).view(batch, -1, height, width)
            carried.append(torch.where(landed, taken, torch.zeros_like(taken)))
        return landed, *carried


def _rows(maps: Tensor, index: Tensor) -> Tensor:
    return maps.gather(2, index[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[3]))


def _columns(maps: Tensor, index: Tensor) -> Tensor:
    return maps.gather(3, index[:, None, None, :].expand(-1, maps.shape[1], maps.shape[2], -1))


def _between(below: Tensor, above: Tensor, weight: Tensor) -> Tensor:
    # Not torch.lerp: its fused and unfused paths round differently, and which one a pixel takes depends on the batch.
    return below + (above - below) * weight.to(below.dtype)
