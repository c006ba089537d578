"""How a camera moves from frame to frame: similarities, from flows in which other things move as well."""

from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.video.types import ImageArray

Complex = npt.NDArray[np.complex128]
Array = npt.NDArray[np.float64]

ROUNDS = 12
SPREAD = 4.685
"""Residuals of so many standard deviations count for nothing: Tukey's weights."""
FINEST = 0.05
"""Pixels: residuals below this are all alike."""


@dataclass(frozen=True)
class Motion:
    """A similarity z -> turn z + shift of points z = x + iy, pixels from the center of the frame.

    turn: scale and angle. trust: in [0, 1], the share of the frame that is known to move so.
    """

    turn: complex
    shift: complex
    trust: float

    def shared(self, parts: int) -> "Motion":
        """The motion that, done so many times, is this one."""
        turn = self.turn ** (1 / parts)
        total = sum(turn**power for power in range(parts))
        return Motion(turn, self.shift / total, self.trust)


def centered_cells(rows: int, columns: int, size: tuple[int, int]) -> Complex:
    """Centers of rows x columns equal cells of a frame of (height, width), pixels from its center: rows x columns."""
    height, width = size
    x = (np.arange(columns) + 0.5) * width / columns - width / 2
    y = (np.arange(rows) + 0.5) * height / rows - height / 2
    return x[None] + 1j * y[:, None]


def fit_motion(places: Complex, shifts: Complex, weights: Array) -> Motion:
    """The similarity that most of the points agree on. places: n; shifts: n, pixels that each moves; weights: n, >= 0.

    Reweighted least squares from the weighted median shift on: what moves by itself loses its weight.
    """
    total = float(weights.sum())
    if total <= 0:
        return Motion(1 + 0j, 0j, 0.0)
    turn, shift = 1 + 0j, _median(shifts.real, weights) + 1j * _median(shifts.imag, weights)
    kept = weights
    for _ in range(ROUNDS):
        away = np.abs(places + shifts - turn * places - shift)
        scale = max(FINEST, 1.4826 * _median(away, weights))
        kept = weights * np.square(np.clip(1 - np.square(away / (SPREAD * scale)), 0, None))
        turn, shift = _least_squares(places, places + shifts, kept)
    return Motion(turn, shift, float(kept.sum() / len(kept)))


def _least_squares(before: Complex, after: Complex, weights: Array) -> tuple[complex, complex]:
    share = weights / weights.sum()
    middle, goal = (share * before).sum(), (share * after).sum()
    away = before - middle
    energy = float((share * np.abs(away) ** 2).sum())
    turn = complex((share * away.conj() * (after - goal)).sum()) / energy if energy > 1e-9 else 1 + 0j
    return turn, complex(goal - turn * middle)


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


Matrix = npt.NDArray[np.float64]

MOST_FEATURES = 2000
CLEARLY = 0.7
"""A match counts where the next best one is this much farther: Lowe's ratio."""
WITHIN = 5.0
"""Pixels that a point may miss its partner by."""
FEWEST = 12
"""Matches that agree on a homography; fewer prove nothing."""
UNKNOWN: Matrix = np.full((3, 3), np.nan)
"""Where there is no homography to be found."""


@dataclass(frozen=True, eq=False)
class Features:
    """Places, n x 2, pixels, and descriptions, n x 128, of what stands out in a picture, and its center, (x, y)."""

    places: npt.NDArray[np.float32]
    descriptions: npt.NDArray[np.float32]
    center: tuple[float, float]


class FeatureFinder:
    """Finds features of pictures, uint8 HxWx3."""

    def __init__(self) -> None:
        self._sift = cast(Any, cv2).SIFT_create(nfeatures=MOST_FEATURES)  # its stubs do not know it

    def find(self, picture: ImageArray) -> Features:
        """What stands out in a picture."""
        gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        center = ((picture.shape[1] - 1) / 2, (picture.shape[0] - 1) / 2)
        points, found = self._sift.detectAndCompute(gray, None)
        if found is None:
            return Features(np.empty((0, 2), np.float32), np.empty((0, 128), np.float32), center)
        places = np.array([point.pt for point in points], np.float32).reshape(-1, 2)
        return Features(places, np.asarray(found, np.float32), center)


def homography(first: Features, second: Features) -> Matrix:
    """The homography, 3 x 3, that takes points of the first picture to the second; NaN where too few agree on one."""
    if min(len(first.places), len(second.places)) < FEWEST:
        return UNKNOWN
    pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(first.descriptions, second.descriptions, k=2)
    clear = [one for one, *rest in pairs if rest and one.distance < CLEARLY * rest[0].distance]
    if len(clear) < FEWEST:
        return UNKNOWN
    before = first.places[[match.queryIdx for match in clear]]
    after = second.places[[match.trainIdx for match in clear]]
    cv2.setRNGSeed(0)  # the same answer every time
    matrix, agree = cv2.findHomography(before, after, cv2.RANSAC, WITHIN)
    if matrix is None or int(agree.sum()) < FEWEST:
        return UNKNOWN
    return np.asarray(matrix, np.float64)
