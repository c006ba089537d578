"""From a decoded frame of any kind to RGB as it is meant to be seen, and the marks our own files carry for it."""

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
"""Values of ffmpeg for a matrix of colors that nobody named, and for samples in 16 .. 235."""
_NAMED_PROFILES = frozenset({"png", "apng"})
"""Codecs whose color profiles have names. PyAV frees such a name twice once the side data were looked at: a crash."""
_MARK = re.compile(r"picture of (\d+)x(\d+)")


def encode_size_tag(size: tuple[int, int]) -> str:
    """The comment in a file whose pictures, (height, width), had to be given one more row or column."""
    return f"picture of {size[1]}x{size[0]}; the rest repeats its border"


def decode_size_tag(comment: str) -> tuple[int, int] | None:
    """The (height, width) that such a comment states; None for any other."""
    found = _MARK.match(comment)
    return (int(found[2]), int(found[1])) if found else None


def default_matrix(height: int, width: int) -> str:
    """The matrix of colors that players assume where none is named: that of HD, or below its sizes that of SD."""
    return "ITU709" if width >= 1280 or height > 576 else "ITU601"


def exact_conversion() -> int:
    """How ffmpeg is to convert colors: rounded rightly, the coarse colors between bright and dark by a cubic."""
    ways = require_av().video.reformatter.Interpolation
    return int(ways.BICUBIC | ways.ACCURATE_RND | ways.FULL_CHR_H_INT | ways.FULL_CHR_H_INP)


@dataclass(frozen=True)
class Orientation:
    """How stored pixels lie on the screen: exchange rows and columns, then mirror."""

    transposed: bool
    left_right: bool
    up_down: bool

    def applied(self, image: ImageArray) -> ImageArray:
        """The image, uint8 HxWxC, upright."""
        if self.transposed:
            image = image.swapaxes(0, 1)
        return image[:: -1 if self.up_down else 1, :: -1 if self.left_right else 1]


def read_orientation(frame: "VideoFrame", codec: str) -> Orientation:
    """The quarter turn and mirroring nearest to the display matrix of a frame.

    Args:
        frame: A decoded frame.
        codec: The name of its codec, as ffmpeg calls it.

    Returns:
        The orientation; without its mirroring where the matrix itself cannot be read.
    """
    matrix = _display_matrix(frame, codec)
    if matrix is None:
        turn = _turn(frame)
        matrix = (math.cos(turn), -math.sin(turn), math.sin(turn), math.cos(turn))
    # A pixel at (x, y), y downwards, is shown at (a x + c y, b x + d y).
    a, b, c, d = matrix
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(transposed=True, left_right=c < 0, up_down=b < 0)
    return Orientation(transposed=False, left_right=a < 0, up_down=d < 0)


def _display_matrix(frame: "VideoFrame", codec: str) -> tuple[float, float, float, float] | None:
    """The entries a, b, c, d of a frame's display matrix; None where it has none, or PyAV cannot tell."""
    if codec in _NAMED_PROFILES:
        return None
    try:
        stored = cast("Mapping[str, Buffer]", frame.side_data).get("DISPLAYMATRIX")
    except ValueError:  # PyAV does not know every kind of side data of its ffmpeg, such as EXIF
        return None
    if stored is None:
        return None
    a, b, _, c, d = np.frombuffer(bytes(stored), np.int32, 5).tolist()
    return a, b, c, d


def _turn(frame: "VideoFrame") -> float:
    """The angle of a frame's display matrix, in radians; 0 where it has none, or one that is no turn."""
    try:
        return math.radians(frame.rotation)
    except ValueError:  # of a matrix of zeros it is not a number
        return 0.0


