"""What a depth model returns: a frozen record in meters, which knows how to become files, pictures and points."""

import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from protoformer.depth.camera import CameraSource
from protoformer.depth.metrics import scale_and_shift
from protoformer.errors import InputError, nearest
from protoformer.explain.result import UNKNOWN_IMAGES, Explanation
from protoformer.geometry.warps import pixel_grid
from protoformer.io.files import check_output, shown, write_atomically
from protoformer.io.image_input import ImageLike, as_image
from protoformer.io.kitti import write_kitti_depth, write_mm_depth
from protoformer.io.png import encode_png
from protoformer.models.config import ModelConfig
from protoformer.models.heads.depth import CANONICAL_FOCAL
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import depth_to_color
from protoformer.viz.text import SummaryRepr, format_size, format_training

RANGES: dict[str, tuple[float, float]] = {"indoor": (0.1, 10.0), "driving": (1.0, 80.0)}
"""Meters of the nearest and the farthest that is to be expected, by name."""

LEAST, MOST = 1e-6, 1e9
"""Meters that a range may have at all: what is computed within them is finite in float32."""

DepthRange = str | tuple[float, float] | None
"""A name of `RANGES`, (nearest, farthest) in meters, or all that the network can say."""


def check_depth_range(wanted: DepthRange) -> tuple[float, float] | None:
    """The range of a name, or numbers that can be one; None stays None."""
    if isinstance(wanted, str):
        if wanted not in RANGES:
            close = nearest(wanted, list(RANGES))
            raise InputError(f"there is no range {shown(wanted)}; the nearest one is {close!r}, or give two numbers.")
        return RANGES[wanted]
    if wanted is None:
        return None
    try:
        near, far = (float(each) for each in wanted)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"a range is a name or two numbers of meters, not {shown(wanted)}; give one of these."
        ) from None
    if not 0 < near < far < math.inf:
        raise InputError(f"a range cannot go from {near:g} to {far:g} m; give a nearest over 0 and a larger farthest.")
    if not LEAST <= near < far <= MOST:
        raise InputError(f"a range cannot go from {near:g} to {far:g} m; give meters from {LEAST:g} to {MOST:g}.")
    return near, far


def network_range(config: ModelConfig, focal: float) -> tuple[float, float]:
    """What a network can say of an image with this focal length, pixels of the size it works at; meters."""
    return config.nearest * focal / CANONICAL_FOCAL, config.farthest * focal / CANONICAL_FOCAL


_PLACE = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]
_COLOR = [("red", "u1"), ("green", "u1"), ("blue", "u1")]
_KINDS = {"<f4": "float", "u1": "uchar"}


def write_ply(
    path: str | os.PathLike[str], points: npt.NDArray[np.float32], colors: npt.NDArray[np.uint8] | None = None
) -> None:
    """Write points, N x 3 (x, y, z), with their colors, uint8 N x 3 RGB, if they have any."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"points are N x 3, not of shape {points.shape}; reshape them first.")
    if colors is not None and (colors.shape != points.shape or colors.dtype != np.uint8):
        raise InputError(
            f"{len(points)} points have colors of type {colors.dtype} and shape {colors.shape}; give uint8 N x 3."
        )
    fields = _PLACE if colors is None else _PLACE + _COLOR
    vertices = np.empty(len(points), dtype=fields)
    columns = points.T if colors is None else (*points.T, *colors.T)
    for (name, _), column in zip(fields, columns, strict=True):
        vertices[name] = column
    properties = "".join(f"property {_KINDS[kind]} {name}\n" for name, kind in fields)
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n{properties}end_header\n"
    write_atomically(path, head.encode("ascii") + vertices.tobytes())


USUAL_JUMP = 0.1
"""A depth a tenth larger than its neighbor's: between them there is an edge, and seldom a surface."""


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points, float32 N x 3, meters from the camera: x right, y down, z forward; and their colors, uint8 N x 3 RGB."""

    points: npt.NDArray[np.float32]
    colors: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.points)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a binary .ply, whole or not at all."""
        if Path(path).suffix.lower() != ".ply":
            raise InputError(f"points cannot be written to {path} by that suffix; give one ending in .ply.")
        write_ply(path, self.points, self.colors)


