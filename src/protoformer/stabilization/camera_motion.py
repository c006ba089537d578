"""Camera motion estimation: robust similarities from flow, and homographies from SIFT features."""

from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.video.types import ImageArray

Complex = npt.NDArray[np.complex128]
Array = npt.NDArray[np.float64]

NUM_ITERATIONS = 12
TUKEY_CUTOFF = 4.685
"""Residual, in standard deviations, from which on Tukey's biweight is zero."""
MIN_SCALE = 0.05
"""Smallest scale of residuals, pixels."""


@dataclass(frozen=True)
class Motion:
    """A similarity z -> turn z + shift of points z = x + iy, in pixels from the center of the frame.

    Attributes:
        turn: Scale and rotation.
        shift: Translation, pixels.
        inlier_fraction: Weighted fraction of inliers in the frame, in [0, 1].
    """

    turn: complex
    shift: complex
    inlier_fraction: float

    def split(self, parts: int) -> "Motion":
        """Return the motion that, applied `parts` times, equals this one."""
        turn = self.turn ** (1 / parts)
        total = sum(turn**power for power in range(parts))
        return Motion(turn, self.shift / total, self.inlier_fraction)


def centered_cells(rows: int, columns: int, size: tuple[int, int]) -> Complex:
    """Return the centers of rows x columns cells of a frame of (height, width): complex, pixels from its center."""
    height, width = size
    x = (np.arange(columns) + 0.5) * width / columns - width / 2
    y = (np.arange(rows) + 0.5) * height / rows - height / 2
    return x[None] + 1j * y[:, None]


def fit_motion(points: Complex, shifts: Complex, weights: Array) -> Motion:
    """Fit the similarity of the majority of n points by reweighted least squares, from the weighted median shift.

    `points` and their `shifts` are complex, n, pixels; `weights` are nonnegative, n.
    """
    total = float(weights.sum())
    if total <= 0:
        return Motion(1 + 0j, 0j, 0.0)
    turn, shift = 1 + 0j, _weighted_median(shifts.real, weights) + 1j * _weighted_median(shifts.imag, weights)
    inlier_weights = weights
    for _ in range(NUM_ITERATIONS):
        residuals = np.abs(points + shifts - turn * points - shift)
        scale = max(MIN_SCALE, 1.4826 * _weighted_median(residuals, weights))
        inlier_weights = weights * np.square(np.clip(1 - np.square(residuals / (TUKEY_CUTOFF * scale)), 0, None))
        turn, shift = _fit_similarity(points, points + shifts, inlier_weights)
    return Motion(turn, shift, float(inlier_weights.sum() / len(inlier_weights)))


def _fit_similarity(before: Complex, after: Complex, weights: Array) -> tuple[complex, complex]:
    normalized = weights / weights.sum()
    mean_before, mean_after = (normalized * before).sum(), (normalized * after).sum()
    centered = before - mean_before
    variance = float((normalized * np.abs(centered) ** 2).sum())
    turn = (
        complex((normalized * centered.conj() * (after - mean_after)).sum()) / variance if variance > 1e-9 else 1 + 0j
    )
    return turn, complex(mean_after - turn * mean_before)


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


Matrix = npt.NDArray[np.float64]

MAX_FEATURES = 2000
MATCH_RATIO = 0.7
"""Largest ratio of the distances of the best and the second best match (Lowe's ratio test)."""
MAX_ERROR = 5.0
"""Largest reprojection error of an inlier, pixels."""
MIN_MATCHES = 12
"""Smallest number of matches, and of inliers, of a homography."""
NO_HOMOGRAPHY: Matrix = np.full((3, 3), np.nan)
"""Returned if no homography can be estimated."""


@dataclass(frozen=True, eq=False)
class Features:
    """SIFT features of an image.

    Attributes:
        points: n x 2, keypoints (x, y), pixels.
        descriptors: n x 128, descriptors.
        center: (x, y) of the center of the image, pixels.
    """

    points: npt.NDArray[np.float32]
    descriptors: npt.NDArray[np.float32]
    center: tuple[float, float]


class FeatureDetector:
    """Detects SIFT features."""

    def __init__(self) -> None:
        self._sift = cast(Any, cv2).SIFT_create(nfeatures=MAX_FEATURES)  # missing in the type stubs

    def detect(self, image: ImageArray) -> Features:
        """Detect the features of an image, uint8 H x W x 3."""
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        center = ((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2)
        keypoints, descriptors = self._sift.detectAndCompute(gray, None)
        if descriptors is None:
            return Features(np.empty((0, 2), np.float32), np.empty((0, 128), np.float32), center)
        points = np.array([keypoint.pt for keypoint in keypoints], np.float32).reshape(-1, 2)
        return Features(points, np.asarray(descriptors, np.float32), center)


def homography(first: Features, second: Features) -> Matrix:
    """Estimate the homography, 3 x 3, from the first image to the second by RANSAC; NaN with too few inliers."""
    if min(len(first.points), len(second.points)) < MIN_MATCHES:
        return NO_HOMOGRAPHY
    candidates = cv2.BFMatcher(cv2.NORM_L2).knnMatch(first.descriptors, second.descriptors, k=2)
    matches = [best for best, *rest in candidates if rest and best.distance < MATCH_RATIO * rest[0].distance]
    if len(matches) < MIN_MATCHES:
        return NO_HOMOGRAPHY
    before = first.points[[match.queryIdx for match in matches]]
    after = second.points[[match.trainIdx for match in matches]]
    cv2.setRNGSeed(0)  # for reproducible results
    matrix, inliers = cv2.findHomography(before, after, cv2.RANSAC, MAX_ERROR)
    if matrix is None or int(inliers.sum()) < MIN_MATCHES:
        return NO_HOMOGRAPHY
    return np.asarray(matrix, np.float64)
