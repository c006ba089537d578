"""What `.flo`, `.dpt` and `.cam` share: they start with the float 202021.25 and are little-endian throughout."""

import os
import struct
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.reading import check_dimensions, opened, read_exactly, wrong_length

TAG = struct.pack("<f", 202021.25)
_SIZE = struct.Struct("<ii")


def read_tag(file: BinaryIO, suffix: str, path: str | os.PathLike[str]) -> None:
    """Read the first four bytes, or raise `InputError` where they are not the tag of a file named `suffix`."""
    if file.read(len(TAG)) != TAG:
        raise InputError(f"{path} is not a {suffix} file (it does not start with 202021.25); give a {suffix} file.")


def read_tagged_grid(path: str | os.PathLike[str], suffix: str, channels: int) -> npt.NDArray[np.float32]:
    """Read tag, width, height and rows of pixels as float32 HxWxC, values as stored."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        read_tag(file, suffix, path)
        header = file.read(_SIZE.size)
        if len(header) < _SIZE.size:
            raise InputError(f"{path} is cut short inside its header; make or download it again.")
        width, height = _SIZE.unpack(header)
        check_dimensions(width, height, path)
        # A damaged header may ask for terabytes; the file's real size is known before anything is allocated.
        body = 4 * channels * width * height
        if size != file.tell() + body:
            raise wrong_length(path, size, file.tell() + body, (width, height))
        data = read_exactly(file, body, path)
    return np.frombuffer(data, "<f4").reshape(height, width, channels).astype(np.float32)


def tagged_grid(values: npt.NDArray[np.float32]) -> bytes:
    """Lay out float32 HxW or HxWxC values as tag, width, height and rows."""
    height, width = values.shape[:2]
    return TAG + _SIZE.pack(width, height) + values.astype("<f4").tobytes()
