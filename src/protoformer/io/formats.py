"""Flow, depth, disparity and camera formats, and validation of such arrays.

Middlebury `.flo` flow, Sintel `.dpt` depth and `.cam` cameras start with the tag 202021.25 and are little-endian;
`.flo` and `.dpt` continue with width, height and rows of pixels. `.pfm` holds flow or depth as floats.

KITTI flow is a 16-bit RGB png: u = (R - 32768) / 64, v = (G - 32768) / 64 pixels, and B is the valid mask. KITTI
disparity (pixels) and depth (meters) are gray: value / 256, where 0 is invalid. Virtual KITTI 2 and depth in
millimeters are 16-bit pngs as well.
"""

import io
import os
import re
import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import PathLike, check_dimensions, length_error, open_input, read_exactly, write_atomically
from protoformer.io.png import GRAY, RGB, encode_png, read_png16

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


def as_values(values: npt.ArrayLike, what: str) -> FloatArray:
    """Convert a real HxW array to contiguous float32; `what` is its name in error messages, such as "a depth"."""
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        raise InputError(f"{what} has shape HxW with at least one pixel, not {array.shape}; reshape it first.")
    return as_float32(array, what)


def encode_npy(array: npt.NDArray[np.generic]) -> bytes:
    """Encode an array as the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def encode_npz(**arrays: npt.ArrayLike) -> bytes:
    """Encode named arrays as the bytes of a compressed .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    return buffer.getvalue()


def as_float32(array: npt.NDArray[np.generic], what: str) -> FloatArray:
    """Convert real numbers to contiguous float32, or raise `InputError` for other types.

    Non-finite values are kept, and a float64 too large for float32 becomes infinite.
    """
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} holds real numbers, not {array.dtype}; convert it first.")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


UNKNOWN_FLOW_THRESHOLD = 1e9
"""Flow is unknown where the magnitude of a component exceeds this, in pixels (Middlebury convention)."""


def as_flow(flow: npt.ArrayLike) -> FloatArray:
    """Convert a flow, real HxWx2, (u right, v down) in pixels, to contiguous float32, or raise `InputError`.

    Non-finite values are kept; a float64 too large for float32 becomes infinite, which is unknown as well.
    """
    array = np.asarray(flow)
    if array.ndim != 3 or array.shape[2] != 2 or array.size == 0:
        raise InputError(f"a flow has shape HxWx2 with at least one pixel, not {array.shape}; reshape it first.")
    return as_float32(array, "a flow")


def valid_flow(flow: npt.NDArray[np.floating]) -> BoolArray:
    """Return the valid mask of an HxWx2 flow: bool HxW, False where a component is NaN, infinite or beyond 1e9."""
    valid: BoolArray = (np.abs(flow) <= UNKNOWN_FLOW_THRESHOLD).all(axis=-1)
    return valid


@dataclass(frozen=True)
class SparseFlow:
    """Sparse flow.

    Attributes:
        flow: float32 HxWx2, (u right, v down) in pixels, 0 where not valid.
        valid: bool HxW.
    """

    flow: FloatArray
    valid: BoolArray


@dataclass(frozen=True)
class SparseValues:
    """Sparse depth (meters) or disparity (pixels).

    Attributes:
        values: float32 HxW, 0 where not valid.
        valid: bool HxW.
    """

    values: FloatArray
    valid: BoolArray


def as_valid(valid: BoolArray | None, size: tuple[int, ...], what: str) -> BoolArray:
    """Return a valid mask, bool HxW, of a (height, width); None: all pixels are valid.

    `what` is the name of the masked array in error messages, such as "flow".
    """
    mask = np.ones(size, dtype=np.bool_) if valid is None else np.asarray(valid)
    if mask.shape != size or mask.dtype != np.bool_:
        raise InputError(
            f"the valid mask of a {size[0]}x{size[1]} {what} is bool of that shape, "
            f"not {mask.dtype} of shape {mask.shape}; give a mask that fits the {what}."
        )
    return mask


TAG = struct.pack("<f", 202021.25)
_SIZE = struct.Struct("<ii")


def read_tag(file: BinaryIO, suffix: str, path: PathLike) -> None:
    """Read the tag, or raise `InputError` if the file does not start with it."""
    if file.read(len(TAG)) != TAG:
        raise InputError(f"{path} is not a {suffix} file (it does not start with 202021.25); give a {suffix} file.")


