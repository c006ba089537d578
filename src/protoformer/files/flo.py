"""The Middlebury `.flo` format: magic 202021.25, width, height, then rows of (u, v), all little-endian."""

import os

import numpy as np
import numpy.typing as npt

from protoformer.files.atomic import write_atomically
from protoformer.files.flow_array import as_flow
from protoformer.files.tagged import read_tagged_grid, tagged_grid


def read_flo(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a flow: float32 HxWx2, (u right, v down) in pixels.

    Values are as stored; `known_flow` says which are real motion (Middlebury marks the unknown with values over 1e9).
    """
    return read_tagged_grid(path, ".flo", channels=2)


def write_flo(path: str | os.PathLike[str], flow: npt.ArrayLike) -> None:
    """Write a flow, HxWx2 (u right, v down) in pixels, as float32; non-finite values are kept as they are."""
    write_atomically(path, tagged_grid(as_flow(flow)))
