"""The Middlebury `.flo` format: magic 202021.25, width, height, then rows of (u, v), all little-endian."""

import os
import struct

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.atomic import write_atomically
from protoformer.files.flow_array import as_flow
from protoformer.files.reading import opened

_MAGIC = struct.pack("<f", 202021.25)
_HEADER = struct.Struct("<4sii")


def read_flo(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a flow: float32 HxWx2, (u right, v down) in pixels.

    Values are as stored; `known_flow` says which are real motion (Middlebury marks the unknown with values over 1e9).
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        width, height = _dimensions(file.read(_HEADER.size), path)
        expected = _HEADER.size + 8 * width * height
        # A damaged header may ask for terabytes; the file's real size is known before anything is allocated.
        if size != expected:
            raise InputError(
                f"{path} is {size} bytes long but its header ({width}x{height}) calls for {expected}; "
                "make or download it again."
            )
        data = file.read()
    return np.frombuffer(data, "<f4").reshape(height, width, 2).astype(np.float32)


def write_flo(path: str | os.PathLike[str], flow: npt.ArrayLike) -> None:
    """Write a flow, HxWx2 (u right, v down) in pixels, as float32; non-finite values are kept as they are."""
    array = as_flow(flow)
    height, width, _ = array.shape
    write_atomically(path, _HEADER.pack(_MAGIC, width, height) + array.astype("<f4").tobytes())


def _dimensions(header: bytes, path: str | os.PathLike[str]) -> tuple[int, int]:
    """Read (width, height) in pixels from the first twelve bytes."""
    if not header.startswith(_MAGIC):
        raise InputError(f"{path} is not a .flo file (it does not start with 202021.25); give a .flo file.")
    if len(header) < _HEADER.size:
        raise InputError(f"{path} is cut short inside its header; make or download it again.")
    _, width, height = _HEADER.unpack(header)
    if width < 1 or height < 1:
        raise InputError(f"{path} has a damaged header (its size is {width}x{height}); make or download it again.")
    return width, height