def read_tagged_grid(path: PathLike, suffix: str, channels: int) -> FloatArray:
    """Read a file of tag, width, height and rows of pixels as float32 HxWxC, values as stored."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        read_tag(file, suffix, path)
        header = file.read(_SIZE.size)
        if len(header) < _SIZE.size:
            raise InputError(f"{path} is cut short inside its header; make or download it again.")
        width, height = _SIZE.unpack(header)
        check_dimensions(width, height, path)
        # A damaged header may declare terabytes, so the file size is checked before anything is allocated.
        body = 4 * channels * width * height
        if size != file.tell() + body:
            raise length_error(path, size, file.tell() + body, (width, height))
        data = read_exactly(file, body, path)
    return np.frombuffer(data, "<f4").reshape(height, width, channels).astype(np.float32)


def encode_tagged_grid(values: FloatArray) -> bytes:
    """Encode float32 HxW or HxWxC values as tag, width, height and rows of pixels."""
    height, width = values.shape[:2]
    return TAG + _SIZE.pack(width, height) + values.astype("<f4").tobytes()


def read_flo(path: PathLike) -> FloatArray:
    """Read a flow: float32 HxWx2, (u right, v down) in pixels.

    Values are as stored, including unknown flow, which Middlebury marks by values over 1e9; see `valid_flow`.
    """
    return read_tagged_grid(path, ".flo", channels=2)


def write_flo(path: PathLike, flow: npt.ArrayLike) -> None:
    """Write a flow, HxWx2 (u right, v down) in pixels, as float32; non-finite values are kept as they are."""
    write_atomically(path, encode_tagged_grid(as_flow(flow)))


_CAMERA_VALUES = 9 + 12
_CAMERA_BYTES = len(TAG) + 8 * _CAMERA_VALUES


@dataclass(frozen=True)
class Camera:
    """A pinhole camera: `intrinsics @ extrinsics @ (x, y, z, 1)` is the pixel (u, v, 1) times its depth.

    Attributes:
        intrinsics: float64 3x3, focal lengths and principal point in pixels.
        extrinsics: float64 3x4, [R | t] from world to camera, in meters.
    """

    intrinsics: npt.NDArray[np.float64]
    extrinsics: npt.NDArray[np.float64]


def read_dpt(path: PathLike) -> FloatArray:
    """Read a depth: float32 HxW in meters along the optical axis, values as stored."""
    return read_tagged_grid(path, ".dpt", channels=1)[..., 0]


def write_dpt(path: PathLike, depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, as float32; non-finite values are kept as they are."""
    write_atomically(path, encode_tagged_grid(as_values(depth, "a depth")))


