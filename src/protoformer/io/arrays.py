"""What counts as a flow array, and which of its values are known."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError


def as_values(values: npt.ArrayLike, what: str) -> npt.NDArray[np.float32]:
    """Return a real HxW array as contiguous float32, or raise `InputError`; `what` names it in messages ("a depth")."""
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        raise InputError(f"{what} has shape HxW with at least one pixel, not {array.shape}; reshape it first.")
    return as_float32(array, what)


def as_float32(array: npt.NDArray[np.generic], what: str) -> npt.NDArray[np.float32]:
    """Convert real numbers to contiguous float32, or raise `InputError` for others.

    Non-finite values pass, and a float64 too large for float32 becomes infinite.
    """
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} holds real numbers, not {array.dtype}; convert it first.")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


UNKNOWN_FLOW_THRESHOLD = 1e9
"""Middlebury's mark: a component whose size exceeds this (pixels) means the motion there is unknown."""


def as_flow(flow: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return a real HxWx2 array, (u right, v down) in pixels, as contiguous float32, or raise `InputError`.

    Non-finite values pass; a float64 too large for float32 becomes infinite, which is unknown either way.
    """
    array = np.asarray(flow)
    if array.ndim != 3 or array.shape[2] != 2 or array.size == 0:
        raise InputError(f"a flow has shape HxWx2 with at least one pixel, not {array.shape}; reshape it first.")
    return as_float32(array, "a flow")


def valid_flow(flow: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Say where an HxWx2 flow is known: bool HxW, False where a component is NaN, infinite or beyond 1e9 pixels."""
    known: npt.NDArray[np.bool_] = (np.abs(flow) <= UNKNOWN_FLOW_THRESHOLD).all(axis=-1)
    return known


@dataclass(frozen=True)
class SparseFlow:
    """A flow known at some pixels.

    `flow`: float32 HxWx2, (u right, v down) in pixels, 0 where not valid. `valid`: bool HxW.
    """

    flow: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SparseValues:
    """A depth (meters) or disparity (pixels) known at some pixels.

    `values`: float32 HxW, 0 where not valid. `valid`: bool HxW.
    """

    values: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


def as_valid(valid: npt.NDArray[np.bool_] | None, size: tuple[int, ...], what: str) -> npt.NDArray[np.bool_]:
    """Return the bool mask of a HxW `size`, all True for None, or raise `InputError`; `what` is "flow" or alike."""
    mask = np.ones(size, dtype=np.bool_) if valid is None else np.asarray(valid)
    if mask.shape != size or mask.dtype != np.bool_:
        raise InputError(
            f"the valid mask of a {size[0]}x{size[1]} {what} is bool of that shape, "
            f"not {mask.dtype} of shape {mask.shape}; give a mask that fits the {what}."
        )
    return mask
