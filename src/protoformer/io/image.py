"""Images from disk as float RGB, and pictures to disk as png (8 or 16 bits) or jpeg."""

import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from protoformer.errors import InputError
from protoformer.io.files import MAX_PIXELS, PixelLimitError, check_pixel_count, read_image_bytes, write_atomically
from protoformer.io.image_checks import check_declared_size, check_decoder_limits, check_icon, quiet_pillow
from protoformer.io.png import SIGNATURE, check_picture_shape, check_png, decode_png16, encode_png

# Pillow's raster formats. Left out: those that run another program (EPS), only identify a file (HDF5, MPEG) or
# recognize too little of it to tell it from text.
_FORMATS = (
    *("AVIF", "BMP", "DDS", "DIB", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "PCX", "PNG"),
    *("PPM", "PSD", "QOI", "SGI", "SUN", "TGA", "TIFF", "WEBP"),
)
_JPEG_QUALITY = 95

_EXIF_ORIENTATION = 0x0112
_EXIF_IFD, _EXIF_FOCAL_IN_35MM = 0x8769, 0xA405
_TIFF_BITS, _TIFF_PHOTOMETRIC, _TIFF_PLANES, _TIFF_EXTRA_SAMPLES = 258, 262, 284, 338

FloatPixels = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image that was read, with what its file notes of the camera; takes the place of its path in `ImageLike`.

    Attributes:
        name: What messages call it.
        pixels: float32 HxWx3 RGB in [0, 1], as `read_image` gives them.
        focal_in_35mm: The focal length in mm for 35 mm film, as in `focal_in_35mm`; None where it is not noted.
    """

    name: str
    pixels: FloatPixels
    focal_in_35mm: float | None = None


def load_image(path: str | os.PathLike[str], max_pixels: int | None = None) -> DecodedImage:
    """Read an image with what its file notes of the camera; arguments as in `read_image`."""
    return DecodedImage(str(path), read_image(path, max_pixels), focal_in_35mm(path))


def read_image(path: str | os.PathLike[str], max_pixels: int | None = None) -> FloatPixels:
    """Read an image as float32 HxWx3 RGB in [0, 1], upright (EXIF orientation applied), C-contiguous.

    Gray is repeated in the three channels; transparency is composited over black; CMYK is converted without a color
    profile; the first frame of an animation is taken. 8-bit samples are value / 255; 16-bit ones keep all their bits
    as value / 65535; float samples must already lie in [0, 1]. Images of more than `max_pixels` (None: `MAX_PIXELS`)
    are refused before they are decoded, and so are those whose header declares far more pixels than the file has room
    for.
    """
    return np.ascontiguousarray(_over_black(_decoded(path, max_pixels)))


def read_cutout(path: str | os.PathLike[str]) -> FloatPixels:
    """Read an image as float32 HxWx4 RGBA in [0, 1], colors not multiplied by alpha, upright, C-contiguous.

    An image without transparency has an alpha of 1. All else, and what is refused, is as in `read_image`.
    """
    samples = _decoded(path)
    pixels = np.ones((*samples.shape[:2], 4), dtype=np.float32)
    if samples.ndim == 2:
        pixels[..., :3] = samples[..., None]
    else:
        pixels[..., : samples.shape[2]] = samples
    return pixels


def image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(height, width) in pixels that the header of an image declares, as stored: no pixel is decoded."""
    with quiet_pillow():
        image = _identified(read_image_bytes(path), path)
    return image.height, image.width


def focal_in_35mm(source: str | os.PathLike[str] | Image.Image) -> float | None:
    """The focal length, mm, that would show the same on 35 mm film, where the camera has noted it (EXIF); else None.

    source: an image's file, or a picture of Pillow's.
    """
    with quiet_pillow():
        image = source if isinstance(source, Image.Image) else _identified(read_image_bytes(source), source)
        try:
            focal = float(image.getexif().get_ifd(_EXIF_IFD).get(_EXIF_FOCAL_IN_35MM, 0))
        except Exception:  # damaged metadata does not make the pixels unreadable
            return None
    return focal if 0 < focal < float("inf") else None


