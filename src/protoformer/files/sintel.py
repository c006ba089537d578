"""Sintel's depth (`.dpt`) and cameras (`.cam`), little-endian behind the magic 202021.25.

A `.dpt` goes on with int32 width and height, then rows of float32 metres. A `.cam` goes on with a 3x3 and a 3x4 matrix
of float64, row by row, and so is always 172 bytes long.
"""

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.atomic import write_atomically
from protoformer.files.reading import opened, read_exactly, wrong_length
from protoformer.files.tagged import TAG, read_tag, read_tagged_grid, tagged_grid
from protoformer.files.value_array import as_values

_CAMERA_NUMBERS = 9 + 12
_CAMERA_BYTES = len(TAG) + 8 * _CAMERA_NUMBERS


@dataclass(frozen=True)
class Camera:
    """A pinhole camera: `intrinsics @ extrinsics @ (x, y, z, 1)` is the pixel (u, v, 1) times its depth.

    `intrinsics`: float64 3x3, focal lengths and centre in pixels. `extrinsics`: float64 3x4, [R | t] from world to
    camera, in metres.
    """

    intrinsics: npt.NDArray[np.float64]
    extrinsics: npt.NDArray[np.float64]


def read_dpt(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a depth: float32 HxW in metres along the optical axis, values as stored."""
    return read_tagged_grid(path, ".dpt", channels=1)[..., 0]


def write_dpt(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in metres, as float32; non-finite values are kept as they are."""
    write_atomically(path, tagged_grid(as_values(depth, "a depth")))


def read_cam(path: str | os.PathLike[str]) -> Camera:
    """Read a camera; one whose numbers are not all finite is refused as damaged."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        read_tag(file, ".cam", path)
        if size != _CAMERA_BYTES:
            raise wrong_length(path, size, _CAMERA_BYTES)
        data = read_exactly(file, 8 * _CAMERA_NUMBERS, path)
    numbers = np.frombuffer(data, "<f8").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError(f"{path} is damaged (it holds NaN or infinite numbers); make or download it again.")
    return Camera(numbers[:9].reshape(3, 3), numbers[9:].reshape(3, 4))


def write_cam(path: str | os.PathLike[str], camera: Camera) -> None:
    """Write a camera, exactly."""
    intrinsics = _matrix(camera.intrinsics, (3, 3), "intrinsics")
    extrinsics = _matrix(camera.extrinsics, (3, 4), "extrinsics")
    write_atomically(path, TAG + intrinsics.tobytes() + extrinsics.tobytes())


def _matrix(matrix: npt.ArrayLike, shape: tuple[int, int], what: str) -> npt.NDArray[np.float64]:
    """Return a finite real matrix as little-endian float64, or raise `InputError`."""
    array = np.asarray(matrix)
    if array.shape != shape or array.dtype.kind not in "fiu":
        raise InputError(
            f"the {what} of a camera are {shape[0]}x{shape[1]} real numbers, "
            f"not {array.dtype} of shape {array.shape}; give such a matrix."
        )
    if not np.isfinite(array).all():
        raise InputError(f"the {what} of a camera are finite, and these hold NaN or infinity; replace them first.")
    return array.astype("<f8")
