"""Ground truth in 16-bit pngs: KITTI, Virtual KITTI 2 and depth in millimeters.

KITTI flow is RGB: u = (R - 32768) / 64, v = (G - 32768) / 64 pixels, and B is the valid mask. KITTI disparity (pixels)
and depth (meters) are gray: value / 256, where 0 is invalid.
"""

import numpy as np
import numpy.typing as npt

from protoformer.io.arrays import BoolArray, FloatArray, SparseFlow, SparseValues, as_flow, as_valid, as_values
from protoformer.io.files import PathLike, write_atomically
from protoformer.io.png import GRAY, RGB, encode_png, read_png16

_ZERO_MOTION = np.float32(32768)
_STEPS_PER_PIXEL = np.float32(64)
_MAX_UINT16 = 65535
_KITTI_STEPS, _CM_STEPS, _MM_STEPS = 256, 100, 1000
"""Steps per meter or pixel of the gray formats."""
MAX_KITTI_DEPTH, MAX_MM_DEPTH = _MAX_UINT16 / _KITTI_STEPS, _MAX_UINT16 / _MM_STEPS
"""Maximum depth of the KITTI format and of a 16-bit png in millimeters, in meters."""


def read_kitti_flow(path: PathLike) -> SparseFlow:
    """Read a KITTI flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "KITTI flow", "flow")
    valid = stored[..., 2] != 0
    flow = (stored[..., :2].astype(np.float32) - _ZERO_MOTION) / _STEPS_PER_PIXEL
    flow[~valid] = 0
    return SparseFlow(flow, valid)


def write_kitti_flow(path: PathLike, flow: npt.ArrayLike, valid: BoolArray | None = None) -> None:
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
    encodable = mask & ((steps >= 0) & (steps <= _MAX_UINT16)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[..., 2] = encodable
    write_atomically(path, encode_png(stored))


def read_kitti_disparity(path: PathLike) -> SparseValues:
    """Read a KITTI disparity png: values in pixels, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_sparse(path, "KITTI disparity", "disp", _KITTI_STEPS)


def write_kitti_disparity(path: PathLike, disparity: npt.ArrayLike, valid: BoolArray | None = None) -> None:
    """Write a disparity, HxW in pixels, rounded to 1/256; invalid values are handled as in `write_kitti_depth`."""
    _write_sparse(path, disparity, valid, "disparity", _KITTI_STEPS)


def read_kitti_depth(path: PathLike) -> SparseValues:
    """Read a KITTI depth png: values in meters, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_sparse(path, "KITTI depth", "depth", _KITTI_STEPS)


def write_kitti_depth(path: PathLike, depth: npt.ArrayLike, valid: BoolArray | None = None) -> None:
    """Write a depth as a KITTI png, rounded to 1/256 m.

    The format holds 1/256 .. 255.99609375 m. Smaller positive values become 1/256, since 0 is invalid. Values that are
    not positive, not finite or beyond the range are written as invalid instead of being clipped.

    Args:
        path: File to write.
        depth: HxW, in meters.
        valid: bool HxW; None means that all pixels are valid.
    """
    _write_sparse(path, depth, valid, "depth", _KITTI_STEPS)


def read_mm_depth(path: PathLike) -> SparseValues:
    """Read a depth png of millimeters: values in meters; a pixel is valid where it is not zero."""
    return _read_sparse(path, "depth in millimeters", "depth", _MM_STEPS)


def write_mm_depth(path: PathLike, depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to millimeters, of at most 65.535 m; otherwise as `write_kitti_depth`."""
    _write_sparse(path, depth, None, "depth", _MM_STEPS)


def _read_sparse(path: PathLike, kind: str, folder: str, steps: int) -> SparseValues:
    stored = read_png16(path, GRAY, kind, folder)
    return SparseValues(stored.astype(np.float32) / np.float32(steps), stored != 0)


def _write_sparse(path: PathLike, values: npt.ArrayLike, valid: BoolArray | None, what: str, steps: int) -> None:
    array = as_values(values, f"a {what}")
    mask = as_valid(valid, array.shape, what)
    with np.errstate(invalid="ignore"):
        samples = np.rint(array.astype(np.float64) * steps)
    encodable = mask & (array > 0) & (samples <= _MAX_UINT16)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(samples[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))


def read_vkitti2_depth(path: PathLike) -> FloatArray:
    """Read a VKITTI2 depth png: float32 HxW, meters along the optical axis, in steps of 1 cm, dense.

    The maximum, 655.35 m, is the sky and everything at least that far away. It is returned as stored; evaluation
    excludes it by its own depth limit.
    """
    return _read_sparse(path, "VKITTI2 depth", "depth", _CM_STEPS).values


def read_vkitti2_flow(path: PathLike) -> SparseFlow:
    """Read a VKITTI2 flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "VKITTI2 flow", "flow")
    valid = stored[..., 2] != 0
    max_motion = np.array([valid.shape[1] - 1, valid.shape[0] - 1], dtype=np.float64)
    flow = (2 * stored[..., :2].astype(np.float64) / _MAX_UINT16 - 1) * max_motion
    flow[~valid] = 0
    return SparseFlow(flow.astype(np.float32), valid)
