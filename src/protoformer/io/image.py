"""Read images as float RGB, and write images as png (8 or 16 bits) or jpeg.

Headers are checked before decoding, since decoders allocate whatever size a header declares.
"""

import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from protoformer.errors import InputError
from protoformer.io.files import (
    MAX_PIXELS,
    PathLike,
    PixelLimitError,
    check_pixel_count,
    read_image_bytes,
    write_atomically,
)
from protoformer.io.formats import FloatArray
from protoformer.io.png import SIGNATURE, check_image_shape, check_png, decode_png16, encode_png

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
            f"{path} declares {image.width}x{image.height} pixels, more than its {len(data)} bytes plausibly "
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


# Raster formats of Pillow, without those that run another program (EPS), only identify a file (HDF5, MPEG) or
# have too weak a signature to distinguish them from text.
_FORMATS = (
    *("AVIF", "BMP", "DDS", "DIB", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "PCX", "PNG"),
    *("PPM", "PSD", "QOI", "SGI", "SUN", "TGA", "TIFF", "WEBP"),
)
_JPEG_QUALITY = 95

_EXIF_ORIENTATION = 0x0112
_EXIF_IFD, _EXIF_FOCAL_IN_35MM = 0x8769, 0xA405
_TIFF_BITS, _TIFF_PHOTOMETRIC, _TIFF_PLANES, _TIFF_EXTRA_SAMPLES = 258, 262, 284, 338


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """A decoded image with the camera metadata of its file; accepted wherever `ImageLike` is.

    Attributes:
        name: Name of the image in error messages.
        pixels: float32 HxWx3 RGB in [0, 1], as returned by `read_image`.
        focal_in_35mm: 35 mm equivalent focal length in mm; None if the file does not state it.
    """

    name: str
    pixels: FloatArray
    focal_in_35mm: float | None = None


def load_image(path: PathLike, max_pixels: int | None = None) -> DecodedImage:
    """Read an image with the camera metadata of its file; arguments as in `read_image`."""
    return DecodedImage(str(path), read_image(path, max_pixels), focal_in_35mm(path))


def read_image(path: PathLike, max_pixels: int | None = None) -> FloatArray:
    """Read an image as float32 HxWx3 RGB in [0, 1], upright (EXIF orientation applied), C-contiguous.

    Gray is repeated in three channels; transparency is composited over black; CMYK is converted without a color
    profile; of an animation the first frame is read. 8-bit samples are divided by 255, 16-bit samples by 65535; float
    samples must lie in [0, 1].

    Args:
        path: The image.
        max_pixels: Maximum number of pixels; None means `MAX_PIXELS`.

    Raises:
        PixelLimitError: If the image has more pixels; this is checked before decoding.
        InputError: If the file is damaged, not supported, or too short for the declared number of pixels.
    """
    return np.ascontiguousarray(_composite_over_black(_decode(path, max_pixels)))


def read_cutout(path: PathLike) -> FloatArray:
    """Read an image as float32 HxWx4 RGBA in [0, 1], colors not multiplied by alpha, upright, C-contiguous.

    An image without transparency has an alpha of 1. Everything else is as in `read_image`.
    """
    samples = _decode(path)
    pixels = np.ones((*samples.shape[:2], 4), dtype=np.float32)
    if samples.ndim == 2:
        pixels[..., :3] = samples[..., None]
    else:
        pixels[..., : samples.shape[2]] = samples
    return pixels


def image_size(path: PathLike) -> tuple[int, int]:
    """Return the (height, width) in pixels that the header of an image declares, without decoding it."""
    with quiet_pillow():
        image = _identify(read_image_bytes(path), path)
    return image.height, image.width


def focal_in_35mm(source: PathLike | Image.Image) -> float | None:
    """Return the 35 mm equivalent focal length in mm from EXIF, or None if it is not stated.

    Args:
        source: Path of an image, or a Pillow image.
    """
    with quiet_pillow():
        image = source if isinstance(source, Image.Image) else _identify(read_image_bytes(source), source)
        try:
            focal = float(image.getexif().get_ifd(_EXIF_IFD).get(_EXIF_FOCAL_IN_35MM, 0))
        except Exception:  # damaged metadata does not make the pixels unreadable
            return None
    return focal if 0 < focal < float("inf") else None


