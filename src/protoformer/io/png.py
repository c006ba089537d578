"""PNG beyond what image libraries promise: every checksum verified, 16-bit samples kept whole."""

import os
import struct
import zlib
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import check_dimensions, check_pixel_count, read_image_bytes

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB = 0, 2
"""The header's color types for one gray sample a pixel, and for red, green and blue, without alpha or palette."""

_SAMPLES_A_PIXEL = {GRAY: 1, RGB: 3, 3: 1, 4: 2, 6: 4}
# Deflate spends two bits or more on its longest copy, 258 bytes: no stream unpacks to over this many times itself.
_LARGEST_EXPANSION = 1032


@dataclass(frozen=True)
class PngHeader:
    """What a PNG says about itself: size in pixels, bits a sample, and the standard's color type."""

    width: int
    height: int
    bit_depth: int
    color_type: int


def check_png(data: bytes, path: str | os.PathLike[str]) -> PngHeader:
    """Verify a PNG from signature to end mark and return its header; `path` is for messages.

    Decoders skip the checksums of pixel data and the end mark, and so accept a cut or damaged file; this does not.
    They also allocate whatever size the header declares; here that size is first held against the pixel data present.
    """
    if not data.startswith(SIGNATURE):
        raise InputError(f"{path} is not a png file; give one, or convert this file to png.")
    header: PngHeader | None = None
    view, position, packed = memoryview(data), len(SIGNATURE), 0
    while True:
        if position + 12 > len(data):
            raise _cut_short(path)
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            raise _cut_short(path)
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise InputError(f"{path} is a damaged png (a checksum does not match); make or download it again.")
        if header is None:
            header = _header(kind, bytes(view[position + 8 : end - 4]), path)
        if kind == b"IDAT":
            packed += length
        if kind == b"IEND":
            _check_room(header, packed, path)
            return header
        position = end


def read_png16(path: str | os.PathLike[str], color_type: int, kind: str, folder: str) -> npt.NDArray[np.uint16]:
    """Read a 16-bit PNG of one color type, `GRAY` as uint16 HxW or `RGB` as uint16 HxWx3.

    `kind` ("KITTI flow") and `folder` ("flow") tell a person, in the message, which file was wanted.
    """
    data = read_image_bytes(path)
    header = check_png(data, path)
    if (header.bit_depth, header.color_type) != (16, color_type):
        wanted = "gray" if color_type == GRAY else "RGB"
        raise InputError(
            f"{path} is a png but not a {kind}, which is 16-bit {wanted}; give a file from a {folder} folder."
        )
    pixels = decode_png16(data, path)
    shape = (header.height, header.width) if color_type == GRAY else (header.height, header.width, 3)
    # A color named as transparent adds an alpha channel, and truth has no use for one.
    if pixels.shape != shape:
        raise InputError(f"{path} declares a transparent color, which a {kind} has not; save it without.")
    return pixels


def decode_png16(data: bytes, path: str | os.PathLike[str]) -> npt.NDArray[np.uint16]:
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
    check_picture_shape(pixels.shape)
    ordered = pixels if pixels.ndim == 2 else pixels[..., ::-1]
    try:
        done, encoded = cv2.imencode(".png", np.ascontiguousarray(ordered))
    except cv2.error:
        done = False
    if not done:
        raise InputError(f"pixels of shape {pixels.shape} do not fit in a png; scale them down first.")
    return encoded.tobytes()


def check_picture_shape(shape: tuple[int, ...]) -> None:
    """Raise `InputError` unless `shape` is a non-empty HxW or HxWx3."""
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)) or 0 in shape:
        raise InputError(f"a picture has shape HxW or HxWx3 with at least one pixel, not {shape}; reshape it first.")


def _header(kind: bytes, body: bytes, path: str | os.PathLike[str]) -> PngHeader:
    """Read the first chunk, which must be the header, and check the size it declares."""
    if kind != b"IHDR" or len(body) != 13:
        raise InputError(f"{path} is a damaged png (it has no header); make or download it again.")
    width, height, bit_depth, color_type = struct.unpack_from(">IIBB", body)
    check_dimensions(width, height, path)
    check_pixel_count(width, height, path)
    return PngHeader(width, height, bit_depth, color_type)


def _check_room(header: PngHeader, packed: int, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` where `packed` bytes of pixel data cannot unpack to the size the header declares."""
    bits = header.width * header.height * header.bit_depth * _SAMPLES_A_PIXEL.get(header.color_type, 1)
    if bits > 8 * _LARGEST_EXPANSION * packed:
        raise InputError(
            f"{path} is a damaged png (its data cannot hold the {header.width}x{header.height} pixels of its header); "
            "make or download it again."
        )


def _cut_short(path: str | os.PathLike[str]) -> InputError:
    return InputError(f"{path} is a png cut short (its end is missing); make or download it again.")
