"""What camera took an image: as somebody says, as the image's file notes, or as most cameras are."""

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
from protoformer.io.files import shown
from protoformer.io.image import DecodedImage, focal_in_35mm
from protoformer.io.image_input import ImageLike

ASSUMED_FOV = 60.0
"""Degrees that the longer side of an image spans where nothing is known of its camera: about that of a phone."""
FILM_DIAGONAL = math.hypot(36.0, 24.0)
"""Millimeters, of 35 mm film."""
FOV_BOUNDS = (0.01, 179.0)
"""Degrees: from far beyond the longest telephoto lens to the widest angle that a pinhole camera can have."""
FOCAL_BOUNDS = (1e-3, 1e8)
"""Pixels of a focal length, and at most so many to the optical center: all that follows from them is finite."""

CameraSource = Literal["given", "exif", "assumed"]
"""Who says what the camera is: you, the image's file, or nobody."""


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera.

    intrinsics: 3 x 3, pixels of the image, the center of the first pixel being (0, 0). source: who says so.
    """

    intrinsics: Tensor
    source: CameraSource

    @property
    def focal(self) -> float:
        """The focal length, pixels: the geometric mean of both directions."""
        return math.sqrt(float(self.intrinsics[0, 0]) * float(self.intrinsics[1, 1]))

    @property
    def center(self) -> tuple[float, float]:
        """(x, y) that it looks at, pixels."""
        return float(self.intrinsics[0, 2]), float(self.intrinsics[1, 2])


@dataclass(frozen=True)
class CameraHint:
    """What somebody says of a camera, at most one of: focal, pixels of the image; intrinsics, 3 x 3; fov, degrees
    across the width of the image.
    """

    focal: float | None = None
    intrinsics: Tensor | npt.NDArray[np.generic] | None = None
    fov: float | None = None

    def __post_init__(self) -> None:
        said = [name for name in ("focal", "intrinsics", "fov") if getattr(self, name) is not None]
        if len(said) > 1:
            raise InputError(f"the camera is told by {' and by '.join(said)}; give one of these.")
        if self.focal is not None and not 0 < _number(self.focal) < math.inf:
            raise InputError(
                f"a focal length is a number of pixels over 0, not {_told(self.focal)}; give one, or none."
            )
        if self.fov is not None and not 0 < _number(self.fov) < 180:
            raise InputError(f"a field of view is between 0 and 180 degrees, not {_told(self.fov)}; give one, or none.")
        if self.focal is not None and not _within(_number(self.focal), FOCAL_BOUNDS):
            raise _no_camera("focal length", _told(self.focal), "pixels", FOCAL_BOUNDS)
        if self.fov is not None and not _within(_number(self.fov), FOV_BOUNDS):
            raise _no_camera("field of view", _told(self.fov), "degrees", FOV_BOUNDS)
        if self.intrinsics is not None:
            _checked(self.intrinsics)


def resolve_camera(size: tuple[int, int], hint: CameraHint, image: ImageLike | None = None) -> Camera:
    """The camera of an image of (height, width). image: as it was handed in; a file, or a picture, may know it."""
    height, width = size
    if hint.intrinsics is not None:
        return Camera(_checked(hint.intrinsics), "given")
    if hint.focal is not None:
        return Camera(_pinhole(_number(hint.focal), size), "given")
    if hint.fov is not None:
        focal = focal_from_fov(_number(hint.fov), width)
        if not _within(focal, FOCAL_BOUNDS):  # of an image with very many pixels in a row
            raise _no_camera("focal length", f"{focal:g}", "pixels", FOCAL_BOUNDS)
        return Camera(_pinhole(focal, size), "given")
    noted = focal_in_35mm(image) if isinstance(image, (str, os.PathLike, Image.Image)) else None
    if isinstance(image, DecodedImage):
        noted = image.focal_in_35mm
    if noted is not None:
        focal = noted / FILM_DIAGONAL * math.hypot(height, width)
        if _within(focal, FOCAL_BOUNDS):  # what a file notes may be anything, and does not make it unreadable
            return Camera(_pinhole(focal, size), "exif")
    return Camera(_pinhole(focal_from_fov(ASSUMED_FOV, max(height, width)), size), "assumed")


def focal_from_fov(degrees: float, length: int) -> float:
    """The focal length, pixels, of a camera that sees `length` pixels under an angle."""
    return length / 2 / math.tan(math.radians(degrees) / 2)


def _number(given: Any) -> float:
    """It as a number; NaN where it is none. A text is none."""
    try:
        return math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def _within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _no_camera(what: str, value: str, unit: str, bounds: tuple[float, float]) -> InputError:
    least, most = bounds
    return InputError(f"no camera has a {what} of {value} {unit}; give one from {least:g} to {most:g}, or none.")


def _told(given: object) -> str:
    return shown(given) if math.isnan(_number(given)) and not isinstance(given, float) else f"{_number(given):g}"


def _pinhole(focal: float, size: tuple[int, int]) -> Tensor:
    """A camera that looks at the middle of its image, 3 x 3."""
    height, width = size
    rows = [[focal, 0.0, (width - 1) / 2], [0.0, focal, (height - 1) / 2], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float32)


def _checked(given: Tensor | npt.NDArray[np.generic]) -> Tensor:
    """Intrinsics as a float tensor, or an `InputError`."""
    try:
        matrix = torch.as_tensor(given).detach().float().cpu()
    except (TypeError, ValueError, RuntimeError):
        matrix = torch.empty(0)
    if matrix.shape != (3, 3):
        raise InputError("intrinsics are 3 x 3 numbers, (fx, 0, cx), (0, fy, cy), (0, 0, 1), in pixels; give these.")
    if not matrix.isfinite().all():
        raise InputError("the intrinsics contain NaN or infinite values; give numbers, or leave them out.")
    if not (matrix[0, 0] > 0 and matrix[1, 1] > 0):
        raise InputError("the intrinsics have a focal length that is not over 0; give fx and fy in pixels.")
    for focal in (float(matrix[0, 0]), float(matrix[1, 1])):
        if not _within(focal, FOCAL_BOUNDS):
            raise _no_camera("focal length", f"{focal:g}", "pixels", FOCAL_BOUNDS)
    if float(matrix[:2, 2].abs().max()) > FOCAL_BOUNDS[1]:
        raise InputError(
            f"the intrinsics have an optical center more than {FOCAL_BOUNDS[1]:g} pixels away; give cx and cy in "
            "pixels."
        )
    return matrix


def describe_camera(source: str, focal: float) -> str:
    """Who says what the camera is, in words."""
    who = {
        "given": "as you said",
        "exif": "noted in the file",
        "assumed": f"assumed, {ASSUMED_FOV:g} degrees along the longer side: meters are as good as this guess",
    }
    return f"focal length {focal:.1f} px ({who[source]})"
