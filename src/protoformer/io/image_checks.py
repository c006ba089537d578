"""Checks of image headers before decoding, since decoders allocate whatever size a header declares."""

import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from PIL import Image

from protoformer.errors import InputError
from protoformer.io.files import PathLike

# Decoding this many pixels takes less than 64 MB, so that smaller images are not checked. The second limit is for
# opaque images in formats without a bound, where uniform images compress to almost nothing.
_SMALL_PIXELS = 2**20
_SMALL_PIXELS_UNBOUNDED = 2**21

# Maximum bytes of samples per byte of a file: uncompressed; in blocks of 4x4 pixels; in runs of up to 256; with
# deflate (258 bytes in 2 bits); with LZW (fewer than 4096 bytes in 12 bits).
_RUN_LENGTH, _DEFLATE, _LZW = 128, 1032, 2731
_SAMPLE_BYTES_PER_BYTE = {
    **{"raw": 1, "ppm": 1, "ppm_plain": 1, "dds_rgb": 1, "bcn": 2},
    **dict.fromkeys(("bmp_rle", "packbits", "pcx", "qoi", "sgi_rle", "SGI16", "sun_rle", "tga_rle"), _RUN_LENGTH),
    **{"tiff_lzw": _LZW, "tiff_deflate": _DEFLATE, "tiff_adobe_deflate": _DEFLATE},
}
# Maximum pixels per byte: a jpeg needs at least one bit per 8x8 block, and gif is LZW with one byte per pixel.
_PIXELS_PER_BYTE = {"jpeg": 512, "gif": _LZW}
# Other codecs (webp, avif, jpeg 2000, fax and newer codecs in a tiff) encode a uniform image of any size in a few
# dozen bytes, which looks like a damaged header. Photographs stay a hundred times below this limit.
_PIXELS_PER_BYTE_UNBOUNDED = 2048

_ICO = b"\0\0\1\0"
_TIFF_TILE_WIDTH, _TIFF_TILE_HEIGHT = 322, 323
# Width and height (in either order) of the png and jpeg 2000 images inside an icon.
_SIZE_IN_ICON = re.compile(rb"(?:IHDR|ihdr|\xff\x4f\xff\x51.{4})(.{4})(.{4})", re.DOTALL)


def check_icon(data: bytes, path: PathLike) -> None:
    """Raise `InputError` if `data` is an icon with an image too large for an icon.

    Pillow decodes a Windows icon to identify it, so this check must come first.
    """
    if data.startswith((_ICO, b"icns")) and _max_icon_pixels(data) > _SMALL_PIXELS:
        raise InputError(f"{path} is a damaged icon (its image is too large for one); make or download it again.")


def check_declared_size(image: Image.Image, data: bytes, path: PathLike) -> None:
    """Raise `InputError` if `data`, identified as `image` but not decoded, is too short for the declared size."""
    pixels = max(image.width * image.height, _tile_pixels(image))
    max_per_byte = _max_pixels_per_byte(image)
    min_suspect = _SMALL_PIXELS if max_per_byte is not None or image.has_transparency_data else _SMALL_PIXELS_UNBOUNDED
    if pixels > max(min_suspect, (max_per_byte or _PIXELS_PER_BYTE_UNBOUNDED) * len(data)):
        raise InputError(
            f"{path} declares {image.width}x{image.height} pixels, more than its {len(data)} bytes can be trusted to "
            "hold; make or download it again, or save it as png."
        )


def _max_pixels_per_byte(image: Image.Image) -> int | None:
    """Return the maximum number of pixels per byte for the codec of an image, or None if it has no bound."""
    tiles = getattr(image, "tile", None)
    if not tiles or image.format == "AVIF":  # the tile of an avif describes the decoded image
        return None
    codec = tiles[0].codec_name
    if codec == "libtiff":
        codec = image.info.get("compression")
    if codec in _PIXELS_PER_BYTE:
        return _PIXELS_PER_BYTE[codec]
    if codec not in _SAMPLE_BYTES_PER_BYTE:
        return None
    # Gray and palette pixels may take a single bit, others take at least one byte.
    return _SAMPLE_BYTES_PER_BYTE[codec] * (8 if image.mode in ("1", "L", "P") else 1)


def _tile_pixels(image: Image.Image) -> int:
    """Return the pixels of one tile of a TIFF, which is decoded completely even if the image is smaller."""
    if image.format != "TIFF":
        return 0
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TIFF_TILE_WIDTH, 0), tags.get(_TIFF_TILE_HEIGHT, 0)
    return width * height if isinstance(width, int) and isinstance(height, int) else 0


