"""Conversion of decoded frames to RGB: color matrix, range, transparency, pixel aspect, orientation and padding."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from protoformer.video.types import ImageArray, require_av

if TYPE_CHECKING:
    from collections.abc import Mapping

    from av.buffer import Buffer
    from av.video.frame import VideoFrame


_UNSPECIFIED, _LIMITED = 2, 1
"""Values of ffmpeg for an unspecified color matrix (AVCOL_SPC) and for limited range (AVCOL_RANGE), 16 .. 235."""
_NAMED_PROFILES = frozenset({"png", "apng"})
"""Codecs whose color profiles have names. PyAV frees such a name twice (a crash) if side data were read."""
_SIZE_TAG = re.compile(r"picture of ([0-9]{1,6})x([0-9]{1,6})(?![0-9])")


def encode_size_tag(size: tuple[int, int]) -> str:
    """Format the comment for a file whose frames were padded by a row or column to even sides.

    Args:
        size: (height, width) before padding, pixels.
    """
    return f"picture of {size[1]}x{size[0]}; the rest repeats its border"


def decode_size_tag(comment: str) -> tuple[int, int] | None:
    """Parse a comment of `encode_size_tag`: (height, width); None for any other comment."""
    match = _SIZE_TAG.match(comment)
    return (int(match[2]), int(match[1])) if match else None


def default_matrix(height: int, width: int) -> str:
    """Return the color matrix that players assume for unspecified video: BT.709 for HD sizes, BT.601 below."""
    return "ITU709" if width >= 1280 or height > 576 else "ITU601"


def conversion_flags() -> int:
    """Return the flags of swscale for accurate rounding and bicubic interpolation at full chroma resolution."""
    flags = require_av().video.reformatter.Interpolation
    return int(flags.BICUBIC | flags.ACCURATE_RND | flags.FULL_CHR_H_INT | flags.FULL_CHR_H_INP)


@dataclass(frozen=True)
class Orientation:
    """How stored pixels are displayed: transposed first, then flipped.

    Attributes:
        transposed: Whether rows and columns are swapped.
        left_right: Whether the image is then flipped horizontally.
        up_down: Whether the image is then flipped vertically.
    """

    transposed: bool
    left_right: bool
    up_down: bool

    def apply(self, image: ImageArray) -> ImageArray:
        """Rotate and flip an image, uint8 HxWxC, so that it is upright; returns a view."""
        if self.transposed:
            image = image.swapaxes(0, 1)
        return image[:: -1 if self.up_down else 1, :: -1 if self.left_right else 1]


def read_orientation(frame: "VideoFrame", codec: str) -> Orientation:
    """Find the quarter turn and flip nearest to the display matrix of a frame.

    Args:
        frame: A decoded frame.
        codec: The codec name as in ffmpeg.

    Returns:
        The orientation, without its flip if only the rotation angle can be read.
    """
    matrix = _display_matrix(frame, codec)
    if matrix is None:
        angle = _rotation_angle(frame)
        matrix = (math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle))
    # A pixel at (x, y), y downwards, is displayed at (a x + c y, b x + d y).
    a, b, c, d = matrix
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(transposed=True, left_right=c < 0, up_down=b < 0)
    return Orientation(transposed=False, left_right=a < 0, up_down=d < 0)


def _display_matrix(frame: "VideoFrame", codec: str) -> tuple[float, float, float, float] | None:
    """Return the entries a, b, c, d of a frame's display matrix; None if there is none or PyAV cannot read it."""
    if codec in _NAMED_PROFILES:
        return None
    try:
        data = cast("Mapping[str, Buffer]", frame.side_data).get("DISPLAYMATRIX")
    except ValueError:  # PyAV lacks some kinds of side data of its ffmpeg, such as EXIF
        return None
    if data is None:
        return None
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32, 5).tolist()
    return a, b, c, d


def _rotation_angle(frame: "VideoFrame") -> float:
    """Return the rotation of a frame's display matrix in radians; 0 if there is none or it is not a rotation."""
    try:
        return math.radians(frame.rotation)
    except ValueError:  # NaN, for a matrix of zeros
        return 0.0


