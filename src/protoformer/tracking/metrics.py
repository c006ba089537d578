"""Tracking metrics of OTB, LaSOT and TrackingNet: success and precision of one pass over a sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry.regions import box_centers, box_iou
from protoformer.viz.report import Tally

NUM_IOUS, NUM_DISTANCES, NUM_FRACTIONS = 21, 51, 51
"""Numbers of thresholds: IoU 0, 0.05 .. 1; center error 0, 1 .. 50 px; normalized center error 0, 0.01 .. 0.5."""

PRECISION_INDEX, NORMALIZED_INDEX = 20, 20
"""Indices of the thresholds 20 px and 0.2."""


@dataclass(frozen=True)
class TrackScores:
    """Fractions of frames, 0 .. 1, averaged over sequences; higher is better. Published tables print percent.

    All are NaN if no sequence has a frame that counts.
    """

    success: float
    """Area under the success curve. A perfect track has 20/21, as no IoU exceeds 1."""
    precision: float
    """Fraction of frames with a center error of at most 20 px."""
    normalized_precision: float
    """Fraction of frames with a center error of at most 0.2, in units of the true box's width and height."""
    normalized_precision_auc: float
    """Mean of that fraction over the 51 thresholds 0, 0.01 .. 0.5, as reported by TrackingNet and LaSOT."""
    success_curve: tuple[float, ...]
    """Fraction of frames with an IoU above 0, 0.05 .. 1: 21 values."""
    precision_curve: tuple[float, ...]
    """Fraction of frames with a center error of at most 0, 1 .. 50 px: 51 values."""
    sequences: int
    """Number of sequences with at least one frame that counts."""
    frames: int
    """Number of frames that count."""


def track_scores(predicted: Tensor, truth: Tensor, present: Tensor) -> TrackScores:
    """Score one sequence of T frames.

    A frame counts if the object is present and its true box is finite and has an area. The first frame counts with its
    true box, since the tracker was initialized there.

    Args:
        predicted: T x 4, predicted boxes (x, y, w, h), pixels.
        truth: T x 4, true boxes, NaN where unknown.
        present: T, bool, whether the object is visible.

    Returns:
        Scores of the sequence.

    Raises:
        ValueError: If shapes do not match, or a prediction is not finite in a frame that counts, except the first.
    """
    curves, frames = track_curves(predicted, truth, present)
    return mean_track_scores(Tally.of_rows(curves[None]).total(), frames)


def track_curves(predicted: Tensor, truth: Tensor, present: Tensor) -> tuple[Tensor, int]:
    """Compute the curves of one sequence, with the arguments of `track_scores`.

    Returns:
        Success, precision and normalized precision curves, concatenated (123 values, NaN if no frame counts), and the
        number of frames that count.
    """
    if truth.ndim != 2 or truth.shape[1] != 4 or predicted.shape != truth.shape:
        raise ValueError(
            f"predicted and true tracks must be T x 4 boxes, not {list(predicted.shape)} and {list(truth.shape)}"
        )
    if present.dtype != torch.bool or present.shape != truth.shape[:1]:
        raise ValueError(f"present must be {len(truth)} bools, not {present.dtype} of shape {list(present.shape)}")
    counts = present & truth.isfinite().all(dim=1) & (truth[:, 2:] > 0).all(dim=1)
    predicted = torch.cat((truth[:1], predicted[1:]))
    invalid = (counts & ~predicted.isfinite().all(dim=1)).nonzero().flatten()
    if len(invalid):
        raise ValueError(
            f"the predicted box is not finite in {len(invalid)} frames that count, the first being {invalid[0]}"
        )
    predicted, truth = predicted[counts].double(), truth[counts].double()
    error = box_centers(predicted) - box_centers(truth)
    thresholds = torch.arange(NUM_DISTANCES, dtype=torch.float64, device=truth.device)
    # One division of integers gives the float64 nearest to 0.05, 0.1 ..; a sum of steps of 0.05 does not.
    success = box_iou(predicted, truth)[:, None] > thresholds[:NUM_IOUS] / (NUM_IOUS - 1)
    near = error.norm(dim=1)[:, None] <= thresholds
    normalized_near = (error / truth[:, 2:]).norm(dim=1)[:, None] <= thresholds / 100
    return torch.cat((success, near, normalized_near), dim=1).double().mean(dim=0), len(truth)


def mean_track_scores(total: Tally, frames: int) -> TrackScores:
    """Compute mean scores from the sum of the curves of all sequences and the number of frames that count."""
    means = total.means()
    success, precision = means[:NUM_IOUS], means[NUM_IOUS : NUM_IOUS + NUM_DISTANCES]
    normalized = means[NUM_IOUS + NUM_DISTANCES :]
    return TrackScores(
        success=sum(success) / NUM_IOUS,
        precision=precision[PRECISION_INDEX],
        normalized_precision=normalized[NORMALIZED_INDEX],
        normalized_precision_auc=sum(normalized) / NUM_FRACTIONS,
        success_curve=tuple(success),
        precision_curve=tuple(precision),
        sequences=int(total.counts[0]),
        frames=frames,
    )
