"""How well a box follows an object: one pass over a sequence, scored as OTB, LaSOT and TrackingNet do."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry.boxes import box_centers, box_iou
from protoformer.training.task import Tally

OVERLAPS, PIXELS, FRACTIONS = 21, 51, 51
"""Thresholds: 0, 0.05 .. 1 of overlap; 0, 1 .. 50 px; 0, 0.01 .. 0.5 of a box."""

PRECISION_AT, NORMALIZED_AT = 20, 20
"""Places of 20 px and of 0.2 box among their thresholds."""


@dataclass(frozen=True)
class TrackScores:
    """Shares of frames, 0 .. 1, averaged over sequences (published tables print them times 100); more is better.

    All are NaN where no sequence had a frame to count.
    """

    success: float
    """Mean of the success curve, the area under it. A perfect track has 20/21, as no overlap is more than 1."""
    precision: float
    """Share of frames whose center is at most 20 px from the true one."""
    normalized_precision: float
    """Share of frames whose center is off by at most 0.2, in units of the true box's width and height."""
    normalized_precision_auc: float
    """TrackingNet's and LaSOT's figure: mean of that share over the 51 thresholds 0, 0.01 .. 0.5."""
    success_curve: tuple[float, ...]
    """Share of frames with intersection over union more than 0, 0.05 .. 1: 21."""
    precision_curve: tuple[float, ...]
    """Share of frames with center error at most 0, 1 .. 50 px: 51."""
    sequences: int
    """Sequences with at least one frame that counts; others add nothing."""
    frames: int
    """Frames that count."""


def track_scores(predicted: Tensor, truth: Tensor, present: Tensor) -> TrackScores:
    """Scores of one sequence of T frames.

    predicted, truth: T x 4 boxes (x, y, w, h), pixels; present: T, bool. Frames count in which the object is present
    and its true box is known (not NaN) and has an area; the rest are left out, whatever the tracker said there. The
    first frame counts, if it does, as given: its true box stands for the tracker's. A prediction that is not finite in
    any other frame that counts is a ValueError.
    """
    curves, frames = track_curves(predicted, truth, present)
    return mean_track_scores(Tally.of_rows(curves[None]).total(), frames)


def track_curves(predicted: Tensor, truth: Tensor, present: Tensor) -> tuple[Tensor, int]:
    """Success, precision and normalized precision curves end to end (123, NaN without a frame), frames that count."""
    if truth.ndim != 2 or truth.shape[1] != 4 or predicted.shape != truth.shape:
        raise ValueError(f"tracks are both T x 4 boxes, not {list(predicted.shape)} and {list(truth.shape)}")
    if present.dtype != torch.bool or present.shape != truth.shape[:1]:
        raise ValueError(f"present must be {len(truth)} bools, not {present.dtype} of shape {list(present.shape)}")
    counted = present & truth.isfinite().all(dim=1) & (truth[:, 2:] > 0).all(dim=1)
    predicted = torch.cat((truth[:1], predicted[1:]))
    lost = (counted & ~predicted.isfinite().all(dim=1)).nonzero().flatten()
    if len(lost):
        raise ValueError(f"the predicted box is not finite in {len(lost)} frames that count, the first being {lost[0]}")
    predicted, truth = predicted[counted].double(), truth[counted].double()
    away = box_centers(predicted) - box_centers(truth)
    thresholds = torch.arange(PIXELS, dtype=torch.float64, device=truth.device)
    # Whole numbers divided once: the nearest float64 to 0.05, 0.1 .., which steps of 0.05 added up are not.
    overlap = box_iou(predicted, truth)[:, None] > thresholds[:OVERLAPS] / (OVERLAPS - 1)
    near = away.norm(dim=1)[:, None] <= thresholds
    relatively_near = (away / truth[:, 2:]).norm(dim=1)[:, None] <= thresholds / 100
    return torch.cat((overlap, near, relatively_near), dim=1).double().mean(dim=0), len(truth)


def mean_track_scores(total: Tally, frames: int) -> TrackScores:
    """The scores of all that was added up; frames: how many count."""
    means = total.means()
    success, precision = means[:OVERLAPS], means[OVERLAPS : OVERLAPS + PIXELS]
    normalized = means[OVERLAPS + PIXELS :]
    return TrackScores(
        success=sum(success) / OVERLAPS,
        precision=precision[PRECISION_AT],
        normalized_precision=normalized[NORMALIZED_AT],
        normalized_precision_auc=sum(normalized) / FRACTIONS,
        success_curve=tuple(success),
        precision_curve=tuple(precision),
        sequences=int(total.counts[0]),
        frames=frames,
    )
