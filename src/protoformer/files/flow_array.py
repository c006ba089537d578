"""What counts as a flow array, and which of its values are known."""

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.value_array import as_float32

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


def known_flow(flow: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Say where an HxWx2 flow is known: bool HxW, False where a component is NaN, infinite or beyond 1e9 pixels."""
    known: npt.NDArray[np.bool_] = (np.abs(flow) <= UNKNOWN_FLOW_THRESHOLD).all(axis=-1)
    return known
