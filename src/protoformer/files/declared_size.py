"""The size an image's header declares, held against the bytes there are: decoders allocate whatever they are told."""

import os
import re
import struct

from PIL import Image

from protoformer.errors import InputError

# Decoding at most this many pixels stays under 64 MB, so that smaller headers need not be doubted: with alpha or in
# any format, and without alpha in the formats that have no bound, where the room is wanted for flat images.
_SMALL = 2**20
_SMALL_WITHOUT_BOUND = 2**21

# The most that one byte of a file can stand for. First where it is bytes of samples: stored plainly; in blocks of
# 4x4 pixels; in runs of up to 256; by deflate (258 bytes in 2 bits); by LZW (fewer than 4096 bytes in 12 bits).
_RUNS, _DEFLATE, _LZW = 128, 1032, 2731
_SAMPLE_BYTES_A_BYTE = {
    **{"raw": 1, "ppm": 1, "ppm_plain": 1, "dds_rgb": 1, "bcn": 2},
    **dict.fromkeys(("bmp_rle", "packbits", "pcx", "qoi", "sgi_rle", "SGI16", "sun_rle", "tga_rle"), _RUNS),
    **{"tiff_lzw": _LZW, "tiff_deflate": _DEFLATE, "tiff_adobe_deflate": _DEFLATE},
}
# Then where it is pixels: a jpeg spends a bit or more on each 8x8 block, and gif is LZW of a byte a pixel.
_PIXELS_A_BYTE = {"jpeg": 512, "gif": _LZW}
# The rest (webp, avif, jpeg 2000, fax and newer codecs in a tiff) can state a flat image of any size in a few dozen
# bytes, which nothing tells from a damaged header. Photographs stay a hundred times under this.
_PIXELS_A_BYTE_WITHOUT_BOUND = 2048

_ICO = b"\0\0\1\0"
_TIFF_TILE_WIDTH, _TIFF_TILE_HEIGHT = 322, 323
# Width and height, or height and width, of the pngs and the jpeg 2000 files and streams inside an icon.
_SIZE_IN_ICON = re.compile(rb"(?:IHDR|ihdr|\xff\x4f\xff\x51.{4})(.{4})(.{4})", re.DOTALL)


def check_icon(data: bytes, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` where `data` is an icon with a picture too large for one; others pass.

    To identify a Windows icon is to decode it, so this comes first.
    """
    if data.startswith((_ICO, b"icns")) and _largest_in_icon(data) > _SMALL:
        raise InputError(f"{path} is a damaged icon (its picture is too large for one); make or download it again.")


def check_declared_size(image: Image.Image, data: bytes, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` where `data`, identified as `image` but not decoded, is too short for the declared pixels."""
    pixels = max(image.width * image.height, _tile_pixels(image))
    most = _most_pixels(image)
    small = _SMALL if most is not None or image.has_transparency_data else _SMALL_WITHOUT_BOUND
    if pixels > max(small, (most or _PIXELS_A_BYTE_WITHOUT_BOUND) * len(data)):
        raise InputError(
            f"{path} declares {image.width}x{image.height} pixels, more than its {len(data)} bytes can be trusted to "
            "hold; make or download it again, or save it as png."
        )


def _most_pixels(image: Image.Image) -> int | None:
    """Give the most pixels that a byte of the image's format can hold, None where there is no such bound."""
    tiles = getattr(image, "tile", None)
    if not tiles or image.format == "AVIF":  # the tile of an avif describes what its library has decoded
        return None
    codec = tiles[0].codec_name
    if codec == "libtiff":
        codec = image.info.get("compression")
    if codec in _PIXELS_A_BYTE:
        return _PIXELS_A_BYTE[codec]
    if codec not in _SAMPLE_BYTES_A_BYTE:
        return None
    # Grey and palette pixels may take a single bit, all others take a byte or more.
    return _SAMPLE_BYTES_A_BYTE[codec] * (8 if image.mode in ("1", "L", "P") else 1)


def _tile_pixels(image: Image.Image) -> int:
    """Count the pixels in one tile of a TIFF, which is decoded whole even where the image is smaller."""
    if image.format != "TIFF":
        return 0
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TIFF_TILE_WIDTH, 0), tags.get(_TIFF_TILE_HEIGHT, 0)
    return width * height if isinstance(width, int) and isinstance(height, int) else 0


def _largest_in_icon(data: bytes) -> int:
    """Count the pixels of the largest picture in an icon, whose own list of sizes binds no decoder."""
    sizes = [struct.unpack(">II", b"".join(found)) for found in _SIZE_IN_ICON.findall(data)]
    entries = int.from_bytes(data[4:6], "little") if data.startswith(_ICO) else 0
    for entry in range(min(entries, len(data) // 16)):
        # What is no png is a bitmap: its header's length, then its size, the height negative if stored downwards.
        offset = int.from_bytes(data[16 * entry + 18 : 16 * entry + 22], "little")
        start = data[offset : offset + 12]
        if len(start) == 12 and not start.startswith(b"\x89PNG"):
            length, width, height = struct.unpack("<Iii", start)
            sizes.append((abs(width), abs(height)) if length != 12 else struct.unpack_from("<HH", start, 4))
    return max((width * height for width, height in sizes), default=0)
