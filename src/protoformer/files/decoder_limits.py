"""Headers that make a decoder work or allocate far beyond the size of the image: refused before it begins."""

import os
import re
import struct

from protoformer.errors import InputError

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
