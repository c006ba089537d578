"""Result of depth prediction: depth, confidence, file formats, images and point clouds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from protoformer.depth.camera import CameraSource
from protoformer.depth.metrics import scale_and_shift
from protoformer.errors import InputError, closest_name
from protoformer.explain.result import UNKNOWN_IMAGES, Explanation
from protoformer.geometry.warps import pixel_grid
from protoformer.io.files import PathLike, check_output, short_repr, write_atomically
from protoformer.io.formats import encode_npy, encode_npz, write_kitti_depth, write_mm_depth
from protoformer.io.image_input import ImageLike, as_image
from protoformer.io.png import encode_png
from protoformer.models.config import ModelConfig
from protoformer.models.heads.depth import CANONICAL_FOCAL
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import Picture
from protoformer.viz.depth_colors import depth_to_color
from protoformer.viz.report import SummaryRepr, format_size, format_training

RANGES: dict[str, tuple[float, float]] = {"indoor": (0.1, 10.0), "driving": (1.0, 80.0)}
"""Named depth ranges: (nearest, farthest), meters."""

MIN_DEPTH, MAX_DEPTH = 1e-6, 1e9
"""Limits of depth ranges, meters, within which results are finite in float32."""

DepthRange = str | tuple[float, float] | None
"""Depth range option: a name of `RANGES`, (nearest, farthest) in meters, or None for the network's own range."""


def check_depth_range(depth_range: DepthRange) -> tuple[float, float] | None:
    """Convert a depth range option to (nearest, farthest) in meters; None stays None."""
    if isinstance(depth_range, str):
        if depth_range not in RANGES:
            close = closest_name(depth_range, list(RANGES))
            raise InputError(
                f"there is no range {short_repr(depth_range)}; the nearest one is {close!r}, or give two numbers."
            )
        return RANGES[depth_range]
    if depth_range is None:
        return None
    try:
        near, far = (float(each) for each in depth_range)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"a range is a name or two numbers of meters, not {short_repr(depth_range)}; give one of these."
        ) from None
    if not 0 < near < far < math.inf:
        raise InputError(f"a range cannot go from {near:g} to {far:g} m; give a nearest over 0 and a larger farthest.")
    if not MIN_DEPTH <= near < far <= MAX_DEPTH:
        raise InputError(
            f"a range cannot go from {near:g} to {far:g} m; give meters from {MIN_DEPTH:g} to {MAX_DEPTH:g}."
        )
    return near, far


def network_range(config: ModelConfig, focal: float) -> tuple[float, float]:
    """Return the range of depths, meters, that a network predicts at a focal length, pixels of the working size."""
    return config.depth.min_depth * focal / CANONICAL_FOCAL, config.depth.max_depth * focal / CANONICAL_FOCAL


_POSITION_FIELDS = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]
_COLOR_FIELDS = [("red", "u1"), ("green", "u1"), ("blue", "u1")]
_PLY_TYPES = {"<f4": "float", "u1": "uchar"}


