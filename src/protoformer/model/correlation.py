"""Similarity of every pixel of one map to every pixel of another, read in windows around a moving estimate.

Two sources of the same numbers: `StoredCorrelation` keeps the all-pairs volume, (HW)^2 values; `OnDemandCorrelation`
keeps only the feature maps and computes the values that a window asks for. `RowCorrelation` keeps the volume, too, laid
out to be read row by row of a window, in the precision of the features.
"""

import abc

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.model.precision import full_precision
from protoformer.model.tokens import maps_of, size_of, tokens_of

GATHER_LIMIT = 2**24
"""How many feature values an on-demand look-up gathers at a time; it bounds the memory, not the result."""


class Correlation(abc.ABC):
    """Look-ups in the correlation of a source and a target map, B x C x H x W each, over a pyramid of the target.

    A value is the dot product of two features divided by sqrt(C). Level l averages the target over 2^l x 2^l pixels,
    or over as many of them as the image has at its right and lower edge.
    """

    def __init__(self, source: Tensor, levels: int) -> None:
        self.size, self.levels = size_of(source), levels
        self.scale = source.shape[1] ** -0.5

    @abc.abstractmethod
    def windows(self, centres: Tensor, radius: int) -> Tensor:
        """Costs in a square window around each pixel's estimate, on every level, zero outside the target.

        centres: B x 2 x H x W, where in the target (x, y; pixels of level 0) each source pixel is looked for.
        Returns B x (levels (2 radius + 1)^2) x H x W; a window is read row by row.
        """


def pyramid_of(target: Tensor, levels: int) -> list[Tensor]:
    """Levels of a target map, the finest first, in float32."""
    target = target.float()
    return [target, *(F.avg_pool2d(target, 2**level, ceil_mode=True) for level in range(1, levels))]


class InterpolatedCorrelation(Correlation):
    """Look-ups by costs at whole pixels, which are found somehow, and interpolated."""

    def windows(self, centres: Tensor, radius: int) -> Tensor:
        """As in `Correlation`."""
        centres = tokens_of(centres.float())
        found = []
        for level in range(self.levels):
            corner, fraction = _at_level(centres, level)
            costs = self._integer_windows(level, corner - radius, _side(radius))
            found.append(_interpolate(costs, fraction))
        return maps_of(torch.cat(found, dim=-1), self.size)

    @abc.abstractmethod
    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        """Costs at whole pixels, from `corners` (B x HW x 2, top left) on: B x HW x side x side."""


class PlainCorrelation(InterpolatedCorrelation):
    """Keeps the maps in full precision."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        # In half precision neighbouring costs round to the same number, and sub-pixel motion is lost.
        self.source = tokens_of(source.float()) * self.scale
        self.pyramid = pyramid_of(target, levels)


class StoredCorrelation(PlainCorrelation):
    """All costs computed once and kept."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, target, levels)
        with full_precision(source):
            self.volumes = [self.source @ level.flatten(2) for level in self.pyramid]

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        index, within = window_index(corners, side, size_of(self.pyramid[level]))
        costs: Tensor = self.volumes[level].gather(2, index) * within
        return costs.view(*index.shape[:2], side, side)


class RowCorrelation(Correlation):
    """All costs computed once and kept in the precision of the features, which is that of the windows, too.

    For use on a CPU, and windows up to `radius`. Every row of a target begins with as many zeros as a window is wide,
    and the first is all zeros, as is what an additional last source pixel sees: so a row of a window that lies wherever
    is read as a whole, and needs no mask.
    """

    def __init__(self, source: Tensor, target: Tensor, levels: int, radius: int) -> None:
        super().__init__(source, levels)
        self.radius, self.side = radius, _side(radius)
        pyramid = [level.to(source.dtype) for level in pyramid_of(target, levels)]
        self.sizes = [size_of(level) for level in pyramid]
        pixels = F.pad(tokens_of(source), (0, 0, 0, 1))
        self.volumes = [pixels @ F.pad(level, (self.side, 0, 1, 0)).flatten(2) for level in pyramid]

    def windows(self, centres: Tensor, radius: int) -> Tensor:
        """As in `Correlation`, in the precision of the features."""
        if radius > self.radius:
            raise ValueError(f"these costs are laid out for windows of radius {self.radius} at most, not {radius}")
        centres = tokens_of(centres.float())
        window = (2 * radius + 1) ** 2
        found = self.volumes[0].new_empty(*centres.shape[:2], self.levels * window)
        for level in range(self.levels):
            corner, fraction = _at_level(centres, level)
            costs = self._integer_windows(level, corner - radius, _side(radius)).float() * self.scale
            found[..., level * window : (level + 1) * window] = _interpolate(costs, fraction)
        return maps_of(found, self.size)

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        volume, (height, width) = self.volumes[level], self.sizes[level]
        batch, pixels = corners.shape[:2]
        x = corners[..., :1].clamp(-self.side, width) + self.side
        y = (corners[..., 1:] + torch.arange(side)).clamp(-1, height) + 1
        begin = torch.arange(batch * (pixels + 1)).view(batch, -1, 1)[:, :-1] * volume.shape[2]
        rows = volume.as_strided((volume.numel() - side, side), (1, 1))
        found = rows.index_select(0, (begin + y * (width + self.side) + x).flatten())
        return found.view(batch, pixels, side, side)


