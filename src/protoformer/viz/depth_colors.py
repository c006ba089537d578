"""Colors of depth maps: a perceptually uniform color map of the logarithm of depth."""

from functools import cache

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.formats import as_values

UNKNOWN = (90, 96, 104)
"""Color of invalid pixels: a gray that is not part of the color map."""
_RANGE_PERCENTILES = (2.0, 98.0)
"""Percentiles of the valid depths that get the first and the last color by default."""
_DEPTH_COLORS = ((255, 246, 190), (255, 176, 74), (228, 92, 79), (155, 48, 120), (78, 36, 124), (18, 18, 62))
"""The color map, from the nearest to the farthest: cream, amber, coral, plum, violet, night."""
_NUM_COLORS = 256
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
        indices = np.rint(np.clip(fraction, 0, 1) * (_NUM_COLORS - 1)).astype(np.uint8)
        image[top : top + rows] = depth_color_map()[indices]
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
    indices = np.linspace(0, _NUM_COLORS - 1, width).round().astype(np.intp)
    return np.repeat(depth_color_map()[indices][None], height, axis=0)


@cache
def depth_color_map() -> npt.NDArray[np.uint8]:
    """Return the depth color map: 256 colors, uint8 256x3 RGB, near first.

    It is perceptually uniform: a polyline through a few colors in OKLab (Ottosson, 2020), sampled at equal distances.
    Lightness decreases monotonically, so that it is readable in gray as well.
    """
    line = np.stack(
        [
            np.interp(np.linspace(0, len(_DEPTH_COLORS) - 1, 4096), range(len(_DEPTH_COLORS)), axis)
            for axis in _colors_in_oklab().T
        ]
    )
    distance = np.concatenate(([0.0], np.linalg.norm(np.diff(line), axis=0).cumsum()))
    even = np.linspace(0, distance[-1], _NUM_COLORS)
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


def _colors_in_oklab() -> npt.NDArray[np.float64]:
    """Convert the colors above to OKLab: n x 3."""
    srgb = np.array(_DEPTH_COLORS) / 255
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
