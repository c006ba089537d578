"""Color maps for optical flow, depth and labels, and conversion of tensors to uint8 images.

Flow uses the color wheel of Middlebury (Baker et al., A Database and Evaluation Methodology for Optical Flow): hue is
direction and saturation is speed. Zero motion is white, the chosen maximum and all faster motion have the pure color of
the wheel, and invalid flow is black. Depth uses a perceptually uniform color map of its logarithm.
"""

import colorsys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.regions import boundaries
from protoformer.geometry.warps import resize
from protoformer.io.formats import as_flow, as_values, valid_flow
from protoformer.io.png import encode_png
from protoformer.models.prototyping import Prototypes

# Steps between red, yellow, green, cyan, blue, magenta and red: more where more hues can be distinguished.
_STEPS = (15, 6, 4, 11, 13, 6)
_CORNERS = ((255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255), (255, 0, 0))

FLOW_PERCENTILE = 99.9
"""Percentile of the lengths of a flow that gets the pure color by default: 0.1 % of the pixels may lie beyond."""
# In pixels; below it the rounding noise of a static scene would be drawn like motion.
_MIN_MAX_MOTION = 1e-3


def flow_to_color(flow: npt.ArrayLike, max_motion: float | None = None) -> npt.NDArray[np.uint8]:
    """Color-code a flow with the Middlebury color wheel.

    Args:
        flow: HxWx2, (u right, v down) in pixels. Values that are NaN, infinite or beyond 1e9 are invalid.
        max_motion: Length in pixels from which on the color is pure; None: the 99.9th percentile of the valid lengths,
            at least 0.001 pixels.

    Returns:
        uint8 HxWx3 RGB; invalid flow is black.
    """
    array = as_flow(flow)
    valid = valid_flow(array)
    vectors = array[valid]
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    if max_motion is None:
        max_motion = default_max_motion(lengths)
    elif not (np.isfinite(max_motion) and max_motion > 0):
        raise InputError(
            f"max_motion is a length in pixels over 0, not {max_motion}; give one, or None to choose it automatically."
        )
    image = np.zeros((*valid.shape, 3), dtype=np.uint8)
    with np.errstate(over="ignore"):
        speeds = lengths / np.float64(max_motion)
    image[valid] = _color_vectors(vectors, np.minimum(speeds, 1).astype(np.float32))
    return image


def color_wheel_legend(size: int) -> npt.NDArray[np.uint8]:
    """Draw the color wheel: each pixel has the color of motion from the center towards it.

    `size` is the side in pixels; the rim is motion at the maximum. Returns uint8 size x size x 3 RGB, white outside.
    """
    if size < 1:
        raise InputError(f"a legend is at least one pixel wide, not {size}; give a larger size.")
    center = (size - 1) / 2
    offsets = (np.arange(size) - center) / max(center, 1)
    v, u = np.meshgrid(offsets, offsets, indexing="ij")
    inside = np.hypot(u, v) <= 1
    return flow_to_color(np.stack([u * inside, v * inside], axis=-1), max_motion=1.0)


def default_max_motion(lengths: npt.NDArray[np.float32]) -> float:
    """Choose the length in pixels that gets the pure color, from N valid lengths, of which 0.1 % at most are longer."""
    if lengths.size == 0:
        return _MIN_MAX_MOTION
    return max(float(np.percentile(lengths, FLOW_PERCENTILE, method="higher")), _MIN_MAX_MOTION)


def _color_wheel() -> npt.NDArray[np.float64]:
    """Compute the 55 pure colors of the wheel, float64 55x3 RGB in [0, 1]."""
    spans = []
    for start, end, steps in zip(_CORNERS[:-1], _CORNERS[1:], _STEPS, strict=True):
        change = np.arange(steps)[:, None] * (np.array(end) - np.array(start)) / steps
        # The published wheel floors the change, not the resulting color.
        spans.append(np.array(start) + np.sign(change) * np.floor(np.abs(change)))
    return np.concatenate(spans) / 255


_WHEEL = _color_wheel()
_WHEEL_POSITIONS = np.arange(len(_WHEEL), dtype=np.float64)