def read_cam(path: PathLike) -> Camera:
    """Read a camera, or raise `InputError` if the file is damaged or holds values that are not finite."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        read_tag(file, ".cam", path)
        if size != _CAMERA_BYTES:
            raise length_error(path, size, _CAMERA_BYTES)
        data = read_exactly(file, 8 * _CAMERA_VALUES, path)
    values = np.frombuffer(data, "<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{path} is damaged (it holds NaN or infinite numbers); make or download it again.")
    return Camera(values[:9].reshape(3, 3), values[9:].reshape(3, 4))


def write_cam(path: PathLike, camera: Camera) -> None:
    """Write a camera as float64, without loss."""
    intrinsics = _check_matrix(camera.intrinsics, (3, 3), "intrinsics")
    extrinsics = _check_matrix(camera.extrinsics, (3, 4), "extrinsics")
    write_atomically(path, TAG + intrinsics.tobytes() + extrinsics.tobytes())


def _check_matrix(matrix: npt.ArrayLike, shape: tuple[int, int], what: str) -> npt.NDArray[np.float64]:
    """Return a finite real matrix as little-endian float64, or raise `InputError`."""
    array = np.asarray(matrix)
    if array.shape != shape or array.dtype.kind not in "fiu":
        raise InputError(
            f"the {what} of a camera are {shape[0]}x{shape[1]} real numbers, "
            f"not {array.dtype} of shape {array.shape}; give such a matrix."
        )
    if not np.isfinite(array).all():
        raise InputError(f"the {what} of a camera are finite, and these hold NaN or infinity; replace them first.")
    return array.astype("<f8")


_CHANNELS = {b"PF": 3, b"Pf": 1}
_HEADER = re.compile(rb"(P[Ff])\s+(\S+)\s+(\S+)\s+(\S+)\s")
# A header has four short words.
_MAX_HEADER_BYTES = 256
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MAX_DIGITS = 10


@dataclass(frozen=True)
class _PfmHeader:
    """Header of a `.pfm` file; `end` is the offset of the byte after the scale, which is a separator."""

    width: int
    height: int
    channels: int
    byte_order: str
    end: int


def read_pfm(path: PathLike) -> FloatArray:
    """Read float32 HxW (`Pf`) or HxWx3 (`PF`), top row first.

    Values are as stored, whatever the magnitude of the scale. NaN and infinity are kept (stereo ground truth is
    infinite where the disparity is unknown).
    """
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_MAX_HEADER_BYTES)
        header = _parse_header(start, path)
        body = 4 * header.channels * header.width * header.height
        # The file size tells a separator of two characters (CRLF) from pixel data.
        separator = 2 if start.startswith(b"\r\n", header.end) and size == header.end + 2 + body else 1
        if size != header.end + separator + body:
            raise length_error(path, size, header.end + separator + body, (header.width, header.height))
        file.seek(header.end + separator)
        data = read_exactly(file, body, path)
    shape = (header.height, header.width, header.channels)[: 2 if header.channels == 1 else 3]
    stored = np.frombuffer(data, header.byte_order + "f4").reshape(shape)
    return np.array(stored[::-1], dtype=np.float32, order="C")


def write_pfm(path: PathLike, values: npt.ArrayLike) -> None:
    """Write HxW (as `Pf`) or HxWx3 (as `PF`), top row first, as little-endian float32; non-finite values are kept."""
    array = np.asarray(values)
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) or array.size == 0:
        raise InputError(
            f"a .pfm holds HxW or HxWx3 values with at least one pixel, not {array.shape}; reshape them first."
        )
    height, width = array.shape[:2]
    header = f"{'Pf' if array.ndim == 2 else 'PF'}\n{width} {height}\n-1.0\n".encode()
    write_atomically(path, header + as_float32(array, "a .pfm")[::-1].astype("<f4").tobytes())


def read_pfm_flow(path: PathLike) -> FloatArray:
    """Read a flow, the first two channels of a `PF` file: float32 HxWx2, (u right, v down) in pixels.

    Values are as stored; see `valid_flow`.
    """
    values = read_pfm(path)
    if values.ndim == 2:
        raise InputError(f"{path} holds one channel (Pf), not a flow; give a .pfm file from a flow folder.")
    return np.ascontiguousarray(values[..., :2])


def write_pfm_flow(path: PathLike, flow: npt.ArrayLike) -> None:
    """Write a flow, HxWx2 (u right, v down) in pixels, as a `PF` file whose third channel is 0."""
    write_pfm(path, np.pad(as_flow(flow), ((0, 0), (0, 0), (0, 1))))


def _parse_header(start: bytes, path: PathLike) -> _PfmHeader:
    """Parse the header in the first bytes of a file."""
    if start[:2] not in _CHANNELS:
        raise InputError(f"{path} is not a .pfm file (it starts with neither PF nor Pf); give a .pfm file.")
    match = _HEADER.match(start)
    if match is None:
        raise InputError(f"{path} has a damaged header (it does not end); make or download it again.")
    kind, width, height, scale = match.groups()
    for word in (width, height):
        if not word.isdigit() or len(word) > _MAX_DIGITS:
            raise _header_error(word, "a width or height", path)
    check_dimensions(int(width), int(height), path)
    factor = float(scale) if _NUMBER.fullmatch(scale) else 0.0
    if factor == 0 or not np.isfinite(factor):
        raise _header_error(scale, "a scale, whose sign is the byte order", path)
    return _PfmHeader(int(width), int(height), _CHANNELS[kind], "<" if factor < 0 else ">", match.end(4))


def _header_error(word: bytes, what: str, path: PathLike) -> InputError:
    text = ascii(word[:20].decode("latin-1"))
    return InputError(f"{path} has a damaged header ({text} is not {what}); make or download it again.")


_ZERO_MOTION = np.float32(32768)
_STEPS_PER_PIXEL = np.float32(64)
_MAX_UINT16 = 65535
_KITTI_STEPS, _CM_STEPS, _MM_STEPS = 256, 100, 1000
"""Steps per meter or pixel of the gray formats."""
MAX_KITTI_DEPTH, MAX_MM_DEPTH = _MAX_UINT16 / _KITTI_STEPS, _MAX_UINT16 / _MM_STEPS
"""Maximum depth of the KITTI format and of a 16-bit png in millimeters, in meters."""


def read_kitti_flow(path: PathLike) -> SparseFlow:
    """Read a KITTI flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "KITTI flow", "flow")
    valid = stored[..., 2] != 0
    flow = (stored[..., :2].astype(np.float32) - _ZERO_MOTION) / _STEPS_PER_PIXEL
    flow[~valid] = 0
    return SparseFlow(flow, valid)


