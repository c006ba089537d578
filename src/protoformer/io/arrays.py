"""Conversion and validation of flow, depth and disparity arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


def as_values(values: npt.ArrayLike, what: str) -> FloatArray:
    """Convert a real HxW array to contiguous float32; `what` is its name in error messages, such as "a depth"."""
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        raise InputError(f"{what} has shape HxW with at least one pixel, not {array.shape}; reshape it first.")
    return as_float32(array, what)


def as_float32(array: npt.NDArray[np.generic], what: str) -> FloatArray:
    """Convert real numbers to contiguous float32, or raise `InputError` for other types.

    Non-finite values are kept, and a float64 too large for float32 becomes infinite.
    """
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} holds real numbers, not {array.dtype}; convert it first.")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


UNKNOWN_FLOW_THRESHOLD = 1e9
"""Flow is unknown where the magnitude of a component exceeds this, in pixels (Middlebury convention)."""


def as_flow(flow: npt.ArrayLike) -> FloatArray:
    """Convert a flow, real HxWx2, (u right, v down) in pixels, to contiguous float32, or raise `InputError`.

    Non-finite values are kept; a float64 too large for float32 becomes infinite, which is unknown as well.
    """
    array = np.asarray(flow)
    if array.ndim != 3 or array.shape[2] != 2 or array.size == 0:
        raise InputError(f"a flow has shape HxWx2 with at least one pixel, not {array.shape}; reshape it first.")
    return as_float32(array, "a flow")


def valid_flow(flow: npt.NDArray[np.floating]) -> BoolArray:
    """Return the valid mask of an HxWx2 flow: bool HxW, False where a component is NaN, infinite or beyond 1e9."""
    valid: BoolArray = (np.abs(flow) <= UNKNOWN_FLOW_THRESHOLD).all(axis=-1)
    return valid


@dataclass(frozen=True)
class SparseFlow:
    """Sparse flow.

    Attributes:
        flow: float32 HxWx2, (u right, v down) in pixels, 0 where not valid.
        valid: bool HxW.
    """

    flow: FloatArray
    valid: BoolArray


@dataclass(frozen=True)
class SparseValues:
    """Sparse depth (meters) or disparity (pixels).

    Attributes:
        values: float32 HxW, 0 where not valid.
        valid: bool HxW.
    """

    values: FloatArray
    valid: BoolArray


def as_valid(valid: BoolArray | None, size: tuple[int, ...], what: str) -> BoolArray:
    """Return a valid mask, bool HxW, of a (height, width); None: all pixels are valid.

    `what` is the name of the masked array in error messages, such as "flow".
    """
    mask = np.ones(size, dtype=np.bool_) if valid is None else np.asarray(valid)
    if mask.shape != size or mask.dtype != np.bool_:
        raise InputError(
            f"the valid mask of a {size[0]}x{size[1]} {what} is bool of that shape, "
            f"not {mask.dtype} of shape {mask.shape}; give a mask that fits the {what}."
        )
    return mask