def _decoded(path: str | os.PathLike[str], max_pixels: int | None = None) -> FloatPixels:
    """Read upright float32 samples in [0, 1]: HxW of gray, HxWx3 of RGB, or HxWx4 where there is an alpha."""
    data = read_image_bytes(path)
    # Pillow would let a png with a damaged or missing end pass.
    deep_png = data.startswith(SIGNATURE) and check_png(data, path).bit_depth == 16
    with quiet_pillow():
        image = _identified(data, path)
        check_pixel_count(image.width, image.height, path, max_pixels)
        if image.format != "PNG":  # the check of a png has counted its data
            check_declared_size(image, data, path)
        wide_ppm = _wide_ppm_place(image)
        try:
            image.load()
            orientation = _orientation(image)
            if deep_png:
                pixels = _scaled(_alpha_of_gray(decode_png16(data, path), image), 65535)
            elif wide_ppm is not None:
                pixels = _wide_ppm(data, image, *wide_ppm)
            elif image.format == "TIFF" and image.mode in ("RGB", "RGBA") and 16 in _tiff_bits(image):
                pixels = _deep_tiff(data, image, path)
            else:
                pixels = _from_pillow(image, path)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # decoders raise nearly anything on damaged bytes
            raise InputError(f"{path} is damaged or cut short ({error}); make or download it again.") from None
    return _upright(pixels, orientation)


def write_image(path: str | os.PathLike[str], pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]) -> None:
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
        wanted = "uint8 or uint16" if suffix == ".png" else "uint8"
        raise InputError(f"the pixels for {path} are {pixels.dtype}; convert them to {wanted} first.")
    write_atomically(path, encode_png(pixels) if suffix == ".png" else _encode_jpeg(pixels.astype(np.uint8)))


def _identified(data: bytes, path: str | os.PathLike[str]) -> Image.Image:
    """Read the header alone; no pixel is decoded yet, but those of a small Windows icon."""
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
    except Exception as error:  # see read_image: a damaged header can raise nearly anything
        raise InputError(f"{path} has a damaged header ({error}); make or download it again.") from None


def _orientation(image: Image.Image) -> int:
    """Read the EXIF orientation, 1 (upright) .. 8; TIFF comes out of `load` already upright."""
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # damaged metadata does not make the pixels unreadable
        return 1


