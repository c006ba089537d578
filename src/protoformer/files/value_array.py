"""What counts as a map of values, one a pixel."""

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