def unproject_depth(
    depth: Tensor, intrinsics: Tensor, image: Tensor | None = None, jump: float | None = None
) -> PointCloud:
    """Where each pixel lies. depth: 1 x H x W, meters; intrinsics: 3 x 3, pixels; image: 3 x H x W in [0, 1].

    jump: leave out pixels of whose four neighbors one is nearer or farther by more than this share, since a depth
    there lies between a thing and what is behind it; None keeps all of them.
    """
    _, height, width = depth.shape
    x, y = pixel_grid(height, width)
    across = (x - intrinsics[0, 2]) / intrinsics[0, 0]
    down = (y - intrinsics[1, 2]) / intrinsics[1, 1]
    kept = torch.ones(height, width, dtype=torch.bool) if jump is None else ~_edges(depth[0], jump)
    points = (torch.stack((across, down, torch.ones_like(across))) * depth)[:, kept].T
    colors = None if image is None else (image.clamp(0, 1) * 255).round().byte()[:, kept].T.contiguous().numpy()
    return PointCloud(points.contiguous().float().numpy(), colors)


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


DEPTH_FORMATS = {"npy": ".npy", "mm": ".png", "kitti": ".png", "picture": ".png", "ply": ".ply"}
"""What a depth can be written as, and the suffix of each."""
LEAST_ALIGNED = 1e-3
"""Meters: the least that a depth is moved to, as in evaluations."""
_BY_SUFFIX = {".npy": "npy", ".png": "picture", ".ply": "ply"}


def depth_format(path: str | os.PathLike[str], named: str | None = None) -> str:
    """What to write at a path: as named, or by its suffix, .npy, .png (a picture) or .ply."""
    if named is not None and named not in DEPTH_FORMATS:
        raise InputError(f"there is no depth format {named!r}; choose one of {', '.join(DEPTH_FORMATS)}.")
    suffix = Path(path).suffix.lower()
    chosen = _BY_SUFFIX.get(suffix) if named is None else named
    if chosen is None or suffix != DEPTH_FORMATS[chosen]:
        wanted = "one ending in .npy, .png or .ply" if chosen is None else f"one ending in {DEPTH_FORMATS[chosen]}"
        raise InputError(f"depth cannot be written to {path} by that suffix; give {wanted}.")
    return chosen