def _decode(path: PathLike, max_pixels: int | None = None) -> FloatArray:
    """Decode an image to upright float32 samples in [0, 1]: HxW (gray), HxWx3 (RGB) or HxWx4 (RGBA)."""
    data = read_image_bytes(path)
    # Pillow accepts a png with a damaged or missing end.
    deep_png = data.startswith(SIGNATURE) and check_png(data, path).bit_depth == 16
    with quiet_pillow():
        image = _identify(data, path)
        check_pixel_count(image.width, image.height, path, max_pixels)
        if image.format != "PNG":  # check_png has already compared the size with the data
            check_declared_size(image, data, path)
        wide_ppm = _find_wide_ppm(image)
        try:
            image.load()
            orientation = _read_orientation(image)
            if deep_png:
                pixels = _scale_samples(_add_gray_alpha(decode_png16(data, path), image), 65535)
            elif wide_ppm is not None:
                pixels = _decode_wide_ppm(data, image, *wide_ppm)
            elif image.format == "TIFF" and image.mode in ("RGB", "RGBA") and 16 in _read_tiff_bits(image):
                pixels = _decode_deep_tiff(data, image, path)
            else:
                pixels = _convert_pillow(image, path)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # decoders raise nearly anything on damaged bytes
            raise InputError(f"{path} is damaged or cut short ({error}); make or download it again.") from None
    return _apply_orientation(pixels, orientation)


