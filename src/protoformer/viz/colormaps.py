"""Flow as a picture: Middlebury's color wheel (Baker et al., A Database and Evaluation Methodology for Optical Flow).

Hue is direction, saturation is speed: no motion is white, motion at the chosen maximum has the wheel's pure color,
faster motion is darkened, and unknown motion is black.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.arrays import as_flow, as_values, valid_flow

# Steps between red, yellow, green, cyan, blue, magenta and red again: more where the eye tells more hues apart.
_STEPS = (15, 6, 4, 11, 13, 6)
_CORNERS = ((255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255), (255, 0, 0))

_TOO_FAST_BRIGHTNESS = 0.75
_TYPICAL_PERCENTILE = 99.0
# Below this (pixels) a still scene's rounding noise would be painted as if it were motion.
_SMALLEST_MAX_MOTION = 1e-3


def flow_to_color(flow: npt.ArrayLike, max_motion: float | None = None) -> npt.NDArray[np.uint8]:
    """Paint a flow, HxWx2 (u right, v down) in pixels, as uint8 HxWx3 RGB.

    `max_motion`: the length in pixels that gets the pure color, over 0. None takes the 99th percentile of the known
    lengths, so that one outlier does not wash out the picture, and at least 0.001 pixel. Unknown motion (NaN, infinite
    or beyond 1e9) is black.
    """
    array = as_flow(flow)
    known = valid_flow(array)
    vectors = array[known]
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    if max_motion is None:
        max_motion = _typical_maximum(lengths)
    elif not (np.isfinite(max_motion) and max_motion > 0):
        raise InputError(f"max_motion is a length in pixels over 0, not {max_motion}; give one, or None to measure it.")
    picture = np.zeros((*known.shape, 3), dtype=np.uint8)
    with np.errstate(over="ignore"):
        speeds = lengths / np.float64(max_motion)
    # Anything over 1 is painted alike; the bound keeps infinity out of the arithmetic.
    picture[known] = _paint(vectors, np.minimum(speeds, 2).astype(np.float32))
    return picture


def color_wheel_legend(size: int) -> npt.NDArray[np.uint8]:
    """Draw the wheel as uint8 size x size x 3 RGB: each pixel has the color of motion from the center towards it.

    The rim, at the picture's edge, is motion at the maximum; outside it the picture is white.
    """
    if size < 1:
        raise InputError(f"a legend is at least one pixel wide, not {size}; give a larger size.")
    center = (size - 1) / 2
    offsets = (np.arange(size) - center) / max(center, 1)
    v, u = np.meshgrid(offsets, offsets, indexing="ij")
    inside = np.hypot(u, v) <= 1
    return flow_to_color(np.stack([u * inside, v * inside], axis=-1), max_motion=1.0)


def _typical_maximum(lengths: npt.NDArray[np.float32]) -> float:
    """Choose the length (pixels) to paint in pure color, from N known lengths."""
    if lengths.size == 0:
        return _SMALLEST_MAX_MOTION
    return max(float(np.percentile(lengths, _TYPICAL_PERCENTILE)), _SMALLEST_MAX_MOTION)


def _color_wheel() -> npt.NDArray[np.float64]:
    """Build the 55 pure colors, float64 55x3 RGB in [0, 1]."""
    spans = []
    for start, end, steps in zip(_CORNERS[:-1], _CORNERS[1:], _STEPS, strict=True):
        moved = np.arange(steps)[:, None] * (np.array(end) - np.array(start)) / steps
        # The published wheel floors the amount moved, not the color reached.
        spans.append(np.array(start) + np.sign(moved) * np.floor(np.abs(moved)))
    return np.concatenate(spans) / 255


_WHEEL = _color_wheel()
_PLACES = np.arange(len(_WHEEL), dtype=np.float64)


def _paint(vectors: npt.NDArray[np.float32], speeds: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Color N known vectors (Nx2) whose speeds (N, 1 = the maximum) are given: uint8 Nx3 RGB."""
    # Adding zero turns -0.0 into 0.0; atan2 would otherwise put the two at opposite ends of the wheel.
    u, v = vectors[:, 0] + 0, vectors[:, 1] + 0
    # Rightward motion sits at the wheel's first color, and angles grow clockwise on screen from there.
    place = (np.arctan2(-v, -u) / np.float32(np.pi) + 1) / 2 * _PLACES[-1]
    pure = np.stack([np.interp(place, _PLACES, channel) for channel in _WHEEL.T], axis=-1)
    speeds = speeds[:, None]
    shown = np.where(speeds <= 1, 1 - speeds * (1 - pure), _TOO_FAST_BRIGHTNESS * pure)
    picture: npt.NDArray[np.uint8] = np.rint(255 * shown).astype(np.uint8)
    return picture


