"""Similarity of every pixel of one map to every pixel of another, read in windows around a moving estimate.

Two sources of the same numbers: `StoredCorrelation` keeps the all-pairs volume, (HW)^2 values; `OnDemandCorrelation`
keeps only the feature maps and computes the values that a window asks for. `RowCorrelation` keeps the volume, too, laid
out to be read row by row of a window, in the precision of the features.
"""

import abc
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from protoformer.models.layers import ALIGNMENT
from protoformer.models.runtime import full_precision, map_size, maps_to_tokens, tokens_to_maps

GATHER_LIMIT = 2**24
"""How many feature values an on-demand look-up gathers at a time; it bounds the memory, not the result."""


class Correlation(abc.ABC):
    """Look-ups in the correlation of a source and a target map, B x C x H x W each, over a pyramid of the target.

    A value is the dot product of two features divided by sqrt(C). Level l averages the target over 2^l x 2^l pixels,
    or over as many of them as the image has at its right and lower edge.
    """

    def __init__(self, source: Tensor, levels: int) -> None:
        self.size, self.levels = map_size(source), levels
        self.scale = source.shape[1] ** -0.5

    @abc.abstractmethod
    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """Costs in a square window around each pixel's estimate, on every level, zero outside the target.

        centers: B x 2 x H x W, where in the target (x, y; pixels of level 0) each source pixel is looked for.
        Returns B x (levels (2 radius + 1)^2) x H x W; a window is read row by row.
        """


def pyramid_of(target: Tensor, levels: int) -> list[Tensor]:
    """Levels of a target map, the finest first, in float32."""
    target = target.float()
    return [target, *(F.avg_pool2d(target, 2**level, ceil_mode=True) for level in range(1, levels))]


class InterpolatedCorrelation(Correlation):
    """Look-ups by costs at whole pixels, which are found somehow, and interpolated."""

    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """As in `Correlation`."""
        centers = maps_to_tokens(centers.float())
        found = []
        for level in range(self.levels):
            corner, fraction = _at_level(centers, level)
            costs = self._integer_windows(level, corner - radius, _side(radius))
            found.append(_interpolate(costs, fraction))
        return tokens_to_maps(torch.cat(found, dim=-1), self.size)

    @abc.abstractmethod
    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        """Costs at whole pixels, from `corners` (B x HW x 2, top left) on: B x HW x side x side."""


class PlainCorrelation(InterpolatedCorrelation):
    """Keeps the maps in full precision."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        # In half precision neighboring costs round to the same number, and sub-pixel motion is lost.
        self.source = maps_to_tokens(source.float()) * self.scale
        self.pyramid = pyramid_of(target, levels)


class StoredCorrelation(PlainCorrelation):
    """All costs computed once and kept."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, target, levels)
        with full_precision(source):
            self.volumes = [self.source @ level.flatten(2) for level in self.pyramid]

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        index, within = window_index(corners, side, map_size(self.pyramid[level]))
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
        self.sizes = [map_size(level) for level in pyramid]
        pixels = F.pad(maps_to_tokens(source), (0, 0, 0, 1))
        self.volumes = [pixels @ F.pad(level, (self.side, 0, 1, 0)).flatten(2) for level in pyramid]

    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """As in `Correlation`, in the precision of the features."""
        if radius > self.radius:
            raise ValueError(f"these costs are laid out for windows of radius {self.radius} at most, not {radius}")
        centers = maps_to_tokens(centers.float())
        window = (2 * radius + 1) ** 2
        found = self.volumes[0].new_empty(*centers.shape[:2], self.levels * window)
        for level in range(self.levels):
            corner, fraction = _at_level(centers, level)
            costs = self._integer_windows(level, corner - radius, _side(radius)).float() * self.scale
            found[..., level * window : (level + 1) * window] = _interpolate(costs, fraction)
        return tokens_to_maps(found, self.size)

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
        flat = maps_to_tokens(target)
        rows = torch.arange(batch, device=target.device).view(-1, 1, 1)
        found = []
        for source, some in zip(self.source.split(step, dim=1), corners.split(step, dim=1), strict=True):
            index, within = window_index(some, side, map_size(target))
            with full_precision(target):
                costs = (flat[rows, index] @ source[..., None]).squeeze(-1)
            found.append(costs * within)
        return torch.cat(found, dim=1).view(batch, -1, side, side)


def _side(radius: int) -> int:
    """Whole pixels along a side that the interpolated values of a window are between."""
    return 2 * radius + 2


