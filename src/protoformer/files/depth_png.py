"""Depth in 16-bit grey pngs of millimetres, as most depth cameras write it: 0 means none, and 65.535 m is the end."""

import os

import numpy as np
import numpy.typing as npt

from protoformer.files.atomic import write_atomically
from protoformer.files.png import GREY, encode_png, read_png16
from protoformer.files.sparse import SparseValues
from protoformer.files.value_array import as_values

FARTHEST_MM = 65.535
"""Metres: the largest depth that the format holds."""
_STEPS_PER_METRE = 1000


def read_mm_depth(path: str | os.PathLike[str]) -> SparseValues:
    """Read a depth png of millimetres: values in metres; a pixel is valid where it is not zero."""
    stored = read_png16(path, GREY, "depth in millimetres", "depth")
    return SparseValues(stored.astype(np.float32) / np.float32(_STEPS_PER_METRE), stored != 0)


def write_mm_depth(path: str | os.PathLike[str], depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in metres, rounded to the nearest millimetre.

    A depth under half a millimetre but over 0 becomes 1 mm, since 0 would read back as none. What is 0 or less, rounds
    beyond 65.535 m or is not finite is written as none, since a clipped value would read back as a wrong one.
    """
    array = as_values(depth, "a depth")
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_METRE)
    encodable = (array > 0) & (steps <= 65535)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(steps[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))
