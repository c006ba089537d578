"""Virtual KITTI 2's truth in 16-bit pngs.

Depth is grey, in centimetres. Flow is RGB and scaled to the image: u = (2 R / 65535 - 1) (width - 1),
v = (2 G / 65535 - 1) (height - 1) pixels, and B = 0 means none.
"""

import os

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.atomic import write_atomically
from protoformer.files.flow_array import as_flow
from protoformer.files.png import GREY, RGB, encode_png, read_png16
from protoformer.files.sparse import SparseFlow, as_valid
from protoformer.files.value_array import as_values

_STEPS_PER_METRE = 100
_WHITE = 65535


def read_vkitti2_depth(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a VKITTI2 depth png: float32 HxW, metres along the optical axis, in steps of 1 cm, known at every pixel.

    The largest value, 655.35 m, stands for the sky and whatever else is at least that far. It is returned as it is,
    as the dataset has it; an evaluation leaves it out by its own limit of depth.
    """
    stored = read_png16(path, GREY, "VKITTI2 depth", "depth")
    return stored.astype(np.float32) / np.float32(_STEPS_PER_METRE)


def write_vkitti2_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in metres, rounded to the nearest centimetre; 655.35 m and beyond, even infinity, is the sky.

    The format has no mark for an unknown depth, so NaN and negative values are refused.
    """
    array = as_values(depth, "a depth")
    if not (array >= 0).all():
        raise InputError("a VKITTI2 depth is known and not negative at every pixel; replace NaN and values under 0.")
    steps = np.rint(np.minimum(array.astype(np.float64) * _STEPS_PER_METRE, _WHITE))
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