def _at_level(centers: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Where centers (B x n x 2, pixels of level 0) lie on a level: the pixel at their top left, and how far past it."""
    # Pixel i of level l is the mean of pixels 2^l i .. 2^l (i + 1) - 1: its center lies half a pixel off.
    at_level = (centers + 0.5) / 2**level - 0.5
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


@dataclass
class _Kept:
    """Costs, B HW x total, float32 or float16, what they are to be multiplied by, and their gradient so far."""

    costs: Tensor
    scale: float
    gradient: Tensor | None = None


class KernelCorrelation(Correlation):
    """All costs computed once and kept, in one row a source pixel. Estimates get no gradient.

    They are kept in float32; where windows are wanted in half precision and nothing is learned, in float16, which takes
    half the memory and is finer than what is read.
    """

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        device = source.device.type
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        flat = torch.cat([level.flatten(2) for level in pyramid_of(target, levels)], dim=2)
        flat = F.pad(flat, (0, -flat.shape[2] % ALIGNMENT))  # odd rows are multiplied slowly
        if self.dtype != torch.float32 and not torch.is_grad_enabled():
            with full_precision(source):
                # Scaled first: sums of many products could be more than float16 can hold.
                scaled = (maps_to_tokens(source).float() * self.scale).half()
                self.kept = _Kept(torch.bmm(scaled, flat.half()).flatten(0, 1), scale=1.0)
            self.ticket = flat.new_zeros(())
            return
        # Products of bfloat16 are exact in float32, in which they are summed; means of coarser levels are rounded.
        if source.dtype == torch.bfloat16:
            flat = flat.to(torch.bfloat16)
        self.kept = _Kept(torch.empty(0), self.scale)
        self.ticket = _Costs.apply(maps_to_tokens(source), flat, self.kept)  # type: ignore[no-untyped-call]

    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """As in `Correlation`, in the precision of products."""
        flat = maps_to_tokens(centers.detach().float()).contiguous()
        tokens = _Windows.apply(self.ticket, flat, self, radius)  # type: ignore[no-untyped-call]
        return tokens_to_maps(tokens.view(*flat.shape[:2], -1), self.size)


class KernelOnDemandCorrelation(InterpolatedCorrelation):
    """Costs computed where they are looked for, without gathering features; for use, not for training."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        self.ours = maps_to_tokens(source).contiguous()
        pyramid = pyramid_of(target, levels)
        self.theirs = [level.to(source.dtype).permute(0, 2, 3, 1).contiguous() for level in pyramid]

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        from protoformer.models.kernels import lookup_kernels

        with torch.cuda.device_of(corners):
            return lookup_kernels.integer_windows(self.ours, self.theirs[level], corners.contiguous(), side, self.scale)


class _Costs(torch.autograd.Function):
    """Source (B x HW x C) times target (B x C x total) into `kept`; returns what windows take to be the costs.

    That is a single number, by which autograd knows that the windows come first on the way back.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, kept: _Kept) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.kept = kept
        kept.costs = _product(source, target).flatten(0, 1)
        return kept.costs.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        source, target = ctx.saved_tensors
        arriving, ctx.kept.gradient = ctx.kept.gradient, None
        if arriving is None:
            return torch.zeros_like(source), torch.zeros_like(target), None
        arriving = arriving.view(*source.shape[:2], -1).to(source.dtype)
        d_source = _product(arriving, target.transpose(1, 2))
        d_target = _product(source.transpose(1, 2), arriving)
        return d_source.to(source.dtype), d_target.to(target.dtype), None


class _Windows(torch.autograd.Function):
    """Windows of the kept costs around centers, B x HW x 2."""

    @staticmethod
    def forward(ctx: Any, ticket: Tensor, centers: Tensor, of: KernelCorrelation, radius: int) -> Tensor:
        from protoformer.models.kernels import lookup_kernels

        ctx.save_for_backward(centers)
        ctx.of, ctx.radius = of, radius
        with torch.cuda.device_of(centers):
            return lookup_kernels.windows(of.kept.costs, centers, of.size, of.levels, radius, of.kept.scale, of.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, None, None, None]:
        from protoformer.models.kernels import lookup_kernels

        (centers,), of = ctx.saved_tensors, ctx.of
        if of.kept.gradient is None:
            of.kept.gradient = torch.zeros_like(of.kept.costs)
        with torch.cuda.device_of(centers):
            lookup_kernels.add_windows_gradient(
                arriving.contiguous(), centers, of.size, of.kept.gradient, of.levels, ctx.radius, of.scale
            )
        return centers.new_zeros(()), None, None, None


def _product(one: Tensor, other: Tensor) -> Tensor:
    """In float32, whatever the precision of the factors."""
    with full_precision(one):
        if one.dtype == torch.bfloat16 and one.is_cuda:
            return torch.bmm(one, other, out_dtype=torch.float32)
        return one.float() @ other.float()
