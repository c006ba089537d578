"""The measures of DAVIS: region similarity J, boundary accuracy F, their recall and decay."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.segmentation.result import Mask

BOUNDARY_TOLERANCE = 0.008
"""Tolerance of F, as a fraction of the diagonal."""
RECALL_THRESHOLD = 0.5
NUM_BINS = 4
"""Parts of a sequence: the decay is the difference of the first and the last."""


def region_similarity(predicted: Mask, truth: Mask) -> float:
    """Return J, the intersection over union of two masks, H x W; 1 if both are empty."""
    union = int((predicted | truth).sum())
    return 1.0 if not union else int((predicted & truth).sum()) / union


def mask_boundary(mask: Mask) -> Mask:
    """Return the boundary of a mask, H x W, bool: pixels that differ from the right, lower or lower right neighbor."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    east, south, southeast = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    boundary: Mask = (mask != east) | (mask != south) | (mask != southeast)
    return boundary


def boundary_accuracy(predicted: Mask, truth: Mask, tolerance: float = BOUNDARY_TOLERANCE) -> float:
    """Return F, the harmonic mean of precision and recall of the boundary.

    Boundary pixels match if a pixel of the other boundary lies within the tolerance, as in the bipartite matching of
    DAVIS by dilation with a disk.

    Args:
        predicted: H x W.
        truth: H x W.
        tolerance: Fraction of the diagonal.
    """
    radius = math.ceil(tolerance * math.hypot(*truth.shape))
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.uint8)
    edges = [mask_boundary(mask) for mask in (predicted, truth)]
    near = [cv2.dilate(edge.astype(np.uint8), disk).astype(bool) for edge in edges]
    counts = [int(edge.sum()) for edge in edges]
    if not all(counts):
        # One empty boundary: either precision or recall is 0.
        return 0.0 if any(counts) else 1.0
    precision, recall = int((edges[0] & near[1]).sum()) / counts[0], int((edges[1] & near[0]).sum()) / counts[1]
    return 0.0 if not precision + recall else 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class MaskScores:
    """Scores of one sequence, or means over sequences: mean, recall (fraction over 0.5) and decay of J and F."""

    j_mean: float
    j_recall: float
    j_decay: float
    f_mean: float
    f_recall: float
    f_decay: float


def sequence_scores(regions: Sequence[float], boundaries: Sequence[float]) -> MaskScores:
    """Summarize J and F of the frames of one sequence."""
    return MaskScores(*_statistics(regions), *_statistics(boundaries))


def mean_scores(rows: Sequence[MaskScores]) -> MaskScores:
    """Average the scores of sequences with equal weights; NaN without any."""
    if not rows:
        return MaskScores(*[math.nan] * 6)
    names = MaskScores.__dataclass_fields__
    return MaskScores(*(float(np.mean([getattr(row, name) for row in rows])) for name in names))


def _statistics(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, recall and decay, NaN without frames."""
    scores = np.asarray(values, np.float64)
    if not len(scores):
        return math.nan, math.nan, math.nan
    # The rounding of the official evaluation; neighboring bins share a frame.
    edges = np.round(np.linspace(1, len(scores), NUM_BINS + 1) + 1e-10).astype(int) - 1
    bins = [scores[edges[index] : edges[index + 1] + 1] for index in range(NUM_BINS)]
    decay = float(bins[0].mean() - bins[-1].mean())
    return float(scores.mean()), float((scores > RECALL_THRESHOLD).mean()), decay


MAX_OPTIMAL = 10
"""Number of objects up to which the assignment is optimal; the time grows with two to the power of it."""


def assign_objects(scores: npt.NDArray[np.float64]) -> list[int]:
    """Assign true objects to different predicted ones so that the sum of scores is greatest, or greedily if many.

    Args:
        scores: n x m, nonnegative scores of n true and m predicted objects.

    Returns:
        The predicted object of each true one; -1 for none.
    """
    count = scores.shape[0]
    if count > MAX_OPTIMAL:
        assigned = dict.fromkeys(range(count), -1)
        for row, column in zip(*np.unravel_index(np.argsort(-scores, axis=None), scores.shape), strict=True):
            if scores[row, column] > 0 and assigned[int(row)] < 0 and int(column) not in assigned.values():
                assigned[int(row)] = int(column)
        return list(assigned.values())
    # By sets of assigned objects, as bits: the greatest sum with the columns so far, and the pairs that give it.
    best: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {0: (0.0, ())}
    for column in range(scores.shape[1]):
        for rows, (total, pairs) in list(best.items()):
            for row in range(count):
                value = total + float(scores[row, column])
                if not rows >> row & 1 and scores[row, column] > 0 and value > best.get(rows | 1 << row, (0.0, ()))[0]:
                    best[rows | 1 << row] = value, (*pairs, (row, column))
    chosen = dict(max(best.values())[1])
    return [chosen.get(row, -1) for row in range(count)]
