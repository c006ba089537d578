"""The size an image's header declares, held against the bytes there are: decoders allocate whatever they are told."""

import os
import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
    # Gray and palette pixels may take a single bit, all others take a byte or more.
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


_lock = threading.Lock()
_scope = ExitStack()
_depth = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings (large image, odd metadata), which here end as an error or do not matter.

    The filters are global to the process, so threads that decode at once share one scope: the first sets it, the last
    restores it. Only warnings raised inside Pillow are touched.
    """
    global _depth  # noqa: PLW0603 - the filters themselves are global
    with _lock:
        if _depth == 0:
            _scope.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _scope.close()


MAX_JPEG_SCANS = 100
"""Scans of a JPEG. Each one passes over the whole image; encoders write about ten, and libtiff allows as many."""
MAX_JPEG2000_TILES = 4096
"""Tiles of a JPEG 2000 image. Its decoder allocates about 12 kB for each before it reads a pixel."""
MAX_JPEG2000_COMPONENTS = 4
"""Color and alpha channels; each tile holds tables for every one of them."""

MAX_PNM_HEADER_BYTES = 2**16
"""Bytes of the header of a PBM, PGM or PPM image with its comments, which Pillow reads one at a time."""

_JPEG = b"\xff\xd8"
_END, _START_OF_SCAN = 0xD9, 0xDA
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a segment: temporary use, restarts, start of the image."""
_NEXT_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_ICNS = b"icns"
_BLANK, _NUMBER = rb"(?:\s|#[^\r\n]*+)*+", rb"[0-9.eE+-]++"
_PNM_HEADER = re.compile(
    b"|".join(
        # All numbers of the header, or as many as there are and what follows them.
        rb"P[%b](?:(?:%b%b){%d}|(?:%b%b){0,%d}%b)" % (kinds, _BLANK, _NUMBER, count, _BLANK, _NUMBER, count - 1, _BLANK)
        for kinds, count in ((b"14", 2), (b"02356789fyx", 3))
    )
)
_JP2 = b"\x00\x00\x00\x0cjP  "
_CODESTREAM, _SIZE_SEGMENT = b"\xff\x4f", b"\xff\x51"


def check_decoder_limits(data: bytes, path: str | os.PathLike[str]) -> None:
    """Refuse an image whose header costs its decoder far more time or memory than its pixels do.

    Args:
        data: The whole file, of any format.
        path: Named in messages.

    Raises:
        InputError: A JPEG has more than `MAX_JPEG_SCANS` scans, a JPEG 2000 image more than `MAX_JPEG2000_TILES`
            tiles or `MAX_JPEG2000_COMPONENTS` components, or a PNM image a header of more than `MAX_PNM_HEADER_BYTES`.
    """
    if data.startswith(_JPEG) and _count_scans(data) > MAX_JPEG_SCANS:
        raise InputError(
            f"{path} is a jpeg of more than {MAX_JPEG_SCANS} scans, which takes too long to decode; save it again."
        )
    if data.startswith((_JP2, _CODESTREAM)):
        _check_jpeg2000(data, _codestream_start(data), path)
    header = _PNM_HEADER.match(data)
    if header is not None and header.end() > MAX_PNM_HEADER_BYTES:
        raise InputError(f"{path} has a header of more than {MAX_PNM_HEADER_BYTES} bytes; save it again.")
    if data.startswith(_ICNS):  # an icon may hold several
        for found in re.finditer(re.escape(_CODESTREAM + _SIZE_SEGMENT), data):
            _check_jpeg2000(data, found.start(), path)


def _count_scans(data: bytes) -> int:
    """Count the scans up to the end mark, or up to one more than the limit."""
    scans, position = 0, len(_JPEG)
    # Bytes between two segments, which include the data of a scan, are skipped as a decoder skips them.
    while scans <= MAX_JPEG_SCANS and (marker := _NEXT_MARKER.search(data, position)) is not None:
        position = marker.end()
        kind = marker[1][0]
        if kind == _END:
            break
        if kind in _WITHOUT_LENGTH:
            continue
        scans += kind == _START_OF_SCAN
        position += int.from_bytes(data[position : position + 2], "big")
    return scans


def _check_jpeg2000(data: bytes, start: int, path: str | os.PathLike[str]) -> None:
    header = data[start : start + 42]
    if len(header) < 42 or header[:2] != _CODESTREAM or header[2:4] != _SIZE_SEGMENT:
        raise InputError(f"{path} is a damaged jpeg 2000 image (it has no size); make or download it again.")
    right, bottom, _, _, tile_width, tile_height, tile_left, tile_top, components = struct.unpack(">8IH", header[8:42])
    if not tile_width or not tile_height or tile_left > right or tile_top > bottom:
        raise InputError(f"{path} is a damaged jpeg 2000 image (its tiles have no size); make or download it again.")
    tiles = -(-(right - tile_left) // tile_width) * -(-(bottom - tile_top) // tile_height)
    if tiles > MAX_JPEG2000_TILES or components > MAX_JPEG2000_COMPONENTS:
        raise InputError(
            f"{path} is a jpeg 2000 image of {tiles} tiles and {components} components, and the limit is "
            f"{MAX_JPEG2000_TILES} and {MAX_JPEG2000_COMPONENTS}; save it as png."
        )


def _codestream_start(data: bytes) -> int:
    """Find the first byte of the coded image, which a JP2 file holds in a box of its own."""
    if not data.startswith(_JP2):
        return 0
    position = 0
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        head = 8
        if length == 1:  # the length follows in 64 bits
            length, head = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        if kind == b"jp2c":
            return position + head
        if length < head:  # 0 is a box up to the end of the file; all else is damaged
            break
        position += length
    return len(data)
