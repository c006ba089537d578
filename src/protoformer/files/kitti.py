"""KITTI's truth in 16-bit pngs.

Flow is RGB: u = (R - 32768) / 64, v = (G - 32768) / 64 pixels and B = valid. Disparity (pixels) and depth (metres) are
grey and alike: value / 256, where 0 means none.
"""

import os

import numpy as np
import numpy.typing as npt

from protoformer.files.atomic import write_atomically
from protoformer.files.flow_array import as_flow
from protoformer.files.png import GREY, RGB, encode_png, read_png16
from protoformer.files.sparse import SparseFlow, SparseValues, as_valid
from protoformer.files.value_array import as_values

_ZERO_MOTION = np.float32(32768)
_STEPS_PER_PIXEL = np.float32(64)
_STEPS_PER_UNIT = np.float32(256)
FARTHEST_KITTI = 65535 / 256
"""Metres: the largest depth that the format holds."""


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
    """Read a KITTI depth png: values in metres, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_values(path, "KITTI depth", "depth")


def write_kitti_depth(
    path: str | os.PathLike[str], depth: npt.ArrayLike, valid: npt.NDArray[np.bool_] | None = None
) -> None:
    """Write a depth, HxW in metres, rounded to the nearest 1/256.

    `valid`: bool HxW, all True when left out. The format holds 1/256 .. 255.99609375: a smaller value over 0 becomes
    1/256, since 0 would read back as none. What is 0 or less, rounds beyond the end or is not finite is written as
    none, since a clipped value would read back as a wrong one.
    """
    _write_values(path, depth, valid, "depth")


def _read_values(path: str | os.PathLike[str], kind: str, folder: str) -> SparseValues:
    stored = read_png16(path, GREY, kind, folder)
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
