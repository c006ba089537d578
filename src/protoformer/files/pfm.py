"""The `.pfm` format: `PF` (three channels) or `Pf` (one), width, height and a scale in text, then float32 rows.

Rows run from the bottom of the picture to its top. The sign of the scale is the byte order, negative for little-endian.
Its magnitude is a unit left to whoever wrote the file; the programs that publish flow and disparity write 1 and those
that read them ignore it, and so does this one: values come back as stored, and are written with a scale of -1.
"""

import os
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.atomic import write_atomically
from protoformer.files.flow_array import as_flow
from protoformer.files.reading import check_dimensions, opened, read_exactly, wrong_length
from protoformer.files.value_array import as_float32

_CHANNELS = {b"PF": 3, b"Pf": 1}
_HEADER = re.compile(rb"(P[Ff])\s+(\S+)\s+(\S+)\s+(\S+)\s")
# Four short words; what has not ended by here is no header.
_LONGEST_HEADER = 256
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST_DIGITS = 10


@dataclass(frozen=True)
class _Header:
    """What the text says, and the byte at which it ends (the one blank after the scale not counted)."""

    width: int
    height: int
    channels: int
    byte_order: str
    end: int


def read_pfm(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read float32 HxW (`Pf`) or HxWx3 (`PF`), top row first.

    Values are as stored whatever the magnitude of the scale; NaN and infinity are data (stereo truth has infinity
    where the disparity is unknown).
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_LONGEST_HEADER)
        header = _parsed(start, path)
        body = 4 * header.channels * header.width * header.height
        # The size is known to the byte, so a line end of two characters cannot be mistaken for pixels.
        blank = 2 if start.startswith(b"\r\n", header.end) and size == header.end + 2 + body else 1
        if size != header.end + blank + body:
            raise wrong_length(path, size, header.end + blank + body, (header.width, header.height))
        file.seek(header.end + blank)
        data = read_exactly(file, body, path)
    shape = (header.height, header.width, header.channels)[: 2 if header.channels == 1 else 3]
    stored = np.frombuffer(data, header.byte_order + "f4").reshape(shape)
    return np.array(stored[::-1], dtype=np.float32, order="C")


def write_pfm(path: str | os.PathLike[str], values: npt.ArrayLike) -> None:
    """Write HxW (as `Pf`) or HxWx3 (as `PF`), top row first, as little-endian float32; non-finite values are kept."""
    array = np.asarray(values)
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) or array.size == 0:
        raise InputError(
            f"a .pfm holds HxW or HxWx3 values with at least one pixel, not {array.shape}; reshape them first."
        )
    height, width = array.shape[:2]
    header = f"{'Pf' if array.ndim == 2 else 'PF'}\n{width} {height}\n-1.0\n".encode()
    write_atomically(path, header + as_float32(array, "a .pfm")[::-1].astype("<f4").tobytes())


def read_pfm_flow(path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Read a flow, the first two channels of a `PF` file: float32 HxWx2, (u right, v down) in pixels.

    Values are as stored; `known_flow` says which are real motion.
    """
    values = read_pfm(path)
    if values.ndim == 2:
        raise InputError(f"{path} holds one channel (Pf), not a flow; give a .pfm file from a flow folder.")
    return np.ascontiguousarray(values[..., :2])


def write_pfm_flow(path: str | os.PathLike[str], flow: npt.ArrayLike) -> None:
    """Write a flow, HxWx2 (u right, v down) in pixels, as a `PF` file whose third channel is 0."""
    write_pfm(path, np.pad(as_flow(flow), ((0, 0), (0, 0), (0, 1))))


def _parsed(start: bytes, path: str | os.PathLike[str]) -> _Header:
    """Read the header from the first bytes of a file."""
    if start[:2] not in _CHANNELS:
        raise InputError(f"{path} is not a .pfm file (it starts with neither PF nor Pf); give a .pfm file.")
    match = _HEADER.match(start)
    if match is None:
        raise InputError(f"{path} has a damaged header (it does not end); make or download it again.")
    kind, width, height, scale = match.groups()
    for word in (width, height):
        if not word.isdigit() or len(word) > _MOST_DIGITS:
            raise _damaged_word(word, "a width or height", path)
    check_dimensions(int(width), int(height), path)
    factor = float(scale) if _NUMBER.fullmatch(scale) else 0.0
    if factor == 0 or not np.isfinite(factor):
        raise _damaged_word(scale, "a scale, whose sign is the byte order", path)
    return _Header(int(width), int(height), _CHANNELS[kind], "<" if factor < 0 else ">", match.end(4))


def _damaged_word(word: bytes, what: str, path: str | os.PathLike[str]) -> InputError:
    shown = ascii(word[:20].decode("latin-1"))
    return InputError(f"{path} has a damaged header ({shown} is not {what}); make or download it again.")
