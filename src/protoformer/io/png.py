"""Strict PNG reading and writing: all checksums are verified, and 16-bit samples keep their precision."""

import struct
import zlib
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import PathLike, check_dimensions, check_pixel_count, read_image_bytes

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB = 0, 2
"""Color types in the header: gray and RGB, without alpha or palette."""

_SAMPLES_PER_PIXEL = {GRAY: 1, RGB: 3, 3: 1, 4: 2, 6: 4}
# Deflate needs at least two bits for its longest match of 258 bytes, which bounds the compression ratio.
_MAX_COMPRESSION_RATIO = 1032


@dataclass(frozen=True)
class PngHeader:
    """Header of a PNG; the color type is that of the standard."""

    width: int
    height: int
    bit_depth: int
    color_type: int


def check_png(data: bytes, path: PathLike) -> PngHeader:
    """Verify all chunks of a PNG and return its header.

    Decoders do not verify the checksums of pixel data and the end chunk, so they accept truncated or damaged files.
    They also allocate the size that the header declares, which is compared here with the amount of compressed data.

    Args:
        data: The file.
        path: Name of the file in error messages.
    """
    if not data.startswith(SIGNATURE):
        raise InputError(f"{path} is not a png file; give one, or convert this file to png.")
    header: PngHeader | None = None
    view, position, compressed_bytes = memoryview(data), len(SIGNATURE), 0
    while True:
        if position + 12 > len(data):
            raise _truncated_error(path)
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            raise _truncated_error(path)
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise InputError(f"{path} is a damaged png (a checksum does not match); make or download it again.")
        if header is None:
            header = _parse_header(kind, bytes(view[position + 8 : end - 4]), path)
        if kind == b"IDAT":
            compressed_bytes += length
        if kind == b"IEND":
            _check_compressed_size(header, compressed_bytes, path)
            return header
        position = end


def read_png16(path: PathLike, color_type: int, kind: str, folder: str) -> npt.NDArray[np.uint16]:
    """Read a 16-bit PNG of a color type: uint16 HxW for `GRAY`, HxWx3 for `RGB`.

    `kind` and `folder` name the kind of data and its folder in error messages, such as "KITTI flow" and "flow".
    """
    data = read_image_bytes(path)
    header = check_png(data, path)
    if (header.bit_depth, header.color_type) != (16, color_type):
        color_name = "gray" if color_type == GRAY else "RGB"
        raise InputError(
            f"{path} is a png but not a {kind}, which is 16-bit {color_name}; give a file from a {folder} folder."
        )
    pixels = decode_png16(data, path)
    shape = (header.height, header.width) if color_type == GRAY else (header.height, header.width, 3)
    # A transparent color adds an alpha channel, which ground truth does not have.
    if pixels.shape != shape:
        raise InputError(f"{path} declares a transparent color, which a {kind} does not have; save it without.")
    return pixels


def decode_png16(data: bytes, path: PathLike) -> npt.NDArray[np.uint16]:
    """Decode a checked 16-bit PNG to uint16 HxW, HxWx3 (RGB) or HxWx4 (RGB and alpha), 0 .. 65535."""
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        pixels = None
    if pixels is None or pixels.dtype != np.uint16:
        raise InputError(f"{path} is a damaged png (its pixels cannot be decoded); make or download it again.")
    if pixels.ndim == 3:
        pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]
    return np.ascontiguousarray(pixels, dtype=np.uint16)


def encode_png(pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> bytes:
    """Encode uint8 or uint16 pixels, HxW (gray) or HxWx3 (RGB), as the bytes of a PNG of the same depth."""
    if pixels.dtype not in (np.uint8, np.uint16):
        raise InputError(f"a png holds uint8 or uint16 pixels, not {pixels.dtype}; convert them first.")
    check_image_shape(pixels.shape)
    bgr = pixels if pixels.ndim == 2 else pixels[..., ::-1]
    try:
        success, encoded = cv2.imencode(".png", np.ascontiguousarray(bgr))
    except cv2.error:
        success = False
    if not success:
        raise InputError(f"pixels of shape {pixels.shape} do not fit in a png; scale them down first.")
    return encoded.tobytes()


def check_image_shape(shape: tuple[int, ...]) -> None:
    """Raise `InputError` unless `shape` is a non-empty HxW or HxWx3."""
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)) or 0 in shape:
        raise InputError(f"an image has shape HxW or HxWx3 with at least one pixel, not {shape}; reshape it first.")


def _parse_header(kind: bytes, body: bytes, path: PathLike) -> PngHeader:
    """Parse the first chunk, which must be the header, and check the size that it declares."""
    if kind != b"IHDR" or len(body) != 13:
        raise InputError(f"{path} is a damaged png (it has no header); make or download it again.")
    width, height, bit_depth, color_type = struct.unpack_from(">IIBB", body)
    check_dimensions(width, height, path)
    check_pixel_count(width, height, path)
    return PngHeader(width, height, bit_depth, color_type)


def _check_compressed_size(header: PngHeader, compressed_bytes: int, path: PathLike) -> None:
    """Raise `InputError` if the compressed data cannot decode to the size that the header declares."""
    bits = header.width * header.height * header.bit_depth * _SAMPLES_PER_PIXEL.get(header.color_type, 1)
    if bits > 8 * _MAX_COMPRESSION_RATIO * compressed_bytes:
        raise InputError(
            f"{path} is a damaged png (its data cannot hold the {header.width}x{header.height} pixels of its header); "
            "make or download it again."
        )


def _truncated_error(path: PathLike) -> InputError:
    return InputError(f"{path} is a png cut short (its end is missing); make or download it again.")
