"""KITTI's truth in 16-bit pngs.

Flow is RGB: u = (R - 32768) / 64, v = (G - 32768) / 64 pixels and B = valid. Disparity (pixels) and depth (meters) are
gray and alike: value / 256, where 0 means none.
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
FARTHEST_KITTI = 65535 / 256
"""Meters: the largest depth that the format holds."""


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
    """Write a flow, HxWx2 (u right, v down) in pixels, rounded to the nearest 1/64 pixel.

    `valid`: bool HxW, all True when left out. The format holds -512 .. 511.984375 pixels: a pixel with a component
    that rounds outside it, or that is not finite, is written as invalid, since a clipped or wrapped motion would read
    back as a wrong one. Invalid pixels are stored as (0, 0, 0), as in KITTI's own files.
    """
    array = as_flow(flow)
    wanted = as_valid(valid, array.shape[:2], "flow")
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_PIXEL) + _ZERO_MOTION
    encodable = wanted & ((steps >= 0) & (steps <= 65535)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[..., 2] = encodable
    write_atomically(path, encode_png(stored))


def read_kitti_disparity(path: str | os.PathLike[str]) -> SparseValues:
    """Read a KITTI disparity png: values in pixels, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_values(path, "KITTI disparity", "disp")


def write_kitti_disparity(
    path: str | os.PathLike[str], disparity: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a disparity, HxW in pixels, rounded to the nearest 1/256; what it keeps: see `write_kitti_depth`."""
    _write_values(path, disparity, valid, "disparity")


def read_kitti_depth(path: str | os.PathLike[str]) -> SparseValues:
    """Read a KITTI depth png: values in meters, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_values(path, "KITTI depth", "depth")


def write_kitti_depth(
    path: str | os.PathLike[str], depth: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a depth, HxW in meters, rounded to the nearest 1/256.

    `valid`: bool HxW, all True when left out. The format holds 1/256 .. 255.99609375: a smaller value over 0 becomes
    1/256, since 0 would read back as none. What is 0 or less, rounds beyond the end or is not finite is written as
    none, since a clipped value would read back as a wrong one.
    """
    _write_values(path, depth, valid, "depth")


def _read_values(path: str | os.PathLike[str], kind: str, folder: str) -> SparseValues:
    stored = read_png16(path, GRAY, kind, folder)
    return SparseValues(stored.astype(np.float32) / _STEPS_PER_UNIT, stored != 0)


def _write_values(
    path: str | os.PathLike[str], values: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None, what: str
) -> None:
    array = as_values(values, f"a {what}")
    wanted = as_valid(valid, array.shape, what)
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_UNIT)
    encodable = wanted & (array > 0) & (steps <= 65535)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(steps[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))


_VKITTI_STEPS_PER_METER = 100
_WHITE = 65535


def read_vkitti2_depth(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a VKITTI2 depth png: float32 HxW, meters along the optical axis, in steps of 1 cm, known at every pixel.

    The largest value, 655.35 m, stands for the sky and whatever else is at least that far. It is returned as it is,
    as the dataset has it; an evaluation leaves it out by its own limit of depth.
    """
    stored = read_png16(path, GRAY, "VKITTI2 depth", "depth")
    return stored.astype(np.float32) / np.float32(_VKITTI_STEPS_PER_METER)


def write_vkitti2_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to the nearest centimeter; 655.35 m and beyond, even infinity, is the sky.

    The format has no mark for an unknown depth, so NaN and negative values are refused.
    """
    array = as_values(depth, "a depth")
    if not (array >= 0).all():
        raise InputError("a VKITTI2 depth is known and not negative at every pixel; replace NaN and values under 0.")
    steps = np.rint(np.minimum(array.astype(np.float64) * _VKITTI_STEPS_PER_METER, _WHITE))
    write_atomically(path, encode_png(steps.astype(np.uint16)))


def read_vkitti2_flow(path: str | os.PathLike[str]) -> SparseFlow:
    """Read a VKITTI2 flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "VKITTI2 flow", "flow")
    valid = stored[..., 2] != 0
    flow = (2 * stored[..., :2].astype(np.float64) / _WHITE - 1) * _largest_motion(valid.shape)
    flow[~valid] = 0
    return SparseFlow(flow.astype(np.float32), valid)


def write_vkitti2_flow(
    path: str | os.PathLike[str], flow: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a flow, HxWx2 (u right, v down) in pixels, rounded to the nearest step of the format.

    `valid`: bool HxW, all True when left out. A step is 2 (width - 1) / 65535 pixels for u and 2 (height - 1) / 65535
    for v, and no motion lies between two steps: it reads back as half a step. The format holds motion up to
    (width - 1, height - 1); a pixel with a component that rounds outside it, or that is not finite, is written as
    invalid, since a clipped or wrapped motion would read back as a wrong one. Invalid pixels are stored as (0, 0, 0).
    """
    array = as_flow(flow)
    wanted = as_valid(valid, array.shape[:2], "flow")
    # An image one pixel wide holds no motion but 0; any other divides to infinity, and so is invalid.
    largest = _largest_motion(array.shape[:2])
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = np.where(array == 0, 0, array.astype(np.float64) / largest)
        steps = np.rint((fraction + 1) / 2 * _WHITE)
    encodable = wanted & ((steps >= 0) & (steps <= _WHITE)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[encodable, 2] = _WHITE
    write_atomically(path, encode_png(stored))


def _largest_motion(size: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Give the (u, v) in pixels that the format's white stands for, for an image of HxW `size`."""
    return np.array([size[1] - 1, size[0] - 1], dtype=np.float64)


FARTHEST_MM = 65.535
"""Meters: the largest depth that the format holds."""
_STEPS_PER_METER = 1000


def read_mm_depth(path: str | os.PathLike[str]) -> SparseValues:
    """Read a depth png of millimeters: values in meters; a pixel is valid where it is not zero."""
    stored = read_png16(path, GRAY, "depth in millimeters", "depth")
    return SparseValues(stored.astype(np.float32) / np.float32(_STEPS_PER_METER), stored != 0)


def write_mm_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to the nearest millimeter.

    A depth under half a millimeter but over 0 becomes 1 mm, since 0 would read back as none. What is 0 or less, rounds
    beyond 65.535 m or is not finite is written as none, since a clipped value would read back as a wrong one.
    """
    array = as_values(depth, "a depth")
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_METER)
    encodable = (array > 0) & (steps <= 65535)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(steps[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))
