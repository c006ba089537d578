"""Camera intrinsics: given by the user, read from EXIF, or assumed."""

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import short_repr
from protoformer.io.image import DecodedImage, focal_in_35mm
from protoformer.io.image_input import ImageLike

ASSUMED_FOV = 60.0
"""Field of view along the longer image side of an unknown camera, degrees: about that of a phone."""
FULL_FRAME_DIAGONAL = math.hypot(36.0, 24.0)
"""Diagonal of a full-frame (35 mm) sensor, millimeters."""
FOV_BOUNDS = (0.01, 179.0)
"""Accepted fields of view, degrees: beyond the longest telephoto lens to nearly the limit of a pinhole camera."""
FOCAL_BOUNDS = (1e-3, 1e8)
"""Accepted focal lengths, pixels; the upper bound also limits the optical center. Results remain finite."""

CameraSource = Literal["given", "exif", "assumed"]
"""Where the intrinsics come from: the user, the image file, or a default."""


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera.

    Attributes:
        intrinsics: 3 x 3, pixels of the image, with the center of the first pixel at (0, 0).
        source: where the intrinsics come from.
    """

    intrinsics: Tensor
    source: CameraSource

    @property
    def focal(self) -> float:
        """Focal length, pixels: the geometric mean of fx and fy."""
        return math.sqrt(float(self.intrinsics[0, 0]) * float(self.intrinsics[1, 1]))

    @property
    def center(self) -> tuple[float, float]:
        """Optical center (x, y), pixels."""
        return float(self.intrinsics[0, 2]), float(self.intrinsics[1, 2])


@dataclass(frozen=True)
class CameraHint:
    """User-provided camera parameters, at most one of them.

    Attributes:
        focal: focal length, pixels of the image.
        intrinsics: 3 x 3, pixels of the image.
        fov: horizontal field of view, degrees.
    """

    focal: float | None = None
    intrinsics: Tensor | npt.NDArray[np.generic] | None = None
    fov: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("focal", "intrinsics", "fov") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"the camera is given by {' and by '.join(given)}; give one of these.")
        if self.focal is not None and not 0 < _to_number(self.focal) < math.inf:
            raise InputError(
                f"a focal length is a number of pixels over 0, not {_format_value(self.focal)}; give one, or none."
            )
        if self.fov is not None and not 0 < _to_number(self.fov) < 180:
            raise InputError(
                f"a field of view is between 0 and 180 degrees, not {_format_value(self.fov)}; give one, or none."
            )
        if self.focal is not None and not _in_bounds(_to_number(self.focal), FOCAL_BOUNDS):
            raise _out_of_bounds("focal length", _format_value(self.focal), "pixels", FOCAL_BOUNDS)
        if self.fov is not None and not _in_bounds(_to_number(self.fov), FOV_BOUNDS):
            raise _out_of_bounds("field of view", _format_value(self.fov), "degrees", FOV_BOUNDS)
        if self.intrinsics is not None:
            _check_intrinsics(self.intrinsics)


def resolve_camera(size: tuple[int, int], hint: CameraHint, image: ImageLike | None = None) -> Camera:
    """Determine the camera of an image of (height, width): from the hint, else from EXIF, else by a default view angle.

    Files and PIL images, as the user passed them, may contain EXIF data.
    """
    height, width = size
    if hint.intrinsics is not None:
        return Camera(_check_intrinsics(hint.intrinsics), "given")
    if hint.focal is not None:
        return Camera(_make_intrinsics(_to_number(hint.focal), size), "given")
    if hint.fov is not None:
        focal = focal_from_fov(_to_number(hint.fov), width)
        if not _in_bounds(focal, FOCAL_BOUNDS):  # possible for extremely wide images
            raise _out_of_bounds("focal length", f"{focal:g}", "pixels", FOCAL_BOUNDS)
        return Camera(_make_intrinsics(focal, size), "given")
    exif_focal = focal_in_35mm(image) if isinstance(image, (str, os.PathLike, Image.Image)) else None
    if isinstance(image, DecodedImage):
        exif_focal = image.focal_in_35mm
    if exif_focal is not None:
        focal = exif_focal / FULL_FRAME_DIAGONAL * math.hypot(height, width)
        if _in_bounds(focal, FOCAL_BOUNDS):  # an invalid EXIF value must not make the image unreadable
            return Camera(_make_intrinsics(focal, size), "exif")
    return Camera(_make_intrinsics(focal_from_fov(ASSUMED_FOV, max(height, width)), size), "assumed")


def focal_from_fov(degrees: float, length: int) -> float:
    """Return the focal length, pixels, for a field of view in degrees along a side of `length` pixels."""
    return length / 2 / math.tan(math.radians(degrees) / 2)


def _to_number(value: Any) -> float:
    """Convert a value to a float; NaN if it is not a number. Strings are not converted."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _in_bounds(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _out_of_bounds(quantity: str, value: str, unit: str, bounds: tuple[float, float]) -> InputError:
    low, high = bounds
    return InputError(f"no camera has a {quantity} of {value} {unit}; give one from {low:g} to {high:g}, or none.")


def _format_value(value: object) -> str:
    return (
        short_repr(value)
        if math.isnan(_to_number(value)) and not isinstance(value, float)
        else f"{_to_number(value):g}"
    )


def _make_intrinsics(focal: float, size: tuple[int, int]) -> Tensor:
    """Return the intrinsics, 3 x 3, of a camera whose optical center is the image center."""
    height, width = size
    rows = [[focal, 0.0, (width - 1) / 2], [0.0, focal, (height - 1) / 2], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float32)


def _check_intrinsics(intrinsics: Tensor | npt.NDArray[np.generic]) -> Tensor:
    """Return valid intrinsics as a float tensor, or raise an `InputError`."""
    try:
        matrix = torch.as_tensor(intrinsics).detach().float().cpu()
    except (TypeError, ValueError, RuntimeError):
        matrix = torch.empty(0)
    if matrix.shape != (3, 3):
        raise InputError("intrinsics are 3 x 3 numbers, (fx, 0, cx), (0, fy, cy), (0, 0, 1), in pixels; give these.")
    if not matrix.isfinite().all():
        raise InputError("the intrinsics contain NaN or infinite values; give numbers, or leave them out.")
    if not (matrix[0, 0] > 0 and matrix[1, 1] > 0):
        raise InputError("the intrinsics have a focal length that is not over 0; give fx and fy in pixels.")
    for focal in (float(matrix[0, 0]), float(matrix[1, 1])):
        if not _in_bounds(focal, FOCAL_BOUNDS):
            raise _out_of_bounds("focal length", f"{focal:g}", "pixels", FOCAL_BOUNDS)
    if float(matrix[:2, 2].abs().max()) > FOCAL_BOUNDS[1]:
        raise InputError(
            f"the intrinsics have an optical center more than {FOCAL_BOUNDS[1]:g} pixels away; give cx and cy in "
            "pixels."
        )
    return matrix


def describe_camera(source: str, focal: float) -> str:
    """Format the focal length, pixels, and where it comes from."""
    notes = {
        "given": "given",
        "exif": "from EXIF",
        "assumed": f"assumed field of view of {ASSUMED_FOV:g} degrees along the longer side: metric scale is uncertain",
    }
    return f"focal length {focal:.1f} px ({notes[source]})"