def write_image(path: PathLike, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> None:
    """Write pixels, HxWx3 (RGB) or HxW (gray), as png or jpeg (quality 95) by the suffix of `path`.

    A png takes uint8 or uint16 and keeps every bit; a jpeg takes uint8.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".jpg", ".jpeg"):
        raise InputError(f"{path} does not end in .png, .jpg or .jpeg; choose one of these suffixes.")
    if suffix == ".png" and pixels.dtype == np.uint16:
        write_atomically(path, encode_png(pixels))
        return
    if pixels.dtype != np.uint8:
        required = "uint8 or uint16" if suffix == ".png" else "uint8"
        raise InputError(f"the pixels for {path} are {pixels.dtype}; convert them to {required} first.")
    write_atomically(path, encode_png(pixels) if suffix == ".png" else _encode_jpeg(pixels.astype(np.uint8)))


def _identify(data: bytes, path: PathLike) -> Image.Image:
    """Read the header with Pillow; no pixels are decoded, except those of a small Windows icon."""
    check_icon(data, path)
    check_decoder_limits(data, path)
    Image.init()
    try:
        return Image.open(BytesIO(data), formats=[name for name in _FORMATS if name in Image.OPEN])
    except Image.DecompressionBombError:
        raise PixelLimitError(f"{path} is over the limit of {MAX_PIXELS} pixels; scale it down first.") from None
    except UnidentifiedImageError:
        raise InputError(
            f"{path} is not an image of a known format, or its header is damaged; "
            "give a png, jpeg, ppm, bmp, tiff, webp or gif file."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise nearly anything on a damaged header
        raise InputError(f"{path} has a damaged header ({error}); make or download it again.") from None


def _read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 (upright) to 8; Pillow already applies that of a TIFF in `load`."""
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # damaged metadata does not make the pixels unreadable
        return 1


def _apply_orientation(pixels: FloatArray, orientation: int) -> FloatArray:
    """Undo an EXIF orientation on HxW or HxWxC pixels."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _convert_pillow(image: Image.Image, path: PathLike) -> FloatArray:
    """Convert a loaded image, of a mode that Pillow decodes without loss, to samples in [0, 1]."""
    if image.mode.startswith("I;16"):
        return _scale_samples(_scale_deep_gray(image), 65535)
    if image.mode == "F":
        return _scale_samples(_check_float_samples(np.asarray(image), path), 1)
    if image.mode == "I":
        if image.format != "PPM":
            raise InputError(f"{path} has 32-bit integer samples, whose range is unknown; save it with 8 or 16 bits.")
        return _scale_samples(np.asarray(image), 65535)  # Pillow scales gray ppm of more than 8 bits to this range
    if image.mode == "LAB":
        raise InputError(f"{path} holds Lab colors, which are not supported; save it as RGB.")
    mode = "RGBA" if image.has_transparency_data else "RGB"
    return _scale_samples(np.asarray(image if image.mode == mode else image.convert(mode)), 255)


def _scale_samples(samples: npt.NDArray[np.generic], white: int) -> FloatArray:
    """Scale samples in 0 .. white to float32 in [0, 1]."""
    scaled = samples.astype(np.float32)
    scaled /= white
    return scaled


def _composite_over_black(samples: FloatArray) -> FloatArray:
    """Convert HxW, HxWx3 or HxWx4 samples to HxWx3, compositing alpha over black."""
    if samples.ndim == 2:
        return np.repeat(samples[..., None], 3, axis=2)
    return samples if samples.shape[2] == 3 else samples[..., :3] * samples[..., 3:]


def _check_float_samples(samples: FloatArray, path: PathLike) -> FloatArray:
    """Return float samples, or raise `InputError` if they are not finite and in [0, 1]."""
    if not np.isfinite(samples).all():
        raise InputError(f"{path} contains NaN or infinite samples; replace them first.")
    low, high = float(samples.min()), float(samples.max())
    if low < 0 or high > 1:
        raise InputError(f"{path} has float samples in [{low:g}, {high:g}]; scale them to [0, 1] first.")
    return samples


def _scale_deep_gray(image: Image.Image) -> FloatArray:
    """Convert 9- to 16-bit gray to float32 HxW, scaled so that 65535 is white."""
    samples = np.asarray(image).astype(np.float32)
    if image.format != "TIFF":
        return samples
    bits = _read_tiff_bits(image)[0]
    if bits < 16:
        samples *= np.float32(65535 / (2**bits - 1))
    white_is_zero = getattr(image, "tag_v2", {}).get(_TIFF_PHOTOMETRIC) == 0
    return 65535 - samples if white_is_zero else samples


def _add_gray_alpha(samples: npt.NDArray[np.uint16], image: Image.Image) -> npt.NDArray[np.uint16]:
    """Add alpha for the transparent value of a 16-bit gray png; the decoder does this only for color."""
    transparent = image.info.get("transparency")
    if samples.ndim == 2 and isinstance(transparent, int):
        alpha = np.where(samples == transparent, 0, 65535).astype(np.uint16)
        return np.stack((samples, samples, samples, alpha), axis=-1)
    return samples


def _find_wide_ppm(image: Image.Image) -> tuple[int, int] | None:
    """Return (data offset, maximum) of a binary RGB ppm of more than 8 bits, which Pillow would reduce to 8."""
    if image.format != "PPM" or image.mode != "RGB":
        return None
    tile = image.tile[0]  # type: ignore[attr-defined]
    if tile.codec_name != "ppm" or tile.args[1] <= 255:
        return None
    return tile.offset, tile.args[1]


def _decode_wide_ppm(data: bytes, image: Image.Image, first: int, white: int) -> FloatArray:
    """Decode the big-endian 16-bit samples of a ppm whose length Pillow has checked."""
    samples = np.frombuffer(data, ">u2", count=image.width * image.height * 3, offset=first)
    return _scale_samples(np.minimum(samples, white).reshape(image.height, image.width, 3), white)


def _read_tiff_bits(image: Image.Image) -> tuple[int, ...]:
    """Return the bits of each sample of a TIFF."""
    bits: tuple[int, ...] = getattr(image, "tag_v2", {}).get(_TIFF_BITS, (1,))
    return bits


def _decode_deep_tiff(data: bytes, image: Image.Image, path: PathLike) -> FloatArray:
    """Decode a 16-bit RGB or RGBA TIFF, which Pillow would reduce to 8 bits; OpenCV applies the orientation."""
    tags = getattr(image, "tag_v2", {})
    if tags.get(_TIFF_PLANES, 1) != 1:
        raise InputError(f"{path} is a 16-bit tiff with separate color planes; save it with interleaved channels.")
    samples = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if samples is None or samples.dtype != np.uint16 or samples.ndim != 3:
        raise InputError(f"{path} is a 16-bit tiff of an unsupported kind; save it as a 16-bit png.")
    # Extra samples of type 2 (or undeclared) are straight alpha; 0 is not alpha, and 1 is premultiplied.
    opaque = samples.shape[2] == 3 or tags.get(_TIFF_EXTRA_SAMPLES, (2,))[0] != 2
    return _scale_samples(samples[..., [2, 1, 0] if opaque else [2, 1, 0, 3]], 65535)


def _encode_jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode uint8 HxW or HxWx3 RGB pixels as a jpeg."""
    check_image_shape(pixels.shape)
    buffer = BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    except (OSError, ValueError):
        raise InputError(f"pixels of shape {pixels.shape} do not fit in a jpeg; write a png.") from None
    return buffer.getvalue()
