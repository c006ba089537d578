"""Ground truth in 16-bit pngs: KITTI, Virtual KITTI 2 and depth in millimeters.

KITTI flow is RGB: u = (R - 32768) / 64, v = (G - 32768) / 64 pixels, and B is the valid mask. KITTI disparity (pixels)
and depth (meters) are gray: value / 256, where 0 is invalid.
"""

import os

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.arrays import SparseFlow, SparseValues, as_flow, as_valid, as_values
from protoformer.io.files import write_atomically
from protoformer.io.png import GRAY, RGB, encode_png, read_png16

_ZERO_MOTION = np.float32(32768)
_STEPS_PER_PIXEL = np.float32(64)
_STEPS_PER_UNIT = np.float32(256)
MAX_KITTI_DEPTH = 65535 / 256
"""Maximum depth of the KITTI format, in meters."""


def read_kitti_flow(path: str | os.PathLike[str]) -> SparseFlow:
    """Read a KITTI flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "KITTI flow", "flow")
    valid = stored[..., 2] != 0
    flow = (stored[..., :2].astype(np.float32) - _ZERO_MOTION) / _STEPS_PER_PIXEL
    flow[~valid] = 0
    return SparseFlow(flow, valid)


def write_kitti_flow(
    path: str | os.PathLike[str], flow: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a flow as a KITTI png, rounded to 1/64 pixel.

    The format holds -512 .. 511.984375 pixels. A pixel with a component outside this range, or that is not finite, is
    written as invalid instead of being clipped. Invalid pixels are stored as (0, 0, 0), as in the files of KITTI.

    Args:
        path: File to write.
        flow: HxWx2, (u right, v down) in pixels.
        valid: bool HxW; None means that all pixels are valid.
    """
    array = as_flow(flow)
    mask = as_valid(valid, array.shape[:2], "flow")
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_PIXEL) + _ZERO_MOTION
    encodable = mask & ((steps >= 0) & (steps <= 65535)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[..., 2] = encodable
    write_atomically(path, encode_png(stored))


def read_kitti_disparity(path: str | os.PathLike[str]) -> SparseValues:
    """Read a KITTI disparity png: values in pixels, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_sparse(path, "KITTI disparity", "disp")


def write_kitti_disparity(
    path: str | os.PathLike[str], disparity: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a disparity, HxW in pixels, rounded to 1/256; invalid values are handled as in `write_kitti_depth`."""
    _write_sparse(path, disparity, valid, "disparity")


def read_kitti_depth(path: str | os.PathLike[str]) -> SparseValues:
    """Read a KITTI depth png: values in meters, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_sparse(path, "KITTI depth", "depth")


def write_kitti_depth(
    path: str | os.PathLike[str], depth: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a depth as a KITTI png, rounded to 1/256 m.

    The format holds 1/256 .. 255.99609375 m. Smaller positive values become 1/256, since 0 is invalid. Values that are
    not positive, not finite or beyond the range are written as invalid instead of being clipped.

    Args:
        path: File to write.
        depth: HxW, in meters.
        valid: bool HxW; None means that all pixels are valid.
    """
    _write_sparse(path, depth, valid, "depth")


def _read_sparse(path: str | os.PathLike[str], kind: str, folder: str) -> SparseValues:
    stored = read_png16(path, GRAY, kind, folder)
    return SparseValues(stored.astype(np.float32) / _STEPS_PER_UNIT, stored != 0)


def _write_sparse(
    path: str | os.PathLike[str], values: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None, what: str
) -> None:
    array = as_values(values, f"a {what}")
    mask = as_valid(valid, array.shape, what)
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_UNIT)
    encodable = mask & (array > 0) & (steps <= 65535)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(steps[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))


_VKITTI_STEPS_PER_METER = 100
_MAX_UINT16 = 65535


def read_vkitti2_depth(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a VKITTI2 depth png: float32 HxW, meters along the optical axis, in steps of 1 cm, dense.

    The maximum, 655.35 m, is the sky and everything at least that far away. It is returned as stored; evaluation
    excludes it by its own depth limit.
    """
    stored = read_png16(path, GRAY, "VKITTI2 depth", "depth")
    return stored.astype(np.float32) / np.float32(_VKITTI_STEPS_PER_METER)


def write_vkitti2_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to centimeters; 655.35 m and beyond, including infinity, is the sky.

    Raises:
        InputError: If a value is NaN or negative, since the format cannot mark invalid pixels.
    """
    array = as_values(depth, "a depth")
    if not (array >= 0).all():
        raise InputError("a VKITTI2 depth is known and not negative at every pixel; replace NaN and values under 0.")
    steps = np.rint(np.minimum(array.astype(np.float64) * _VKITTI_STEPS_PER_METER, _MAX_UINT16))
    write_atomically(path, encode_png(steps.astype(np.uint16)))


def read_vkitti2_flow(path: str | os.PathLike[str]) -> SparseFlow:
    """Read a VKITTI2 flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "VKITTI2 flow", "flow")
    valid = stored[..., 2] != 0
    flow = (2 * stored[..., :2].astype(np.float64) / _MAX_UINT16 - 1) * _max_motion(valid.shape)
    flow[~valid] = 0
    return SparseFlow(flow.astype(np.float32), valid)


def write_vkitti2_flow(
    path: str | os.PathLike[str], flow: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a flow as a VKITTI2 png, rounded to the resolution of the format.

    The resolution is 2 (width - 1) / 65535 pixels for u and 2 (height - 1) / 65535 for v. Zero motion lies between two
    steps and is read back as half a step. The format holds motion up to (width - 1, height - 1). A pixel with a
    component outside this range, or that is not finite, is written as invalid instead of being clipped. Invalid pixels
    are stored as (0, 0, 0).

    Args:
        path: File to write.
        flow: HxWx2, (u right, v down) in pixels.
        valid: bool HxW; None means that all pixels are valid.
    """
    array = as_flow(flow)
    mask = as_valid(valid, array.shape[:2], "flow")
    # An image one pixel wide can only hold zero motion; other values divide to infinity and become invalid.
    max_motion = _max_motion(array.shape[:2])
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = np.where(array == 0, 0, array.astype(np.float64) / max_motion)
        steps = np.rint((fraction + 1) / 2 * _MAX_UINT16)
    encodable = mask & ((steps >= 0) & (steps <= _MAX_UINT16)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[encodable, 2] = _MAX_UINT16
    write_atomically(path, encode_png(stored))


def _max_motion(size: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return the motion (u, v), in pixels, that the maximum sample value represents for an image of HxW `size`."""
    return np.array([size[1] - 1, size[0] - 1], dtype=np.float64)


MAX_MM_DEPTH = 65.535
"""Maximum depth of a 16-bit png in millimeters, in meters."""
_STEPS_PER_METER = 1000


def read_mm_depth(path: str | os.PathLike[str]) -> SparseValues:
    """Read a depth png of millimeters: values in meters; a pixel is valid where it is not zero."""
    stored = read_png16(path, GRAY, "depth in millimeters", "depth")
    return SparseValues(stored.astype(np.float32) / np.float32(_STEPS_PER_METER), stored != 0)


def write_mm_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to millimeters.

    A positive depth under half a millimeter becomes 1 mm, since 0 is invalid. Values that are not positive, not finite
    or beyond 65.535 m are written as invalid instead of being clipped.
    """
    array = as_values(depth, "a depth")
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_METER)
    encodable = (array > 0) & (steps <= 65535)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(steps[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))