class OnDemandCorrelation(PlainCorrelation):
    """Costs computed where they are looked for: memory grows with the pixels, not with their square.

    For use rather than training, which would keep the features of every window for the way back.
    """

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        target = self.pyramid[level]
        batch, channels = target.shape[:2]
        step = max(1, GATHER_LIMIT // (batch * side * side * channels))
        flat = tokens_of(target)
        rows = torch.arange(batch, device=target.device).view(-1, 1, 1)
        found = []
        for source, some in zip(self.source.split(step, dim=1), corners.split(step, dim=1), strict=True):
            index, within = window_index(some, side, size_of(target))
            with full_precision(target):
                costs = (flat[rows, index] @ source[..., None]).squeeze(-1)
            found.append(costs * within)
        return torch.cat(found, dim=1).view(batch, -1, side, side)


def _side(radius: int) -> int:
    """Whole pixels along a side that the interpolated values of a window are between."""
    return 2 * radius + 2


def _at_level(centres: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Where centres (B x n x 2, pixels of level 0) lie on a level: the pixel at their top left, and how far past it."""
    # Pixel i of level l is the mean of pixels 2^l i .. 2^l (i + 1) - 1: its centre lies half a pixel off.
    at_level = (centres + 0.5) / 2**level - 0.5
    corner = at_level.floor()
    return corner.long(), at_level - corner


def window_index(corners: Tensor, side: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Flat indices of the pixels of each window, clamped to a map of a size, and whether they lie on it, 1 or 0.

    corners: B x n x 2, whole, the top left of each window. Both B x n x side^2.
    """
    height, width = size
    offsets = torch.arange(side, device=corners.device)
    x, y = corners[..., :1] + offsets, corners[..., 1:] + offsets
    within = ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]
    index = y.clamp(0, height - 1)[..., :, None] * width + x.clamp(0, width - 1)[..., None, :]
    return index.flatten(2), within.flatten(2).float()


def _interpolate(costs: Tensor, fraction: Tensor) -> Tensor:
    """Bilinear values of windows that all lie `fraction` (B x n x 2) past whole pixels.

    One fraction serves a whole window, so (side - 1)^2 values come from side^2 reads: B x n x (side - 1)^2.
    """
    x, y = fraction[..., :1, None], fraction[..., 1:, None]
    rows = torch.lerp(costs[..., :-1, :], costs[..., 1:, :], y)
    return torch.lerp(rows[..., :-1], rows[..., 1:], x).flatten(2)


def all_pairs_bytes(size: tuple[int, int], levels: int, batch: int = 1) -> int:
    """Bytes that StoredCorrelation keeps for maps of (H, W)."""
    total = sum(height * width for height, width in _level_sizes(size, levels))
    return 4 * batch * size[0] * size[1] * total


def row_bytes(size: tuple[int, int], levels: int, radius: int) -> int:
    """Bytes that RowCorrelation keeps for maps of (H, W) in half precision, zeros among them."""
    total = sum((height + 1) * (width + _side(radius)) for height, width in _level_sizes(size, levels))
    return 2 * (size[0] * size[1] + 1) * total


def _level_sizes(size: tuple[int, int], levels: int) -> list[tuple[int, int]]:
    """(H, W) of the levels of a pyramid, the finest first."""
    return [(-(-size[0] // 2**level), -(-size[1] // 2**level)) for level in range(levels)]
