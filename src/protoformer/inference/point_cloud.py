"""The points in space that a depth says were seen."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.files import write_ply
from protoformer.geometry import pixel_grid

USUAL_JUMP = 0.1
"""A depth a tenth larger than its neighbour's: between them there is an edge, and seldom a surface."""


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points, float32 N x 3, metres from the camera: x right, y down, z forward; and their colours, uint8 N x 3 RGB."""

    points: npt.NDArray[np.float32]
    colours: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.points)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a binary .ply, whole or not at all."""
        if Path(path).suffix.lower() != ".ply":
            raise InputError(f"points cannot be written to {path} by that suffix; give one ending in .ply.")
        write_ply(path, self.points, self.colours)


def points_of(depth: Tensor, intrinsics: Tensor, image: Tensor | None = None, jump: float | None = None) -> PointCloud:
    """Where each pixel lies. depth: 1 x H x W, metres; intrinsics: 3 x 3, pixels; image: 3 x H x W in [0, 1].

    jump: leave out pixels of whose four neighbours one is nearer or farther by more than this share, since a depth
    there lies between a thing and what is behind it; None keeps all of them.
    """
    _, height, width = depth.shape
    x, y = pixel_grid(height, width)
    across = (x - intrinsics[0, 2]) / intrinsics[0, 0]
    down = (y - intrinsics[1, 2]) / intrinsics[1, 1]
    kept = torch.ones(height, width, dtype=torch.bool) if jump is None else ~_edges(depth[0], jump)
    points = (torch.stack((across, down, torch.ones_like(across))) * depth)[:, kept].T
    colours = None if image is None else (image.clamp(0, 1) * 255).round().byte()[:, kept].T.contiguous().numpy()
    return PointCloud(points.contiguous().float().numpy(), colours)


def _edges(depth: Tensor, jump: float) -> Tensor:
    """Pixels beside a step of depth, H x W, bool; depth: H x W."""
    if not jump > 0:
        raise InputError(f"a jump of depth is a share over 0, not {jump:g}; give such as {USUAL_JUMP:g}, or None.")
    limit = float(np.log1p(jump))
    log, edge = depth.log(), torch.zeros_like(depth, dtype=torch.bool)
    across, down = (log[:, 1:] - log[:, :-1]).abs() > limit, (log[1:] - log[:-1]).abs() > limit
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= down
    edge[:-1] |= down
    return edge
