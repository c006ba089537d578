"""All-pairs correlation of two feature maps, read in windows around the current estimate, after RAFT.

All classes give the same costs and differ in what they store:

| class | stores | for |
| --- | --- | --- |
| `StoredCorrelation` | the all-pairs volume, (HW)^2 costs in float32 | training and inference |
| `RowCorrelation` | the volume in the precision of the features, padded for contiguous reads | inference on a CPU |
| `OnDemandCorrelation` | only the feature maps | inference with little memory |
| `KernelCorrelation` | the volume in float32 or float16 | training and inference on a GPU |
| `KernelOnDemandCorrelation` | only the feature maps | inference on a GPU with little memory |
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
"""Number of feature values that an on-demand lookup gathers at a time; bounds the memory and not the result."""


class Correlation(abc.ABC):
    """Lookups in the correlation of a source map and a pyramid of a target map, B x C x H x W each.

    A cost is the dot product of two features divided by sqrt(C). Level l averages the target over 2^l x 2^l pixels, or
    fewer at the right and lower edges.

    Args:
        source: B x C x H x W, features of frame 1.
        levels: Levels of the pyramid.
    """

    def __init__(self, source: Tensor, levels: int) -> None:
        self.size, self.levels = map_size(source), levels
        self.scale = source.shape[1] ** -0.5

    @abc.abstractmethod
    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """Read the costs of a square window around the estimate of each source pixel, on every level.

        Args:
            centers: B x 2 x H x W, estimated position (x, y) of each source pixel in the target, pixels of level 0.
            radius: Windows have a side of 2 radius + 1.

        Returns:
            B x (levels (2 radius + 1)^2) x H x W, each window in row-major order; zero outside the target.
        """


def pyramid_of(target: Tensor, levels: int) -> list[Tensor]:
    """Average-pool a target map, B x C x H x W, to the levels of a pyramid, the finest first, in float32."""
    target = target.float()
    return [target, *(F.avg_pool2d(target, 2**level, ceil_mode=True) for level in range(1, levels))]


class InterpolatedCorrelation(Correlation):
    """Base class of lookups that interpolate costs at integer positions bilinearly."""

    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """Read windows as specified by `Correlation.windows`."""
        centers = maps_to_tokens(centers.float())
        windows = []
        for level in range(self.levels):
            corner, fraction = _scale_to_level(centers, level)
            costs = self._integer_windows(level, corner - radius, _integer_side(radius))
            windows.append(_interpolate(costs, fraction))
        return tokens_to_maps(torch.cat(windows, dim=-1), self.size)

    @abc.abstractmethod
    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        """Return costs at integer positions of windows with top-left `corners` (B x HW x 2): B x HW x side x side."""


class PlainCorrelation(InterpolatedCorrelation):
    """Base class that stores the source map and the target pyramid in float32."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        # In half precision neighboring costs round to the same value, and subpixel motion is lost.
        self.source = maps_to_tokens(source.float()) * self.scale
        self.pyramid = pyramid_of(target, levels)