def write_kitti_flow(path: PathLike, flow: npt.ArrayLike, valid: BoolArray | None = None) -> None:
    """Write a flow as a KITTI png, rounded to 1/64 pixel.

    The format holds -512 .. 511.984375 pixels. A pixel with a component outside this range, or that is not finite, is
    written as invalid instead of being clipped. Invalid pixels are stored as (0, 0, 0), as in the files of KITTI.

    Args:
        path: File to write.
        flow: HxWx2, (u right, v down) in pixels.
        valid: bool HxW; None means that all pixels are valid.
    """
    array = as_flow(flow)
    mask = as_valid(valid, array.shape[:2], "flow")
    with np.errstate(invalid="ignore"):
        steps = np.rint(array.astype(np.float64) * _STEPS_PER_PIXEL) + _ZERO_MOTION
    encodable = mask & ((steps >= 0) & (steps <= _MAX_UINT16)).all(axis=-1)
    stored = np.zeros((*array.shape[:2], 3), dtype=np.uint16)
    stored[encodable, :2] = steps[encodable].astype(np.uint16)
    stored[..., 2] = encodable
    write_atomically(path, encode_png(stored))


def read_kitti_disparity(path: PathLike) -> SparseValues:
    """Read a KITTI disparity png: values in pixels, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_sparse(path, "KITTI disparity", "disp", _KITTI_STEPS)


def write_kitti_disparity(path: PathLike, disparity: npt.ArrayLike, valid: BoolArray | None = None) -> None:
    """Write a disparity, HxW in pixels, rounded to 1/256; invalid values are handled as in `write_kitti_depth`."""
    _write_sparse(path, disparity, valid, "disparity", _KITTI_STEPS)


def read_kitti_depth(path: PathLike) -> SparseValues:
    """Read a KITTI depth png: values in meters, in steps of 1/256; a pixel is valid where it is not zero."""
    return _read_sparse(path, "KITTI depth", "depth", _KITTI_STEPS)


def write_kitti_depth(path: PathLike, depth: npt.ArrayLike, valid: BoolArray | None = None) -> None:
    """Write a depth as a KITTI png, rounded to 1/256 m.

    The format holds 1/256 .. 255.99609375 m. Smaller positive values become 1/256, since 0 is invalid. Values that are
    not positive, not finite or beyond the range are written as invalid instead of being clipped.

    Args:
        path: File to write.
        depth: HxW, in meters.
        valid: bool HxW; None means that all pixels are valid.
    """
    _write_sparse(path, depth, valid, "depth", _KITTI_STEPS)


def read_mm_depth(path: PathLike) -> SparseValues:
    """Read a depth png of millimeters: values in meters; a pixel is valid where it is not zero."""
    return _read_sparse(path, "depth in millimeters", "depth", _MM_STEPS)


def write_mm_depth(path: PathLike, depth: npt.ArrayLike) -> None:
    """Write a depth, HxW in meters, rounded to millimeters, of at most 65.535 m; otherwise as `write_kitti_depth`."""
    _write_sparse(path, depth, None, "depth", _MM_STEPS)


def _read_sparse(path: PathLike, kind: str, folder: str, steps: int) -> SparseValues:
    stored = read_png16(path, GRAY, kind, folder)
    return SparseValues(stored.astype(np.float32) / np.float32(steps), stored != 0)


def _write_sparse(path: PathLike, values: npt.ArrayLike, valid: BoolArray | None, what: str, steps: int) -> None:
    array = as_values(values, f"a {what}")
    mask = as_valid(valid, array.shape, what)
    with np.errstate(invalid="ignore"):
        samples = np.rint(array.astype(np.float64) * steps)
    encodable = mask & (array > 0) & (samples <= _MAX_UINT16)
    stored = np.zeros(array.shape, dtype=np.uint16)
    stored[encodable] = np.maximum(samples[encodable], 1).astype(np.uint16)
    write_atomically(path, encode_png(stored))


def read_vkitti2_depth(path: PathLike) -> FloatArray:
    """Read a VKITTI2 depth png: float32 HxW, meters along the optical axis, in steps of 1 cm, dense.

    The maximum, 655.35 m, is the sky and everything at least that far away. It is returned as stored; evaluation
    excludes it by its own depth limit.
    """
    return _read_sparse(path, "VKITTI2 depth", "depth", _CM_STEPS).values


def read_vkitti2_flow(path: PathLike) -> SparseFlow:
    """Read a VKITTI2 flow png; a pixel is valid where the blue channel is not zero."""
    stored = read_png16(path, RGB, "VKITTI2 flow", "flow")
    valid = stored[..., 2] != 0
    max_motion = np.array([valid.shape[1] - 1, valid.shape[0] - 1], dtype=np.float64)
    flow = (2 * stored[..., :2].astype(np.float64) / _MAX_UINT16 - 1) * max_motion
    flow[~valid] = 0
    return SparseFlow(flow.astype(np.float32), valid)