@dataclass(frozen=True, repr=False)
class DepthResult(SummaryRepr):
    """How far away everything in an image of H x W pixels is.

    depth: 1 x H x W, meters along the optical axis. confidence: 1 x H x W in [0, 1], how likely the model holds it that
    the depth is right to 10 %. range: (nearest, farthest) meters that it can say; what lies beyond is put there.
    intrinsics: 3 x 3, pixels, the camera that meters were computed for; camera: who says so, "given", "exif" (noted in
    the image's file) or "assumed" (nobody: then meters are as wrong as the guess). kind: "metric", as the model sees
    it, or "aligned", scaled and shifted to a reference. prototypes: those of the image at the size the network works
    at, per stage and block, or empty if not asked for. trained: whether the weights were; if not, the depth means
    nothing. unit: of depth. explainer: the model's way to explain a result, which keeps the model and the image as it
    was handed in, not a copy of it; None where it has none, as in a pickle.
    """

    depth: Tensor
    confidence: Tensor
    range: tuple[float, float]
    intrinsics: Tensor
    camera: CameraSource = "assumed"
    kind: Literal["metric", "aligned"] = "metric"
    prototypes: tuple[tuple[Prototypes, ...], ...] = ()
    trained: bool = True
    unit: Literal["m"] = "m"
    explainer: "Callable[[DepthResult], Explanation] | None" = field(default=None, compare=False)

    def explain(self) -> Explanation:
        """What the network grouped in the image: the prototypes of every layer, and how they were found."""
        if self.explainer is None:
            raise InputError(UNKNOWN_IMAGES)
        return self.explainer(self)

    def save(self, path: str | os.PathLike[str], format: str | None = None, image: ImageLike | None = None) -> None:
        """Write the depth, whole or not at all.

        "npy": float32 H x W, meters. "mm": 16-bit png of millimeters; "kitti": 16-bit png of 1/256 m; in both 0 is
        none, and so is what the format cannot hold, beyond 65.5 m and 256.0 m. "picture": colors, png. "ply": points,
        without those at edges of depth, colored if the image is given. Without a format the suffix decides: .npy,
        .ply, or .png for a picture.
        """
        chosen, target = depth_format(path, format), check_output(path)
        if chosen == "npy":
            file = io.BytesIO()
            np.save(file, self.numpy())
            write_atomically(target, file.getvalue())
        elif chosen == "mm":
            write_mm_depth(target, self.numpy())
        elif chosen == "kitti":
            write_kitti_depth(target, self.numpy())
        elif chosen == "ply":
            self.points(image, jump=USUAL_JUMP).save(target)
        else:
            write_atomically(target, encode_png(depth_to_color(self.numpy())))

    def picture(self, range: tuple[float, float] | None = None) -> Image.Image:
        """The depth in colors: near is light and warm, far is dark and cool, by the logarithm of depth.

        range: meters of the first and the last color; None: the 2nd and 98th percentile of this depth, the last being
        at least 1.5 times as far.
        """
        return Image.fromarray(depth_to_color(self.numpy(), *(range or (None, None))))

    def points(self, image: ImageLike | None = None, *, jump: float | None = None) -> PointCloud:
        """What was seen as points in space, with the colors of the image if it is given.

        jump: leave out points beside a step of depth of more than this share (0.1 is a good one); None keeps all.
        """
        pixels = None if image is None else as_image(image)[0]
        if pixels is not None and pixels.shape[1:] != self.depth.shape[1:]:
            raise InputError(
                f"the image is {pixels.shape[2]}x{pixels.shape[1]} pixels and its depth "
                f"{self.depth.shape[2]}x{self.depth.shape[1]}; give the image that the depth is of."
            )
        return unproject_depth(self.depth.float().cpu(), self.intrinsics, pixels, jump)

    def aligned_to(self, reference: Tensor, valid: Tensor | None = None) -> "DepthResult":
        """The depth as s depth + t, with the s and t that bring it nearest to a reference in least squares of meters.

        So does an evaluation for its "aligned" row, over the pixels that count there. reference: 1 x H x W or H x W,
        meters. valid: bool, alike, where it is known; None: where it is finite and over 0. Depths stay over 0, a
        millimeter at least; the range is moved with them, so that it still holds all that can be said.
        """
        truth, known = _known(reference, valid, self.depth)
        ours = self.depth.double().cpu()
        scale, shift = scale_and_shift(ours[known], truth[known])
        low, high = sorted(max(LEAST_ALIGNED, float(scale * end + shift)) for end in self.range)
        moved = (scale * ours + shift).clamp(low, high).float()
        return replace(self, depth=moved, range=(low, high), kind="aligned")

    def numpy(self) -> npt.NDArray[np.float32]:
        """The depth as float32 H x W, meters."""
        return np.ascontiguousarray(self.depth[0].detach().float().cpu().numpy())

    def _facts(self) -> tuple[str, ...]:
        depth = self.depth.detach().float()
        return (
            format_size(*self.depth.shape[1:]),
            f"{depth.min():.2f} to {depth.max():.2f} {self.unit}",
            f"median {depth.median():.2f} {self.unit}",
            self.kind,
            f"camera {self.camera if self.camera != 'exif' else 'by exif'}",
            format_training(self.trained),
        )


def _known(reference: Tensor, valid: Tensor | None, depth: Tensor) -> tuple[Tensor, Tensor]:
    """A reference, 1 x H x W, float64, and where it is known, bool; or an `InputError`."""
    truth = torch.as_tensor(reference).double().cpu()
    truth = truth[None] if truth.dim() == 2 else truth
    if truth.shape != depth.shape:
        raise InputError(
            f"the reference has shape {tuple(truth.shape)} and the depth {tuple(depth.shape)}; give one of that shape."
        )
    known = truth.isfinite() & (truth > 0)
    if valid is not None:
        given = torch.as_tensor(valid).cpu()
        if given.dtype != torch.bool or given.numel() != truth.numel():
            raise InputError(f"valid is {given.dtype} of shape {tuple(given.shape)}; give bool, a value a pixel.")
        known &= given.view_as(known)
    if not known.any():
        raise InputError("the reference has no known depth to align to; give one that has.")
    return truth, known