@dataclass(frozen=True)
class FrameGeometry:
    """How every frame of a stream is brought to the screen; sizes are (height, width) in pixels."""

    stored: tuple[int, int]
    """As decoded."""
    scaled: tuple[int, int]
    """With square pixels: one side is stretched, so that no row or column is lost."""
    kept: tuple[int, int]
    """Without the border that our own files may have been given."""
    orientation: Orientation

    @property
    def size(self) -> tuple[int, int]:
        """As shown."""
        height, width = self.kept
        return (width, height) if self.orientation.transposed else (height, width)


def frame_geometry(
    first: "VideoFrame", pixel_aspect: Fraction | None, marked: tuple[int, int] | None, codec: str
) -> FrameGeometry:
    """Read it off the first frame. pixel_aspect: a stored pixel's width over its height. marked: see `marked_size`.
    codec: as ffmpeg calls it.
    """
    stored = (first.height, first.width)
    scaled = _squared(stored, pixel_aspect or Fraction(1))
    return FrameGeometry(stored, scaled, kept_size(stored, pixel_aspect, marked), read_orientation(first, codec))


def kept_size(
    stored: tuple[int, int], pixel_aspect: Fraction | None, marked: tuple[int, int] | None
) -> tuple[int, int]:
    """(height, width) of a stored frame with square pixels and without the border; arguments as in `framing_of`."""
    scaled = _squared(stored, pixel_aspect or Fraction(1))
    return marked if marked and scaled == tuple(side + side % 2 for side in marked) else scaled


class FrameConverter:
    """Turns the frames of one stream into pictures: uint8 HxWx3 RGB, upright, square pixels, over black.

    Stretching is by a cubic. Frames of two interlaced fields stay as they are stored, woven together. Colors of more
    than the usual brightness (HDR) are not toned down.
    """

    def __init__(self, framing: FrameGeometry) -> None:
        self.framing = framing
        self._reformatter = require_av().video.reformatter.VideoReformatter()

    def developed(self, frame: "VideoFrame") -> ImageArray:
        """The picture of a frame whose stored size is that of the first."""
        see_through = frame.format.has_palette or any(part.is_alpha for part in frame.format.components)
        converted = self._reformatter.reformat(
            frame,
            width=self.framing.scaled[1],
            height=self.framing.scaled[0],
            format="rgba" if see_through else "rgb24",
            src_colorspace=self._matrix(frame),
            interpolation=exact_conversion(),
            dst_color_range="JPEG",
            threads=1,
        )
        height, width = self.framing.kept
        image = np.asarray(converted.to_ndarray(), np.uint8)[:height, :width]
        if frame.color_range == _LIMITED and frame.format.name.startswith(("gray", "ya")):
            image = _widened(image)  # ffmpeg takes every gray for full
        image = _over_black(image) if see_through else image
        return np.array(self.framing.orientation.applied(image), order="C")

    def _matrix(self, frame: "VideoFrame") -> int | None:
        """The matrix to assume where the frame names none; None where it does, or has no use for one."""
        if frame.colorspace != _UNSPECIFIED or frame.format.is_rgb:
            return None
        return int(require_av().video.reformatter.Colorspace[default_matrix(*self.framing.stored)])


def _squared(size: tuple[int, int], pixel_aspect: Fraction) -> tuple[int, int]:
    """(height, width) after stretching the side along which pixels are too long."""
    height, width = size
    if pixel_aspect > 1:
        return height, round(width * pixel_aspect)
    return round(height / pixel_aspect) if pixel_aspect > 0 else height, width


def _widened(image: ImageArray) -> ImageArray:
    """Spread samples of 16 .. 235 over 0 .. 255; an alpha, the fourth channel, stays."""
    table = np.clip(np.rint((np.arange(256) - 16) * (255 / 219)), 0, 255).astype(np.uint8)
    return np.concatenate((table[image[..., :3]], image[..., 3:]), axis=2)


def _over_black(image: ImageArray) -> ImageArray:
    """uint8 HxWx4 to HxWx3, alpha composited over black, rounded."""
    return ((image[..., :3].astype(np.uint16) * image[..., 3:] + 127) // 255).astype(np.uint8)
