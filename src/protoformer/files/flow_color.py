"""Flow as a picture: Middlebury's colour wheel (Baker et al., A Database and Evaluation Methodology for Optical Flow).

Hue is direction, saturation is speed: no motion is white, motion at the chosen maximum has the wheel's pure colour,
faster motion is darkened, and unknown motion is black.
"""

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.flow_array import as_flow, known_flow

# Steps between red, yellow, green, cyan, blue, magenta and red again: more where the eye tells more hues apart.
_STEPS = (15, 6, 4, 11, 13, 6)
_CORNERS = ((255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255), (255, 0, 0))

_TOO_FAST_BRIGHTNESS = 0.75
_TYPICAL_PERCENTILE = 99.0
# Below this (pixels) a still scene's rounding noise would be painted as if it were motion.
_SMALLEST_MAX_MOTION = 1e-3


def flow_to_color(flow: npt.ArrayLike, max_motion: float | None = None) -> npt.NDArray[np.uint8]:
    """Paint a flow, HxWx2 (u right, v down) in pixels, as uint8 HxWx3 RGB.

    `max_motion`: the length in pixels that gets the pure colour, over 0. None takes the 99th percentile of the known
    lengths, so that one outlier does not wash out the picture, and at least 0.001 pixel. Unknown motion (NaN, infinite
    or beyond 1e9) is black.
    """
    array = as_flow(flow)
    known = known_flow(array)
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
    """Draw the wheel as uint8 size x size x 3 RGB: each pixel has the colour of motion from the centre towards it.

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
    """Choose the length (pixels) to paint in pure colour, from N known lengths."""
    if lengths.size == 0:
        return _SMALLEST_MAX_MOTION
    return max(float(np.percentile(lengths, _TYPICAL_PERCENTILE)), _SMALLEST_MAX_MOTION)


def _color_wheel() -> npt.NDArray[np.float64]:
    """Build the 55 pure colours, float64 55x3 RGB in [0, 1]."""
    spans = []
    for start, end, steps in zip(_CORNERS[:-1], _CORNERS[1:], _STEPS, strict=True):
        moved = np.arange(steps)[:, None] * (np.array(end) - np.array(start)) / steps
        # The published wheel floors the amount moved, not the colour reached.
        spans.append(np.array(start) + np.sign(moved) * np.floor(np.abs(moved)))
    return np.concatenate(spans) / 255


_WHEEL = _color_wheel()
_PLACES = np.arange(len(_WHEEL), dtype=np.float64)


def _paint(vectors: npt.NDArray[np.float32], speeds: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Colour N known vectors (Nx2) whose speeds (N, 1 = the maximum) are given: uint8 Nx3 RGB."""
    # Adding zero turns -0.0 into 0.0; atan2 would otherwise put the two at opposite ends of the wheel.
    u, v = vectors[:, 0] + 0, vectors[:, 1] + 0
    # Rightward motion sits at the wheel's first colour, and angles grow clockwise on screen from there.
    place = (np.arctan2(-v, -u) / np.float32(np.pi) + 1) / 2 * _PLACES[-1]
    pure = np.stack([np.interp(place, _PLACES, channel) for channel in _WHEEL.T], axis=-1)
    speeds = speeds[:, None]
    shown = np.where(speeds <= 1, 1 - speeds * (1 - pure), _TOO_FAST_BRIGHTNESS * pure)
    picture: npt.NDArray[np.uint8] = np.rint(255 * shown).astype(np.uint8)
    return picture