UNKNOWN = (90, 96, 104)
"""The color of pixels without a depth: a gray that is no color of the map."""
USUAL_SHARES = (2.0, 98.0)
"""Percentiles of the known depths that get the first and the last color, where nobody says which should."""
_STOPS = ((255, 246, 190), (255, 176, 74), (228, 92, 79), (155, 48, 120), (78, 36, 124), (18, 18, 62))
"""From the nearest to the farthest: cream, amber, coral, plum, violet, night."""
_COLORS = 256
LEAST_RATIO = 1.5
"""The last color is at least so many times as far as the first: a wall is not painted as a landscape."""
_BAND = 2**18
"""Pixels that are painted at a time: painting takes many times the memory of the picture."""


def depth_to_color(depth: npt.ArrayLike, near: float | None = None, far: float | None = None) -> npt.NDArray[np.uint8]:
    """Paint a depth, HxW in meters, as uint8 HxWx3 RGB.

    near, far: meters that get the first and the last color, 0 < near < far; what lies beyond is painted like them.
    None takes that of `usual_range`. The logarithm of depth is what colors follow, so that a step of 10 %
    looks the same at 1 m and at 50 m. Unknown depth (not finite, or not above 0) is gray.
    """
    array = as_values(depth, "a depth")
    low, high = _bounds(array, near, far)
    painted = np.empty((*array.shape, 3), dtype=np.uint8)
    rows = max(1, _BAND // array.shape[1])
    for top in range(0, len(array), rows):
        band = array[top : top + rows]
        known = np.isfinite(band) & (band > 0)
        share = np.log(np.where(known, band, low) / low) / np.log(high / low)
        places = np.rint(np.clip(share, 0, 1) * (_COLORS - 1)).astype(np.uint8)
        painted[top : top + rows] = color_map()[places]
        painted[top : top + rows][~known] = UNKNOWN
    return painted


def default_depth_range(depths: npt.ArrayLike) -> tuple[float, float]:
    """(near, far), meters of the first and the last color for depths of any shape, where nobody says otherwise.

    The 2nd and the 98th percentile of the known ones, far being at least 1.5 times near; 1 and 2 m where none is known.
    """
    array = np.asarray(depths)
    known = array[np.isfinite(array) & (array > 0)]
    if not known.size:
        return 1.0, 2.0
    near, far = np.percentile(known, USUAL_SHARES).tolist()
    return near, max(far, LEAST_RATIO * near)


def depth_legend(width: int, height: int) -> npt.NDArray[np.uint8]:
    """A strip of all colors, the nearest on the left: uint8 height x width x 3 RGB."""
    if width < 1 or height < 1:
        raise InputError(f"a legend is at least one pixel each way, not {width}x{height}; give a larger size.")
    places = np.linspace(0, _COLORS - 1, width).round().astype(np.intp)
    return np.repeat(color_map()[places][None], height, axis=0)


@cache
def color_map() -> npt.NDArray[np.uint8]:
    """The 256 colors, uint8 256x3 RGB, the nearest first.

    Perceptually uniform by construction: a line through a few colors in OKLab (Ottosson, 2020), in which distance is
    what the eye sees, walked in steps of one length; its lightness falls all the way, so that it reads in gray as well.
    """
    line = np.stack([np.interp(np.linspace(0, len(_STOPS) - 1, 4096), range(len(_STOPS)), axis) for axis in _lab().T])
    walked = np.concatenate(([0.0], np.linalg.norm(np.diff(line), axis=0).cumsum()))
    even = np.linspace(0, walked[-1], _COLORS)
    colors = _rgb(np.stack([np.interp(even, walked, axis) for axis in line], axis=1))
    table: npt.NDArray[np.uint8] = np.rint(255 * colors).astype(np.uint8)
    table.flags.writeable = False  # one for all who ask
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


def _lab() -> npt.NDArray[np.float64]:
    """The stops in OKLab, n x 3."""
    stored = np.array(_STOPS) / 255
    light = np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)
    lab: npt.NDArray[np.float64] = np.cbrt(light @ _TO_CONES.T) @ _TO_LAB.T
    return lab


def _rgb(lab: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Colors of OKLab, n x 3, as stored RGB in [0, 1]."""
    light = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    light = np.clip(light, 0, 1)
    stored: npt.NDArray[np.float64] = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return stored


def _bounds(depth: npt.NDArray[np.float32], near: float | None, far: float | None) -> tuple[float, float]:
    """The depths of the first and the last color."""
    if near is None or far is None:
        usual = default_depth_range(depth)
        near = usual[0] if near is None else near
        far = max(usual[1], LEAST_RATIO * near) if far is None else far
    if not 0 < near < far < float("inf"):
        raise InputError(f"colors cannot go from {near:g} to {far:g} m; give a near over 0 and a larger far.")
    return near, far
