"""KITTI flow: a 16-bit RGB png with u = (R - 32768) / 64, v = (G - 32768) / 64 pixels and B = valid."""

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.atomic import write_atomically
from protoformer.files.flow_array import as_flow
from protoformer.files.png import RGB, check_png, decode_png16, encode_png
from protoformer.files.reading import read_image_bytes

_ZERO_MOTION = np.float32(32768)
_STEPS_PER_PIXEL = np.float32(64)


@dataclass(frozen=True)
class SparseFlow:
    """A flow known at some pixels.

    `flow`: float32 HxWx2, (u right, v down) in pixels, 0 where not valid. `valid`: bool HxW.
    """

    flow: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


def read_kitti_flow(path: str | os.PathLike[str]) -> SparseFlow:
    """Read a KITTI flow png; a pixel is valid where the blue channel is not zero."""
    data = read_image_bytes(path)
    header = check_png(data, path)
    if (header.bit_depth, header.color_type) != (16, RGB):
        raise InputError(f"{path} is a png but not a KITTI flow, which is 16-bit RGB; give a file from a flow folder.")
    stored = decode_png16(data, path)
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
    wanted = np.ones(array.shape[:2], dtype=np.bool_) if valid is None else np.asarray(valid)
    if wanted.shape != array.shape[:2] or wanted.dtype != np.bool_:
        raise InputError(
            f"the valid mask of a {array.shape[0]}x{array.shape[1]} flow is bool of that shape, "
            f"not {wanted.dtype} of shape {wanted.shape}; give a mask that fits the flow."
        )
    steps = np.rint(array.astype(np.float64) * _STEPS_PER_PIXEL) + _ZERO_MOTION
    encodable = wanted & ((steps >= 0) & (steps <= 65535)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[..., 2] = encodable
    write_atomically(path, encode_png(stored))
