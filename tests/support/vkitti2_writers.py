"""Writers of Virtual KITTI 2, which tests read back."""

import os

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import write_atomically
from protoformer.io.formats import as_flow, as_valid, as_values
from protoformer.io.png import encode_png

_MAX_UINT16 = 65535


def write_vkitti2_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to centimeters; 655.35 m and beyond, including infinity, is the sky.

    Raises:
        InputError: If a value is NaN or negative, since the format cannot mark invalid pixels.
    """
    array = as_values(depth, "a depth")
    if not (array >= 0).all():
        raise InputError("a VKITTI2 depth is known and not negative at every pixel; replace NaN and values under 0.")
    steps = np.rint(np.minimum(array.astype(np.float64) * 100, _MAX_UINT16))
    write_atomically(path, encode_png(steps.astype(np.uint16)))


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
    max_motion = (array.shape[1] - 1, array.shape[0] - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = np.where(array == 0, 0, array.astype(np.float64) / max_motion)
        steps = np.rint((fraction + 1) / 2 * _MAX_UINT16)
    encodable = mask & ((steps >= 0) & (steps <= _MAX_UINT16)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[encodable, 2] = _MAX_UINT16
    write_atomically(path, encode_png(stored))