class StoredCorrelation(PlainCorrelation):
    """Correlation that computes and stores all pairs once."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, target, levels)
        with full_precision(source):
            self.volumes = [self.source @ level.flatten(2) for level in self.pyramid]

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        index, within = window_index(corners, side, map_size(self.pyramid[level]))
        costs: Tensor = self.volumes[level].gather(2, index) * within
        return costs.view(*index.shape[:2], side, side)


class RowCorrelation(Correlation):
    """Correlation for inference on a CPU that stores all pairs in the precision of the features.

    The volume is padded with zeros so that any row of a window is one contiguous read without a mask: each target row
    starts with as many zeros as a window is wide, the first target row is zero, and so are the costs of one additional
    source pixel at the end.

    Args:
        source: B x C x H x W, features of frame 1.
        target: B x C x H x W, features of frame 2.
        levels: Levels of the pyramid.
        radius: Largest radius of the windows.
    """

    def __init__(self, source: Tensor, target: Tensor, levels: int, radius: int) -> None:
        super().__init__(source, levels)
        self.radius, self.side = radius, _integer_side(radius)
        pyramid = [level.to(source.dtype) for level in pyramid_of(target, levels)]
        self.sizes = [map_size(level) for level in pyramid]
        pixels = F.pad(maps_to_tokens(source), (0, 0, 0, 1))
        self.volumes = [pixels @ F.pad(level, (self.side, 0, 1, 0)).flatten(2) for level in pyramid]

    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """Read windows as specified by `Correlation.windows`, in the precision of the features."""
        if radius > self.radius:
            raise ValueError(f"the stored costs allow windows of radius {self.radius} at most, not {radius}")
        centers = maps_to_tokens(centers.float())
        area = (2 * radius + 1) ** 2
        windows = self.volumes[0].new_empty(*centers.shape[:2], self.levels * area)
        for level in range(self.levels):
            corner, fraction = _scale_to_level(centers, level)
            costs = self._integer_windows(level, corner - radius, _integer_side(radius)).float() * self.scale
            windows[..., level * area : (level + 1) * area] = _interpolate(costs, fraction)
        return tokens_to_maps(windows, self.size)

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        volume, (height, width) = self.volumes[level], self.sizes[level]
        batch, pixels = corners.shape[:2]
        x = corners[..., :1].clamp(-self.side, width) + self.side
        y = (corners[..., 1:] + torch.arange(side)).clamp(-1, height) + 1
        offset = torch.arange(batch * (pixels + 1)).view(batch, -1, 1)[:, :-1] * volume.shape[2]
        rows = volume.as_strided((volume.numel() - side, side), (1, 1))
        costs = rows.index_select(0, (offset + y * (width + self.side) + x).flatten())
        return costs.view(batch, pixels, side, side)


class OnDemandCorrelation(PlainCorrelation):
    """Correlation that computes costs on demand: memory is linear in the number of pixels, not quadratic.

    It is meant for inference; training would store the features of every window for the backward pass.
    """

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        target = self.pyramid[level]
        batch, channels = target.shape[:2]
        step = max(1, GATHER_LIMIT // (batch * side * side * channels))
        flat = maps_to_tokens(target)
        rows = torch.arange(batch, device=target.device).view(-1, 1, 1)
        chunks = []
        for source, chunk in zip(self.source.split(step, dim=1), corners.split(step, dim=1), strict=True):
            index, within = window_index(chunk, side, map_size(target))
            with full_precision(target):
                costs = (flat[rows, index] @ source[..., None]).squeeze(-1)
            chunks.append(costs * within)
        return torch.cat(chunks, dim=1).view(batch, -1, side, side)


def _integer_side(radius: int) -> int:
    """Return the side, in integer positions, of the window that interpolation to 2 radius + 1 values needs."""
    return 2 * radius + 2


def _scale_to_level(centers: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Scale centers (B x n x 2, pixels of level 0) to a level; return their integer and fractional parts."""
    # Pixel i of level l averages pixels 2^l i .. 2^l (i + 1) - 1, so pixel centers are offset by half a pixel.
    scaled = (centers + 0.5) / 2**level - 0.5
    corner = scaled.floor()
    return corner.long(), scaled - corner