def write_ply(path: PathLike, points: npt.NDArray[np.float32], colors: npt.NDArray[np.uint8] | None = None) -> None:
    """Write points, N x 3 (x, y, z), with optional colors, uint8 N x 3 RGB, as a binary .ply file, atomically."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"points are N x 3, not of shape {points.shape}; reshape them first.")
    if colors is not None and (colors.shape != points.shape or colors.dtype != np.uint8):
        raise InputError(
            f"{len(points)} points have colors of type {colors.dtype} and shape {colors.shape}; give uint8 N x 3."
        )
    fields = _POSITION_FIELDS if colors is None else _POSITION_FIELDS + _COLOR_FIELDS
    vertices = np.empty(len(points), dtype=fields)
    columns = points.T if colors is None else (*points.T, *colors.T)
    for (name, _), column in zip(fields, columns, strict=True):
        vertices[name] = column
    properties = "".join(f"property {_PLY_TYPES[dtype]} {name}\n" for name, dtype in fields)
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n{properties}end_header\n"
    write_atomically(path, header.encode("ascii") + vertices.tobytes())


EDGE_THRESHOLD = 0.1
"""Relative depth difference of neighboring pixels that is treated as an edge between surfaces."""


@dataclass(frozen=True, eq=False)
class PointCloud:
    """A colored point cloud in the camera frame.

    Attributes:
        points: float32 N x 3, meters: x right, y down, z forward.
        colors: uint8 N x 3 RGB, or None.
    """

    points: npt.NDArray[np.float32]
    colors: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.points)

    def save(self, path: PathLike) -> None:
        """Write a binary .ply file, atomically."""
        if Path(path).suffix.lower() != ".ply":
            raise InputError(f"points cannot be written to {path} by that suffix; give one ending in .ply.")
        write_ply(path, self.points, self.colors)


def unproject_depth(
    depth: Tensor, intrinsics: Tensor, image: Tensor | None = None, jump: float | None = None
) -> PointCloud:
    """Convert a depth map, 1 x H x W, meters, to a point cloud with the colors of an image, 3 x H x W in [0, 1].

    `intrinsics` are 3 x 3, pixels. Pixels whose depth differs from one of their four neighbors by more than the
    fraction `jump` are dropped, because such depths lie between a surface and the one behind it; None keeps all.
    """
    _, height, width = depth.shape
    x, y = pixel_grid(height, width)
    ray_x = (x - intrinsics[0, 2]) / intrinsics[0, 0]
    ray_y = (y - intrinsics[1, 2]) / intrinsics[1, 1]
    mask = torch.ones(height, width, dtype=torch.bool) if jump is None else ~_find_edges(depth[0], jump)
    points = (torch.stack((ray_x, ray_y, torch.ones_like(ray_x))) * depth)[:, mask].T
    colors = None if image is None else (image.clamp(0, 1) * 255).round().byte()[:, mask].T.contiguous().numpy()
    return PointCloud(points.contiguous().float().numpy(), colors)


def _find_edges(depth: Tensor, jump: float) -> Tensor:
    """Return the mask of pixels next to a depth edge, H x W, bool; depth: H x W."""
    if not jump > 0:
        raise InputError(f"a jump of depth is a fraction over 0, not {jump:g}; give e.g. {EDGE_THRESHOLD:g}, or None.")
    limit = float(np.log1p(jump))
    log, edges = depth.log(), torch.zeros_like(depth, dtype=torch.bool)
    edges_x, edges_y = (log[:, 1:] - log[:, :-1]).abs() > limit, (log[1:] - log[:-1]).abs() > limit
    edges[:, 1:] |= edges_x
    edges[:, :-1] |= edges_x
    edges[1:] |= edges_y
    edges[:-1] |= edges_y
    return edges


DEPTH_FORMATS = {"npy": ".npy", "npz": ".npz", "mm": ".png", "kitti": ".png", "image": ".png", "ply": ".ply"}
"""Output formats and their suffixes."""
MIN_CONFIDENCE = 0.48
"""Mean confidence below which an image counts as different from the training images. Chosen on every other image of
NYUv2's validation set and of KITTI's streets; of the other halves 1 of 47 rooms and 15 of 16 streets lie below."""
MIN_ALIGNED_DEPTH = 1e-3
"""Smallest depth after alignment, meters, as in evaluations."""
_FORMAT_BY_SUFFIX = {".npy": "npy", ".npz": "npz", ".png": "image", ".ply": "ply"}


def depth_format(path: PathLike, named: str | None = None) -> str:
    """Return the output format for a path.

    Args:
        path: output path.
        named: requested format, one of `DEPTH_FORMATS`; None chooses by suffix, .png being a color image.
    """
    if named is not None and named not in DEPTH_FORMATS:
        raise InputError(f"there is no depth format {named!r}; choose one of {', '.join(DEPTH_FORMATS)}.")
    suffix = Path(path).suffix.lower()
    file_format = _FORMAT_BY_SUFFIX.get(suffix) if named is None else named
    if file_format is None or suffix != DEPTH_FORMATS[file_format]:
        suffixes = ".npy, .npz, .png or .ply" if file_format is None else DEPTH_FORMATS[file_format]
        raise InputError(f"depth cannot be written to {path} by that suffix; give one ending in {suffixes}.")
    return file_format


@dataclass(frozen=True, repr=False)
class DepthResult(SummaryRepr, Picture):
    """Metric depth of an image of H x W pixels; `numpy.asarray` of it is H x W.

    Attributes:
        depth: 1 x H x W, meters along the optical axis.
        confidence: 1 x H x W in [0, 1], predicted probability that the depth error is below 10 %.
        range: (nearest, farthest), meters, to which the depth is clamped.
        intrinsics: camera matrix, 3 x 3, pixels, for which the depth was computed.
        camera: where the intrinsics come from: "given", "exif" (the image file) or "assumed" (a default field of view,
            so that the metric scale is uncertain).
        kind: "metric" as predicted, or "aligned" with scale and shift to a reference.
        prototypes: prototypes of the image at the working size, per stage and block; empty if not requested.
        trained: whether the network has trained weights; without them the depth is meaningless.
        unit: unit of the depth.
        explainer: function that explains this result; it references the predictor and the input image without copying
            them. None if they are not available, as after unpickling.
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
        """Return the prototypes of every layer for the image, and the course of their EM iterations."""
        if self.explainer is None:
            raise InputError(UNKNOWN_IMAGES)
        return self.explainer(self)

    def save(self, path: PathLike, format: str | None = None, image: ImageLike | None = None) -> None:
        """Write the depth to a file, atomically.

        Args:
            path: output path.
            format: "npy": float32 H x W, meters. "npz": arrays depth, confidence and intrinsics. "mm": 16-bit png of
                millimeters; "kitti": 16-bit png of 1/256 m; in both, 0 means no depth and is also used beyond 65.5 m
                and 256.0 m. "image": color png. "ply": point
                cloud without pixels at depth edges. None chooses by suffix, .png being a color image.
            image: colors of the point cloud.
        """
        file_format, target = depth_format(path, format), check_output(path)
        if file_format == "npy":
            write_atomically(target, encode_npy(self.numpy()))
        elif file_format == "npz":
            confidence = self.confidence[0].detach().float().cpu().numpy()
            arrays = {"depth": self.numpy(), "confidence": confidence, "intrinsics": self.intrinsics.numpy()}
            write_atomically(target, encode_npz(**arrays))
        elif file_format == "mm":
            write_mm_depth(target, self.numpy())
        elif file_format == "kitti":
            write_kitti_depth(target, self.numpy())
        elif file_format == "ply":
            self.points(image, jump=EDGE_THRESHOLD).save(target)
        else:
            write_atomically(target, encode_png(depth_to_color(self.numpy())))

    def image(self, range: tuple[float, float] | None = None) -> Image.Image:
        """Return the depth as a color image: near is light and warm, far is dark and cool, on a log scale.

        Args:
            range: depths of the first and the last color, meters; None: the 2nd and 98th percentile of this depth, the
                last being at least 1.5 times as far.
        """
        return Image.fromarray(depth_to_color(self.numpy(), *(range or (None, None))))

    def points(self, image: ImageLike | None = None, *, jump: float | None = None) -> PointCloud:
        """Return the depth as a point cloud.

        Args:
            image: colors of the points, an image of the same size.
            jump: drop points next to a relative depth edge of more than this fraction, such as 0.1; None keeps all.
        """
        pixels = None if image is None else as_image(image)[0]
        if pixels is not None and pixels.shape[1:] != self.depth.shape[1:]:
            raise InputError(
                f"the image is {pixels.shape[2]}x{pixels.shape[1]} pixels and its depth "
                f"{self.depth.shape[2]}x{self.depth.shape[1]}; give the image that the depth is of."
            )
        return unproject_depth(self.depth.float().cpu(), self.intrinsics, pixels, jump)

    def aligned_to(self, reference: Tensor, valid: Tensor | None = None) -> "DepthResult":
        """Align the depth to a reference with scale and shift, by least squares in meters.

        This is the alignment of the "aligned" row of an evaluation. Aligned depths are at least a millimeter; the range
        is aligned, too.

        Args:
            reference: 1 x H x W or H x W, meters.
            valid: mask of valid reference pixels, bool, same shape; None: where the reference is finite and positive.
        """
        truth, mask = _check_reference(reference, valid, self.depth)
        depth = self.depth.double().cpu()
        scale, shift = scale_and_shift(depth[mask], truth[mask])
        low, high = sorted(max(MIN_ALIGNED_DEPTH, float(scale * end + shift)) for end in self.range)
        aligned = (scale * depth + shift).clamp(low, high).float()
        return replace(self, depth=aligned, range=(low, high), kind="aligned")

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return the depth as float32 H x W, meters."""
        return np.ascontiguousarray(self.depth[0].detach().float().cpu().numpy())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the depth as float32 H x W, meters."""
        return np.array(self.depth[0].detach().float().cpu().numpy(), dtype=dtype, copy=copy)

    @property
    def outside_training(self) -> bool:
        """Whether the image probably differs from those that the network was trained on: a heuristic.

        It is True if the mean confidence is below `MIN_CONFIDENCE`.
        """
        return bool(self.confidence.mean() < MIN_CONFIDENCE)

    def _repr_parts(self) -> tuple[str, ...]:
        depth = self.depth.detach().float()
        return (
            format_size(*self.depth.shape[1:]),
            f"{depth.min():.2f} to {depth.max():.2f} {self.unit}",
            f"median {depth.median():.2f} {self.unit}",
            self.kind,
            f"camera {self.camera if self.camera != 'exif' else 'by exif'}",
            *(("probably unlike the images of the training",) if self.trained and self.outside_training else ()),
            format_training(self.trained),
        )


def _check_reference(reference: Tensor, valid: Tensor | None, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reference, 1 x H x W, float64, and its valid mask, bool, or raise an `InputError`."""
    truth = torch.as_tensor(reference).double().cpu()
    truth = truth[None] if truth.dim() == 2 else truth
    if truth.shape != depth.shape:
        raise InputError(
            f"the reference has shape {tuple(truth.shape)} and the depth {tuple(depth.shape)}; give one of that shape."
        )
    mask = truth.isfinite() & (truth > 0)
    if valid is not None:
        valid = torch.as_tensor(valid).cpu()
        if valid.dtype != torch.bool or valid.numel() != truth.numel():
            raise InputError(f"valid is {valid.dtype} of shape {tuple(valid.shape)}; give bool, one value per pixel.")
        mask &= valid.view_as(mask)
    if not mask.any():
        raise InputError("the reference has no valid depth to align to; give one that has.")
    return truth, mask
