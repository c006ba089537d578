"""What a depth model returns: a frozen record in metres, which knows how to become files, pictures and points."""

import io
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

from protoformer.errors import InputError
from protoformer.files import (
    checked_output,
    depth_to_color,
    encode_png,
    write_atomically,
    write_kitti_depth,
    write_mm_depth,
)
from protoformer.inference.brief import Brief, size_fact, training_fact
from protoformer.inference.cameras import CameraSource
from protoformer.inference.explanation import UNKNOWN_IMAGES, Explanation
from protoformer.inference.images import ImageLike, as_image
from protoformer.inference.point_cloud import USUAL_JUMP, PointCloud, points_of
from protoformer.metrics.depth import scale_and_shift
from protoformer.model import Prototypes

DEPTH_FORMATS = {"npy": ".npy", "mm": ".png", "kitti": ".png", "picture": ".png", "ply": ".ply"}
"""What a depth can be written as, and the suffix of each."""
LEAST_ALIGNED = 1e-3
"""Metres: the least that a depth is moved to, as in evaluations."""
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
class DepthResult(Brief):
    """How far away everything in an image of H x W pixels is.

    depth: 1 x H x W, metres along the optical axis. confidence: 1 x H x W in [0, 1], how likely the model holds it that
    the depth is right to 10 %. range: (nearest, farthest) metres that it can say; what lies beyond is put there.
    intrinsics: 3 x 3, pixels, the camera that metres were computed for; camera: who says so, "given", "exif" (noted in
    the image's file) or "assumed" (nobody: then metres are as wrong as the guess). kind: "metric", as the model sees
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

        "npy": float32 H x W, metres. "mm": 16-bit png of millimetres; "kitti": 16-bit png of 1/256 m; in both 0 is
        none, and so is what the format cannot hold, beyond 65.5 m and 256.0 m. "picture": colours, png. "ply": points,
        without those at edges of depth, coloured if the image is given. Without a format the suffix decides: .npy,
        .ply, or .png for a picture.
        """
        chosen, target = depth_format(path, format), checked_output(path)
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
        """The depth in colours: near is light and warm, far is dark and cool, by the logarithm of depth.

        range: metres of the first and the last colour; None: the 2nd and 98th percentile of this depth, the last being
        at least 1.5 times as far.
        """
        return Image.fromarray(depth_to_color(self.numpy(), *(range or (None, None))))

    def points(self, image: ImageLike | None = None, *, jump: float | None = None) -> PointCloud:
        """What was seen as points in space, with the colours of the image if it is given.

        jump: leave out points beside a step of depth of more than this share (0.1 is a good one); None keeps all.
        """
        pixels = None if image is None else as_image(image)[0]
        if pixels is not None and pixels.shape[1:] != self.depth.shape[1:]:
            raise InputError(
                f"the image is {pixels.shape[2]}x{pixels.shape[1]} pixels and its depth "
                f"{self.depth.shape[2]}x{self.depth.shape[1]}; give the image that the depth is of."
            )
        return points_of(self.depth.float().cpu(), self.intrinsics, pixels, jump)

    def aligned_to(self, reference: Tensor, valid: Tensor | None = None) -> "DepthResult":
        """The depth as s depth + t, with the s and t that bring it nearest to a reference in least squares of metres.

        So does an evaluation for its "aligned" row, over the pixels that count there. reference: 1 x H x W or H x W,
        metres. valid: bool, alike, where it is known; None: where it is finite and over 0. Depths stay over 0, a
        millimetre at least; the range is moved with them, so that it still holds all that can be said.
        """
        truth, known = _known(reference, valid, self.depth)
        ours = self.depth.double().cpu()
        scale, shift = scale_and_shift(ours[known], truth[known])
        low, high = sorted(max(LEAST_ALIGNED, float(scale * end + shift)) for end in self.range)
        moved = (scale * ours + shift).clamp(low, high).float()
        return replace(self, depth=moved, range=(low, high), kind="aligned")

    def numpy(self) -> npt.NDArray[np.float32]:
        """The depth as float32 H x W, metres."""
        return np.ascontiguousarray(self.depth[0].detach().float().cpu().numpy())

    def _facts(self) -> tuple[str, ...]:
        depth = self.depth.detach().float()
        return (
            size_fact(*self.depth.shape[1:]),
            f"{depth.min():.2f} to {depth.max():.2f} {self.unit}",
            f"median {depth.median():.2f} {self.unit}",
            self.kind,
            f"camera {self.camera if self.camera != 'exif' else 'by exif'}",
            training_fact(self.trained),
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