def _max_icon_pixels(data: bytes) -> int:
    """Return the pixels of the largest image in an icon; decoders ignore the size list of the icon itself."""
    sizes = [struct.unpack(">II", b"".join(match)) for match in _SIZE_IN_ICON.findall(data)]
    entries = int.from_bytes(data[4:6], "little") if data.startswith(_ICO) else 0
    for entry in range(min(entries, len(data) // 16)):
        # Other entries are bitmaps: header length, width, height, where a negative height means top-down rows.
        offset = int.from_bytes(data[16 * entry + 18 : 16 * entry + 22], "little")
        start = data[offset : offset + 12]
        if len(start) == 12 and not start.startswith(b"\x89PNG"):
            length, width, height = struct.unpack("<Iii", start)
            sizes.append((abs(width), abs(height)) if length != 12 else struct.unpack_from("<HH", start, 4))
    return max((width * height for width, height in sizes), default=0)


_scope_lock = threading.Lock()
_filter_scope = ExitStack()
_scope_depth = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence warnings of Pillow (large image, odd metadata), which either become errors here or do not matter.

    Warning filters are global to the process, so threads that decode at the same time share one scope: the first sets
    it, the last restores it. Only warnings raised inside Pillow are affected.
    """
    global _scope_depth  # noqa: PLW0603 - the filters themselves are global
    with _scope_lock:
        if _scope_depth == 0:
            _filter_scope.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _scope_depth += 1
    try:
        yield
    finally:
        with _scope_lock:
            _scope_depth -= 1
            if _scope_depth == 0:
                _filter_scope.close()


MAX_JPEG_SCANS = 100
"""Maximum scans of a JPEG. Each scan covers the whole image; encoders write about ten. libtiff has the same limit."""
MAX_JPEG2000_TILES = 4096
"""Maximum tiles of a JPEG 2000 image. The decoder allocates about 12 kB per tile before it reads a pixel."""
MAX_JPEG2000_COMPONENTS = 4
"""Maximum color and alpha channels of a JPEG 2000 image; each tile has tables for each of them."""

MAX_PNM_HEADER_BYTES = 2**16
"""Maximum header of a PBM, PGM or PPM image including comments, which Pillow reads byte by byte."""

_JPEG = b"\xff\xd8"
_END_OF_IMAGE, _START_OF_SCAN = 0xD9, 0xDA
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a segment: temporary use, restarts, start of the image."""
# The last 0xff of a run of fill bytes precedes the marker; `\xff+` would take quadratic time on such runs.
_NEXT_MARKER = re.compile(rb"\xff([^\x00\xff])")
_ICNS = b"icns"
_PNM_BLANK, _PNM_NUMBER = rb"(?:\s|#[^\r\n]*+)*+", rb"[0-9.eE+-]++"
_PNM_HEADER = re.compile(
    b"|".join(
        # All numbers of the header, or as many as exist and the blanks after them.
        rb"P[%b](?:(?:%b%b){%d}|(?:%b%b){0,%d}%b)"
        % (kinds, _PNM_BLANK, _PNM_NUMBER, count, _PNM_BLANK, _PNM_NUMBER, count - 1, _PNM_BLANK)
        for kinds, count in ((b"14", 2), (b"02356789fyx", 3))
    )
)
_JP2 = b"\x00\x00\x00\x0cjP  "
_CODESTREAM, _SIZE_SEGMENT = b"\xff\x4f", b"\xff\x51"


def check_decoder_limits(data: bytes, path: PathLike) -> None:
    """Reject an image whose header costs the decoder far more time or memory than its pixels do.

    Args:
        data: The whole file, of any format.
        path: Name of the file in error messages.

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
        for match in re.finditer(re.escape(_CODESTREAM + _SIZE_SEGMENT), data):
            _check_jpeg2000(data, match.start(), path)


def _count_scans(data: bytes) -> int:
    """Count the scans of a JPEG, up to one more than the limit."""
    scans, position = 0, len(_JPEG)
    # Bytes between two segments, such as the data of a scan, are skipped as in a decoder.
    while scans <= MAX_JPEG_SCANS and (marker := _NEXT_MARKER.search(data, position)) is not None:
        position = marker.end()
        kind = marker[1][0]
        if kind == _END_OF_IMAGE:
            break
        if kind in _WITHOUT_LENGTH:
            continue
        scans += kind == _START_OF_SCAN
        position += int.from_bytes(data[position : position + 2], "big")
    return scans


def _check_jpeg2000(data: bytes, start: int, path: PathLike) -> None:
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
    """Return the offset of the codestream, which a JP2 file holds in a box of its own."""
    if not data.startswith(_JP2):
        return 0
    position = 0
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        header_length = 8
        if length == 1:  # the length follows in 64 bits
            length, header_length = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        if kind == b"jp2c":
            return position + header_length
        if length < header_length:  # 0 means up to the end of the file; other values are damaged
            break
        position += length
    return len(data)