def _upright(pixels: FloatPixels, orientation: int) -> FloatPixels:
    """Undo an EXIF orientation on HxW or HxWxC pixels."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _from_pillow(image: Image.Image, path: str | os.PathLike[str]) -> FloatPixels:
    """Convert a loaded image of any mode that Pillow holds without loss, to samples in [0, 1]."""
    if image.mode.startswith("I;16"):
        return _scaled(_deep_gray(image), 65535)
    if image.mode == "F":
        return _scaled(_checked_float(np.asarray(image), path), 1)
    if image.mode == "I":
        if image.format != "PPM":
            raise InputError(f"{path} has 32-bit integer samples, whose white is unknown; save it with 8 or 16 bits.")
        return _scaled(np.asarray(image), 65535)  # Pillow scales deep gray ppm to this range
    if image.mode == "LAB":
        raise InputError(f"{path} holds Lab colors, which are not supported; save it as RGB.")
    mode = "RGBA" if image.has_transparency_data else "RGB"
    return _scaled(np.asarray(image if image.mode == mode else image.convert(mode)), 255)


def _scaled(samples: npt.NDArray[np.generic], white: int) -> FloatPixels:
    """Bring samples (0 .. white) to float32 in [0, 1]."""
    scaled = samples.astype(np.float32)
    scaled /= white
    return scaled


def _over_black(samples: FloatPixels) -> FloatPixels:
    """Bring HxW, HxWx3 or HxWx4 samples to HxWx3, alpha composited over black."""
    if samples.ndim == 2:
        return np.repeat(samples[..., None], 3, axis=2)
    return samples if samples.shape[2] == 3 else samples[..., :3] * samples[..., 3:]


def _checked_float(samples: npt.NDArray[np.float32], path: str | os.PathLike[str]) -> npt.NDArray[np.float32]:
    """Pass float samples that are finite and in [0, 1]; nothing says how to scale others."""
    if not np.isfinite(samples).all():
        raise InputError(f"{path} contains NaN or infinite samples; replace them first.")
    low, high = float(samples.min()), float(samples.max())
    if low < 0 or high > 1:
        raise InputError(f"{path} has float samples in [{low:g}, {high:g}]; scale them to [0, 1] first.")
    return samples


def _deep_gray(image: Image.Image) -> npt.NDArray[np.float32]:
    """Take 9- to 16-bit gray as float32 HxW scaled so that 65535 is white."""
    samples = np.asarray(image).astype(np.float32)
    if image.format != "TIFF":
        return samples
    bits = _tiff_bits(image)[0]
    if bits < 16:
        samples *= np.float32(65535 / (2**bits - 1))
    white_is_zero = getattr(image, "tag_v2", {}).get(_TIFF_PHOTOMETRIC) == 0
    return 65535 - samples if white_is_zero else samples


def _alpha_of_gray(samples: npt.NDArray[np.uint16], image: Image.Image) -> npt.NDArray[np.uint16]:
    """Give alpha to the one transparent value that a deep gray png may name; the decoder does so only for color."""
    transparent = image.info.get("transparency")
    if samples.ndim == 2 and isinstance(transparent, int):
        alpha = np.where(samples == transparent, 0, 65535).astype(np.uint16)
        return np.stack((samples, samples, samples, alpha), axis=-1)
    return samples


def _wide_ppm_place(image: Image.Image) -> tuple[int, int] | None:
    """Find (first byte, white) of a binary RGB ppm of more than 8 bits, which Pillow would cut to 8."""
    if image.format != "PPM" or image.mode != "RGB":
        return None
    tile = image.tile[0]  # type: ignore[attr-defined]
    if tile.codec_name != "ppm" or tile.args[1] <= 255:
        return None
    return tile.offset, tile.args[1]


def _wide_ppm(data: bytes, image: Image.Image, first: int, white: int) -> FloatPixels:
    """Decode the big-endian 16-bit samples of a ppm whose length Pillow has verified."""
    samples = np.frombuffer(data, ">u2", count=image.width * image.height * 3, offset=first)
    return _scaled(np.minimum(samples, white).reshape(image.height, image.width, 3), white)


def _tiff_bits(image: Image.Image) -> tuple[int, ...]:
    """Read the bits of each sample of a TIFF."""
    bits: tuple[int, ...] = getattr(image, "tag_v2", {}).get(_TIFF_BITS, (1,))
    return bits


def _deep_tiff(data: bytes, image: Image.Image, path: str | os.PathLike[str]) -> FloatPixels:
    """Decode a 16-bit RGB or RGBA TIFF, which Pillow would cut to 8 bits; OpenCV applies its orientation itself."""
    tags = getattr(image, "tag_v2", {})
    if tags.get(_TIFF_PLANES, 1) != 1:
        raise InputError(f"{path} is a 16-bit tiff with separate color planes; save it with interleaved channels.")
    samples = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if samples is None or samples.dtype != np.uint16 or samples.ndim != 3:
        raise InputError(f"{path} is a 16-bit tiff of an unsupported kind; save it as a 16-bit png.")
    # Extra samples of 2, or undeclared ones, are alpha to multiply by; 0 is not alpha, and 1 is already multiplied.
    plain = samples.shape[2] == 3 or tags.get(_TIFF_EXTRA_SAMPLES, (2,))[0] != 2
    return _scaled(samples[..., [2, 1, 0] if plain else [2, 1, 0, 3]], 65535)


def _encode_jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode uint8 HxW or HxWx3 RGB pixels as a jpeg."""
    check_picture_shape(pixels.shape)
    buffer = BytesIO()
    try:
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    except (OSError, ValueError):
        raise InputError(f"pixels of shape {pixels.shape} do not fit in a jpeg; write a png.") from None
    return buffer.getvalue()
