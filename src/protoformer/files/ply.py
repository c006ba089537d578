"""Point clouds as binary little-endian `.ply`, which every viewer of such clouds opens."""

import os

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.atomic import write_atomically

_PLACE = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")]
_COLOUR = [("red", "u1"), ("green", "u1"), ("blue", "u1")]
_KINDS = {"<f4": "float", "u1": "uchar"}


def write_ply(
    path: str | os.PathLike[str], points: npt.NDArray[np.float32], colours: npt.NDArray[np.uint8] | None = None
) -> None:
    """Write points, N x 3 (x, y, z), with their colours, uint8 N x 3 RGB, if they have any."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"points are N x 3, not of shape {points.shape}; reshape them first.")
    if colours is not None and (colours.shape != points.shape or colours.dtype != np.uint8):
        raise InputError(
            f"{len(points)} points have colours of type {colours.dtype} and shape {colours.shape}; give uint8 N x 3."
        )
    fields = _PLACE if colours is None else _PLACE + _COLOUR
    vertices = np.empty(len(points), dtype=fields)
    columns = points.T if colours is None else (*points.T, *colours.T)
    for (name, _), column in zip(fields, columns, strict=True):
        vertices[name] = column
    properties = "".join(f"property {_KINDS[kind]} {name}\n" for name, kind in fields)
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n{properties}end_header\n"
    write_atomically(path, head.encode("ascii") + vertices.tobytes())
