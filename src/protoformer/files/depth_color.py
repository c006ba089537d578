"""Depth as a picture: near is light and warm, far is dark and cool, equal ratios of depth are equal steps of colour."""

from functools import cache

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.value_array import as_values

UNKNOWN = (90, 96, 104)
"""The colour of pixels without a depth: a grey that is no colour of the map."""
USUAL_SHARES = (2.0, 98.0)
"""Percentiles of the known depths that get the first and the last colour, where nobody says which should."""
_STOPS = ((255, 246, 190), (255, 176, 74), (228, 92, 79), (155, 48, 120), (78, 36, 124), (18, 18, 62))
"""From the nearest to the farthest: cream, amber, coral, plum, violet, night."""
_COLOURS = 256
LEAST_RATIO = 1.5
"""The last colour is at least so many times as far as the first: a wall is not painted as a landscape."""
_BAND = 2**18
"""Pixels that are painted at a time: painting takes many times the memory of the picture."""


def depth_to_color(depth: npt.ArrayLike, near: float | None = None, far: float | None = None) -> npt.NDArray[np.uint8]:
    """Paint a depth, HxW in metres, as uint8 HxWx3 RGB.

    near, far: metres that get the first and the last colour, 0 < near < far; what lies beyond is painted like them.
    None takes that of `usual_range`. The logarithm of depth is what colours follow, so that a step of 10 %
    looks the same at 1 m and at 50 m. Unknown depth (not finite, or not above 0) is grey.
    """
    array = as_values(depth, "a depth")
    low, high = _bounds(array, near, far)
    painted = np.empty((*array.shape, 3), dtype=np.uint8)
    rows = max(1, _BAND // array.shape[1])
    for top in range(0, len(array), rows):
        band = array[top : top + rows]
        known = np.isfinite(band) & (band > 0)
        share = np.log(np.where(known, band, low) / low) / np.log(high / low)
        places = np.rint(np.clip(share, 0, 1) * (_COLOURS - 1)).astype(np.uint8)
        painted[top : top + rows] = color_map()[places]
        painted[top : top + rows][~known] = UNKNOWN
    return painted


def usual_range(depths: npt.ArrayLike) -> tuple[float, float]:
    """(near, far), metres of the first and the last colour for depths of any shape, where nobody says otherwise.

    The 2nd and the 98th percentile of the known ones, far being at least 1.5 times near; 1 and 2 m where none is known.
    """
    array = np.asarray(depths)
    known = array[np.isfinite(array) & (array > 0)]
    if not known.size:
        return 1.0, 2.0
    near, far = np.percentile(known, USUAL_SHARES).tolist()
    return near, max(far, LEAST_RATIO * near)


def depth_legend(width: int, height: int) -> npt.NDArray[np.uint8]:
    """A strip of all colours, the nearest on the left: uint8 height x width x 3 RGB."""
    if width < 1 or height < 1:
        raise InputError(f"a legend is at least one pixel each way, not {width}x{height}; give a larger size.")
    places = np.linspace(0, _COLOURS - 1, width).round().astype(np.intp)
    return np.repeat(color_map()[places][None], height, axis=0)


@cache
def color_map() -> npt.NDArray[np.uint8]:
    """The 256 colours, uint8 256x3 RGB, the nearest first.

    Perceptually uniform by construction: a line through a few colours in OKLab (Ottosson, 2020), in which distance is
    what the eye sees, walked in steps of one length; its lightness falls all the way, so that it reads in grey as well.
    """
    line = np.stack([np.interp(np.linspace(0, len(_STOPS) - 1, 4096), range(len(_STOPS)), axis) for axis in _lab().T])
    walked = np.concatenate(([0.0], np.linalg.norm(np.diff(line), axis=0).cumsum()))
    even = np.linspace(0, walked[-1], _COLOURS)
    colours = _rgb(np.stack([np.interp(even, walked, axis) for axis in line], axis=1))
    table: npt.NDArray[np.uint8] = np.rint(255 * colours).astype(np.uint8)
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
    """Colours of OKLab, n x 3, as stored RGB in [0, 1]."""
    light = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    light = np.clip(light, 0, 1)
    stored: npt.NDArray[np.float64] = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return stored


def _bounds(depth: npt.NDArray[np.float32], near: float | None, far: float | None) -> tuple[float, float]:
    """The depths of the first and the last colour."""
    if near is None or far is None:
        usual = usual_range(depth)
        near = usual[0] if near is None else near
        far = max(usual[1], LEAST_RATIO * near) if far is None else far
    if not 0 < near < far < float("inf"):
        raise InputError(f"colours cannot go from {near:g} to {far:g} m; give a near over 0 and a larger far.")
    return near, far