@dataclass(frozen=True)
class FrameGeometry:
    """The steps from the decoded frames of a stream to displayed images; sizes are (height, width) in pixels.

    Attributes:
        stored: Size as decoded.
        scaled: Size with square pixels. One side is stretched and none reduced, so that no row or column is lost.
        cropped: Size without the padding that `VideoWriter` adds to odd sizes.
        orientation: Rotation and flip, applied last.
    """

    stored: tuple[int, int]
    scaled: tuple[int, int]
    cropped: tuple[int, int]
    orientation: Orientation

    @property
    def size(self) -> tuple[int, int]:
        """Size as displayed."""
        height, width = self.cropped
        return (width, height) if self.orientation.transposed else (height, width)


def read_geometry(
    first: "VideoFrame", pixel_aspect: Fraction | None, tagged: tuple[int, int] | None, codec: str
) -> FrameGeometry:
    """Read the geometry of a stream from its first frame.

    Args:
        first: The first decoded frame.
        pixel_aspect: Width over height of a stored pixel; None: 1.
        tagged: (height, width) before padding, from `decode_size_tag`; None: not padded.
        codec: The codec name as in ffmpeg.
    """
    stored = (first.height, first.width)
    scaled = _square_pixel_size(stored, pixel_aspect or Fraction(1))
    return FrameGeometry(stored, scaled, cropped_size(stored, pixel_aspect, tagged), read_orientation(first, codec))


def cropped_size(
    stored: tuple[int, int], pixel_aspect: Fraction | None, tagged: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the (height, width) of a stored frame with square pixels and without padding; see `read_geometry`."""
    scaled = _square_pixel_size(stored, pixel_aspect or Fraction(1))
    return tagged if tagged and scaled == tuple(side + side % 2 for side in tagged) else scaled


class FrameConverter:
    """Converts the frames of one stream to images: uint8 HxWx3 RGB, upright, square pixels, composited over black.

    Scaling is bicubic. Interlaced frames are not deinterlaced, and HDR is not tone-mapped.
    """

    def __init__(self, geometry: FrameGeometry) -> None:
        self.geometry = geometry
        self._reformatter = require_av().video.reformatter.VideoReformatter()

    def convert(self, frame: "VideoFrame") -> ImageArray:
        """Convert a frame of the stored size to an image."""
        has_alpha = frame.format.has_palette or any(part.is_alpha for part in frame.format.components)
        converted = self._reformatter.reformat(
            frame,
            width=self.geometry.scaled[1],
            height=self.geometry.scaled[0],
            format="rgba" if has_alpha else "rgb24",
            src_colorspace=self._source_matrix(frame),
            interpolation=conversion_flags(),
            dst_color_range="JPEG",
            threads=1,
        )
        height, width = self.geometry.cropped
        image = np.asarray(converted.to_ndarray(), np.uint8)[:height, :width]
        if frame.color_range == _LIMITED and frame.format.name.startswith(("gray", "ya")):
            image = _expand_range(image)  # ffmpeg treats all gray formats as full range
        image = _composite_over_black(image) if has_alpha else image
        return np.array(self.geometry.orientation.apply(image), order="C")

    def _source_matrix(self, frame: "VideoFrame") -> int | None:
        """Return the color matrix to assume for a YUV frame that does not specify one; None for other frames."""
        if frame.colorspace != _UNSPECIFIED or frame.format.is_rgb:
            return None
        return int(require_av().video.reformatter.Colorspace[default_matrix(*self.geometry.stored)])


MAX_ASPECT_ERROR = Fraction(1, 100)
"""Pixels that are wider or narrower than square by at most this fraction count as square: encoders write such aspects
when they round a size, and scaling by a pixel would blur every frame and move boxes."""


def _square_pixel_size(size: tuple[int, int], pixel_aspect: Fraction) -> tuple[int, int]:
    """Return (height, width) after stretching one side so that pixels are square."""
    height, width = size
    if abs(pixel_aspect - 1) <= MAX_ASPECT_ERROR:
        return size
    if pixel_aspect > 1:
        return height, round(width * pixel_aspect)
    return round(height / pixel_aspect) if pixel_aspect > 0 else height, width


def _expand_range(image: ImageArray) -> ImageArray:
    """Convert limited range, 16 .. 235, to full range, 0 .. 255; an alpha channel (the fourth) is unchanged."""
    table = np.clip(np.rint((np.arange(256) - 16) * (255 / 219)), 0, 255).astype(np.uint8)
    return np.concatenate((table[image[..., :3]], image[..., 3:]), axis=2)


def _composite_over_black(image: ImageArray) -> ImageArray:
    """Composite uint8 HxWx4 RGBA over black: uint8 HxWx3, rounded."""
    return ((image[..., :3].astype(np.uint16) * image[..., 3:] + 127) // 255).astype(np.uint8)