def window_index(corners: Tensor, side: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the flat indices of the pixels of each window.

    Args:
        corners: B x n x 2, int64, top-left (x, y) of each window.
        side: Side of the windows.
        size: (H, W) of the map.

    Returns:
        Indices clamped to the map, and 1.0 where a pixel lies on the map and 0.0 elsewhere; both B x n x side^2.
    """
    height, width = size
    offsets = torch.arange(side, device=corners.device)
    x, y = corners[..., :1] + offsets, corners[..., 1:] + offsets
    within = ((y >= 0) & (y < height))[..., :, None] & ((x >= 0) & (x < width))[..., None, :]
    index = y.clamp(0, height - 1)[..., :, None] * width + x.clamp(0, width - 1)[..., None, :]
    return index.flatten(2), within.flatten(2).float()


def _interpolate(costs: Tensor, fraction: Tensor) -> Tensor:
    """Interpolate windows of costs (B x n x side x side) bilinearly at offsets `fraction` (B x n x 2).

    All values of a window share one offset, so side^2 reads give (side - 1)^2 values: B x n x (side - 1)^2.
    """
    x, y = fraction[..., :1, None], fraction[..., 1:, None]
    rows = torch.lerp(costs[..., :-1, :], costs[..., 1:, :], y)
    return torch.lerp(rows[..., :-1], rows[..., 1:], x).flatten(2)


def all_pairs_bytes(size: tuple[int, int], levels: int, batch: int = 1) -> int:
    """Return the bytes that `StoredCorrelation` stores for feature maps of (H, W) = size."""
    total = sum(height * width for height, width in _level_sizes(size, levels))
    return 4 * batch * size[0] * size[1] * total


def row_bytes(size: tuple[int, int], levels: int, radius: int) -> int:
    """Return the bytes that `RowCorrelation` stores for maps of (H, W) = size in half precision, with padding."""
    total = sum((height + 1) * (width + _integer_side(radius)) for height, width in _level_sizes(size, levels))
    return 2 * (size[0] * size[1] + 1) * total


def _level_sizes(size: tuple[int, int], levels: int) -> list[tuple[int, int]]:
    """Return (H, W) of the levels of a pyramid, the finest first."""
    return [(-(-size[0] // 2**level), -(-size[1] // 2**level)) for level in range(levels)]


@dataclass
class _StoredCosts:
    """Costs shared by all lookups of a pair.

    Attributes:
        costs: B HW x total, float32 or float16, the costs of all levels of a source pixel in one row.
        scale: Factor that costs are multiplied by when they are read.
        gradient: Gradient accumulated by the lookups so far, like `costs`.
    """

    costs: Tensor
    scale: float
    gradient: Tensor | None = None


class KernelCorrelation(Correlation):
    """Correlation on a GPU that stores all pairs, one row per source pixel. `centers` get no gradient.

    Costs are float32. In inference with half-precision windows they are float16, which takes half the memory and is
    still more precise than the bfloat16 windows.
    """

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        device = source.device.type
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        flat = torch.cat([level.flatten(2) for level in pyramid_of(target, levels)], dim=2)
        flat = F.pad(flat, (0, -flat.shape[2] % ALIGNMENT))  # aligned rows multiply faster
        if self.dtype != torch.float32 and not torch.is_grad_enabled():
            with full_precision(source):
                # Scale first, as the sum of many products could overflow float16.
                scaled = (maps_to_tokens(source).float() * self.scale).half()
                self.stored = _StoredCosts(torch.bmm(scaled, flat.half()).flatten(0, 1), scale=1.0)
            self.autograd_handle = flat.new_zeros(())
            return
        # bfloat16 products are exact in the float32 accumulator; only the means of coarser levels are rounded.
        if source.dtype == torch.bfloat16:
            flat = flat.to(torch.bfloat16)
        self.stored = _StoredCosts(torch.empty(0), self.scale)
        self.autograd_handle = _Costs.apply(maps_to_tokens(source), flat, self.stored)  # type: ignore[no-untyped-call]

    def windows(self, centers: Tensor, radius: int) -> Tensor:
        """Read windows as specified by `Correlation.windows`, in the precision of matrix products."""
        flat = maps_to_tokens(centers.detach().float()).contiguous()
        tokens = _Windows.apply(self.autograd_handle, flat, self, radius)  # type: ignore[no-untyped-call]
        return tokens_to_maps(tokens.view(*flat.shape[:2], -1), self.size)


class KernelOnDemandCorrelation(InterpolatedCorrelation):
    """Correlation on a GPU that computes costs on demand, without gathering features; for inference only."""

    def __init__(self, source: Tensor, target: Tensor, levels: int) -> None:
        super().__init__(source, levels)
        self.source = maps_to_tokens(source).contiguous()
        self.pyramid = [level.to(source.dtype).permute(0, 2, 3, 1).contiguous() for level in pyramid_of(target, levels)]

    def _integer_windows(self, level: int, corners: Tensor, side: int) -> Tensor:
        from protoformer.models.kernels import lookup_kernels

        with torch.cuda.device_of(corners):
            return lookup_kernels.integer_windows(
                self.source, self.pyramid[level], corners.contiguous(), side, self.scale
            )


class _Costs(torch.autograd.Function):
    """Multiply source (B x HW x C) and target (B x C x total) into `stored.costs`.

    The output is a scalar that stands for the costs in the graph: it makes autograd run the backward passes of all
    lookups, which accumulate `stored.gradient`, before this one.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, stored: _StoredCosts) -> Tensor:
        ctx.save_for_backward(source, target)
        ctx.stored = stored
        stored.costs = _product(source, target).flatten(0, 1)
        return stored.costs.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None]:
        source, target = ctx.saved_tensors
        d_costs, ctx.stored.gradient = ctx.stored.gradient, None
        if d_costs is None:
            return torch.zeros_like(source), torch.zeros_like(target), None
        d_costs = d_costs.view(*source.shape[:2], -1).to(source.dtype)
        d_source = _product(d_costs, target.transpose(1, 2))
        d_target = _product(source.transpose(1, 2), d_costs)
        return d_source.to(source.dtype), d_target.to(target.dtype), None


class _Windows(torch.autograd.Function):
    """Read windows of the stored costs around centers, B x HW x 2."""

    @staticmethod
    def forward(ctx: Any, ticket: Tensor, centers: Tensor, correlation: KernelCorrelation, radius: int) -> Tensor:
        from protoformer.models.kernels import lookup_kernels

        ctx.save_for_backward(centers)
        ctx.correlation, ctx.radius = correlation, radius
        stored, size, levels = correlation.stored, correlation.size, correlation.levels
        with torch.cuda.device_of(centers):
            return lookup_kernels.windows(stored.costs, centers, size, levels, radius, stored.scale, correlation.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_windows: Tensor) -> tuple[Tensor, None, None, None]:
        from protoformer.models.kernels import lookup_kernels

        (centers,), correlation = ctx.saved_tensors, ctx.correlation
        stored, size, levels, scale = correlation.stored, correlation.size, correlation.levels, correlation.scale
        if stored.gradient is None:
            stored.gradient = torch.zeros_like(stored.costs)
        with torch.cuda.device_of(centers):
            lookup_kernels.add_windows_gradient(
                d_windows.contiguous(), centers, size, stored.gradient, levels, ctx.radius, scale
            )
        return centers.new_zeros(()), None, None, None


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Multiply batches of matrices with a float32 result, whatever the precision of the factors."""
    with full_precision(one):
        if one.dtype == torch.bfloat16 and one.is_cuda:
            return torch.bmm(one, other, out_dtype=torch.float32)
        return one.float() @ other.float()
