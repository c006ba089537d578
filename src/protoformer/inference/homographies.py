"""Homographies between pictures by features that match, as the field's usual script finds them."""

from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.files.movie import Picture

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
    """Places, n x 2, pixels, and descriptions, n x 128, of what stands out in a picture, and its centre, (x, y)."""

    places: npt.NDArray[np.float32]
    descriptions: npt.NDArray[np.float32]
    centre: tuple[float, float]


class FeatureFinder:
    """Finds features of pictures, uint8 HxWx3."""

    def __init__(self) -> None:
        self._sift = cast(Any, cv2).SIFT_create(nfeatures=MOST_FEATURES)  # its stubs do not know it

    def find(self, picture: Picture) -> Features:
        """What stands out in a picture."""
        grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        centre = ((picture.shape[1] - 1) / 2, (picture.shape[0] - 1) / 2)
        points, found = self._sift.detectAndCompute(grey, None)
        if found is None:
            return Features(np.empty((0, 2), np.float32), np.empty((0, 128), np.float32), centre)
        places = np.array([point.pt for point in points], np.float32).reshape(-1, 2)
        return Features(places, np.asarray(found, np.float32), centre)


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
