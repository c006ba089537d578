"""What training makes small where a target is followed."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.boxes import box_edges, box_overlap, generalised_overlap
from protoformer.model.tracking import TrackPrediction
from protoformer.world import TrackPairs

DISTANCE, OVERLAP = 5.0, 2.0
"""Weights of |edges - truth|_1 and of 1 - generalised overlap, as published."""


@dataclass(frozen=True)
class TrackLoss:
    """Scalars. total: what to minimise. distance, overlap: means over stages of |edges - truth|_1, in sides of the
    search, and of 1 - generalised overlap. doubt: of the score, nats. iou: of the last box. right: share of the samples
    whose score says rightly whether the target is there.
    """

    total: Tensor
    distance: Tensor
    overlap: Tensor
    doubt: Tensor
    iou: Tensor
    right: Tensor


def track_loss(prediction: TrackPrediction, pairs: TrackPairs, targets: Tensor | None = None) -> TrackLoss:
    """5 L1 + 2 (1 - GIoU), a mean over stages and over targets that are located, and the score's cross-entropy.

    targets: scalar above 0, how many located targets to divide by instead of this batch's own. Processes that share a
    batch each take the mean of their counts: the mean of their losses is then that of the whole batch.
    """
    located, judged = pairs.located.float(), pairs.judged.float()
    targets = located.sum().clamp_min(1) if targets is None else targets
    side = pairs.search.shape[3]
    # Where nothing is located the truth may be anything; a box that is right adds nothing, and no gradient.
    truth = pairs.boxes.where(pairs.located[:, None], prediction.boxes[-1].detach()) / side
    distance = overlap = located.new_zeros(())
    for boxes in prediction.boxes:
        found = boxes / side
        distance = distance + ((box_edges(found) - box_edges(truth)).abs().sum(dim=1) * located).sum()
        overlap = overlap + ((1 - generalised_overlap(found, truth)) * located).sum()
    distance, overlap = (each / (targets * len(prediction.boxes)) for each in (distance, overlap))
    logits = prediction.score_logits.float()
    doubt = (F.binary_cross_entropy_with_logits(logits, located, reduction="none") * judged).sum()
    doubt = doubt / targets
    right = (((logits > 0) == pairs.located).float() * judged).sum() / judged.sum().clamp_min(1)
    iou = (box_overlap(prediction.boxes[-1].detach() / side, truth) * located).sum() / targets
    return TrackLoss(DISTANCE * distance + OVERLAP * overlap + doubt, distance, overlap, doubt, iou, right)