def _color_vectors(vectors: npt.NDArray[np.float32], speeds: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the colors of N vectors (Nx2) with their speeds relative to the maximum (N, up to 1): uint8 Nx3 RGB."""
    # Adding zero turns -0.0 into 0.0; atan2 would otherwise put the two at opposite ends of the wheel.
    u, v = vectors[:, 0] + 0, vectors[:, 1] + 0
    # Rightward motion sits at the wheel's first color, and angles grow clockwise on screen from there.
    position = (np.arctan2(-v, -u) / np.float32(np.pi) + 1) / 2 * _WHEEL_POSITIONS[-1]
    pure = np.stack([np.interp(position, _WHEEL_POSITIONS, channel) for channel in _WHEEL.T], axis=-1)
    colors: npt.NDArray[np.uint8] = np.rint(255 * (1 - speeds[:, None] * (1 - pure))).astype(np.uint8)
    return colors


UNKNOWN = (90, 96, 104)
"""Color of invalid pixels: a gray that is not part of the color map."""
_RANGE_PERCENTILES = (2.0, 98.0)
"""Percentiles of the valid depths that get the first and the last color by default."""
_STOPS = ((255, 246, 190), (255, 176, 74), (228, 92, 79), (155, 48, 120), (78, 36, 124), (18, 18, 62))
"""From the nearest to the farthest: cream, amber, coral, plum, violet, night."""
_COLORS = 256
MIN_RANGE_RATIO = 1.5
"""Minimum ratio of the depths of the last and the first color, so that a flat wall is not stretched over all colors."""
_BAND = 2**18
"""Pixels that are converted at a time, since conversion takes many times the memory of the image."""


def depth_to_color(depth: npt.ArrayLike, near: float | None = None, far: float | None = None) -> npt.NDArray[np.uint8]:
    """Color-code the logarithm of a depth map, so that a step of 10 % looks the same at 1 m and at 50 m.

    Args:
        depth: HxW in meters. Values that are not finite or not above 0 are invalid.
        near: Depth of the first color in meters; None: from `default_depth_range`. Nearer depths get the same color.
        far: Depth of the last color in meters, over `near`; None: from `default_depth_range`.

    Returns:
        uint8 HxWx3 RGB; invalid depth is gray.
    """
    array = as_values(depth, "a depth")
    low, high = _resolve_range(array, near, far)
    image = np.empty((*array.shape, 3), dtype=np.uint8)
    rows = max(1, _BAND // array.shape[1])
    for top in range(0, len(array), rows):
        band = array[top : top + rows]
        valid = np.isfinite(band) & (band > 0)
        fraction = np.log(np.where(valid, band, low) / low) / np.log(high / low)
        indices = np.rint(np.clip(fraction, 0, 1) * (_COLORS - 1)).astype(np.uint8)
        image[top : top + rows] = color_map()[indices]
        image[top : top + rows][~valid] = UNKNOWN
    return image


def default_depth_range(depths: npt.ArrayLike) -> tuple[float, float]:
    """Choose the (near, far) of the color map, meters: the 2nd and the 98th percentile of the valid depths.

    Far is at least 1.5 times near; (1, 2) if no depth is valid.
    """
    array = np.asarray(depths)
    valid = array[np.isfinite(array) & (array > 0)]
    if not valid.size:
        return 1.0, 2.0
    near, far = np.percentile(valid, _RANGE_PERCENTILES).tolist()
    return near, max(far, MIN_RANGE_RATIO * near)


def depth_legend(width: int, height: int) -> npt.NDArray[np.uint8]:
    """Draw a strip of all colors, near on the left: uint8 height x width x 3 RGB."""
    if width < 1 or height < 1:
        raise InputError(f"a legend is at least one pixel each way, not {width}x{height}; give a larger size.")
    indices = np.linspace(0, _COLORS - 1, width).round().astype(np.intp)
    return np.repeat(color_map()[indices][None], height, axis=0)


@cache
def color_map() -> npt.NDArray[np.uint8]:
    """Return the depth color map: 256 colors, uint8 256x3 RGB, near first.

    It is perceptually uniform: a polyline through a few colors in OKLab (Ottosson, 2020), sampled at equal distances.
    Lightness decreases monotonically, so that it is readable in gray as well.
    """
    line = np.stack(
        [np.interp(np.linspace(0, len(_STOPS) - 1, 4096), range(len(_STOPS)), axis) for axis in _stops_in_oklab().T]
    )
    distance = np.concatenate(([0.0], np.linalg.norm(np.diff(line), axis=0).cumsum()))
    even = np.linspace(0, distance[-1], _COLORS)
    colors = _oklab_to_rgb(np.stack([np.interp(even, distance, axis) for axis in line], axis=1))
    table: npt.NDArray[np.uint8] = np.rint(255 * colors).astype(np.uint8)
    table.flags.writeable = False  # the cached array is shared
    return table


_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _stops_in_oklab() -> npt.NDArray[np.float64]:
    """Convert the stops to OKLab: n x 3."""
    srgb = np.array(_STOPS) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lab: npt.NDArray[np.float64] = np.cbrt(linear @ _TO_CONES.T) @ _TO_LAB.T
    return lab


def _oklab_to_rgb(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert OKLab colors, n x 3, to sRGB in [0, 1]."""
    linear = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    linear = np.clip(linear, 0, 1)
    srgb: npt.NDArray[np.float64] = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return srgb


def _resolve_range(depth: npt.NDArray[np.float32], near: float | None, far: float | None) -> tuple[float, float]:
    """Return the depths of the first and the last color, in meters."""
    if near is None or far is None:
        default = default_depth_range(depth)
        near = default[0] if near is None else near
        far = max(default[1], MIN_RANGE_RATIO * near) if far is None else far
    if not 0 < near < far < float("inf"):
        raise InputError(f"colors cannot go from {near:g} to {far:g} m; give a near over 0 and a larger far.")
    return near, far


Pixels = npt.NDArray[np.uint8]
"""uint8 H x W x 3 RGB, or H x W gray."""


def to_uint8(image: Tensor) -> Pixels:
    """Convert an image, 3 x H x W in [0, 1], to uint8 H x W x 3."""
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def draw_gray(values: Tensor) -> Pixels:
    """Convert a map, H x W in [0, 1], to uint8 H x W: 0 is black and 1 is white."""
    return (values.clamp(0, 1) * 255).round().byte().cpu().numpy()


def distinct_colors(count: int) -> Tensor:
    """Return a fixed sequence of distinguishable colors: count x 3 in [0, 1]."""
    return label_colors(range(count))


def label_colors(numbers: Iterable[int]) -> Tensor:
    """Return the colors of labels (from 0) in the sequence of `distinct_colors`: n x 3 in [0, 1]."""
    # Hues in steps of the golden ratio stay far apart; lightness alternates in addition.
    colors = [colorsys.hls_to_rgb((index * 0.61803399) % 1, (0.42, 0.58, 0.72)[index % 3], 0.75) for index in numbers]
    return torch.tensor(colors, dtype=torch.float32)


def hex_colors(colors: Tensor) -> list[str]:
    """Convert colors, n x 3 in [0, 1], to CSS notation such as "#bf1b1b"."""
    return ["#" + "".join(f"{round(255 * channel):02x}" for channel in color) for color in colors.tolist()]


def draw_assignment(
    prototypes: Prototypes,
    image: Tensor,
    stride: int,
    strength: float = 0.65,
    input_size: tuple[int, int] | None = None,
) -> Pixels:
    """Tint each pixel of the first image of a batch by the prototype that `Prototypes.owners` assigns it to.

    `image` is 3 x H x W in [0, 1]. The maps, with `stride` image pixels per cell, may be larger than the image, because
    the network pads it. `strength` is the opacity of the tint in [0, 1]; `input_size` is the (height, width) at which
    the network processed the image, None: H x W.
    """
    size = (image.shape[1], image.shape[2])
    height, width = input_size or size
    image = resize(image[None], (height, width))[0]
    owner = prototypes.owners[0].view(prototypes.size)
    fine = F.interpolate(owner[None, None].float(), scale_factor=stride, mode="nearest")[0, 0, :height, :width].long()
    tint = distinct_colors(prototypes.centers.shape[1])[fine].permute(2, 0, 1)
    gray = image.mean(dim=0, keepdim=True).expand(3, -1, -1)
    edge = boundaries(fine)
    mixed = torch.lerp(gray, tint, strength)
    return to_uint8(resize(torch.where(edge, mixed * 0.4, mixed)[None], size)[0])


def stack_2x2(top_left: Pixels, top_right: Pixels, bottom_left: Pixels, bottom_right: Pixels) -> Pixels:
    """Join four images, H x W x 3, two above two: 2H x 2W x 3."""
    return np.concatenate((np.hstack((top_left, top_right)), np.hstack((bottom_left, bottom_right))))


def frame_pixels(image: npt.NDArray[Any] | None) -> Pixels:
    """Copy the image of a frame, H x W x 3, uint8 or float in [0, 1], to a writable uint8 array."""
    if image is None:
        raise ValueError("the result has no frame")
    if image.dtype != np.uint8:
        image = np.rint(255 * image.clip(0, 1))
    return np.array(image, np.uint8, order="C", copy=True)


class Picture(ABC):
    """Base class of results that can be drawn: `show` opens a window, and a notebook shows them by themselves."""

    @abstractmethod
    def image(self) -> Image.Image:
        """Return the result as an image."""

    def show(self) -> None:
        """Show the image with matplotlib, in a notebook below the cell; without a screen this is a warning."""
        from matplotlib import pyplot  # takes a moment, and only this needs it

        if pyplot.get_backend().lower() in ("agg", "pdf", "pgf", "ps", "svg", "template"):
            warnings.warn("there is no screen to show an image on; save it with image().save(...)", stacklevel=2)
            return
        image = self.image()
        figure, axes = pyplot.subplots(figsize=(image.width / 100, image.height / 100), dpi=100)
        axes.imshow(image)
        axes.set_axis_off()
        figure.subplots_adjust(0, 0, 1, 1)
        pyplot.show()

    def _repr_png_(self) -> bytes:
        return encode_png(np.asarray(self.image()))
