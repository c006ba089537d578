"""What training makes small where a target is followed."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.boxes import box_edges, box_iou, generalized_iou
from protoformer.models.heads.tracking import TrackPrediction
from protoformer.synthetic.samples import TrackPairs

DISTANCE, OVERLAP = 5.0, 2.0
"""Weights of |edges - truth|_1 and of 1 - generalized overlap, as published."""
WRONG, RIGHT = 0.1, 0.5
"""Overlaps of the last box with the target: up to the first its score should be 0, from the second on 1."""


@dataclass(frozen=True)
class TrackLoss:
    """Scalars. total: what to minimize. distance, overlap: means over stages of |edges - truth|_1, in sides of the
    search, and of 1 - generalized overlap. corners: of a heat map, nats. doubt: of the score, nats. iou: of the last
    box. right: share of the samples whose score says rightly whether the target is there.
    """

    total: Tensor
    distance: Tensor
    overlap: Tensor
    corners: Tensor
    doubt: Tensor
    iou: Tensor
    right: Tensor


def track_loss(
    prediction: TrackPrediction, pairs: TrackPairs, targets: Tensor | None = None, corners: float = 0.0
) -> TrackLoss:
    """5 L1 + 2 (1 - GIoU), a mean over stages and over targets that are located, and the score's cross-entropy.

    The score is to say that the target is there and that the last box is on it. targets: two numbers above 0 (or one
    for both), how many located targets and how many judged ones to divide by instead of this batch's own. Processes
    that share a batch each take the mean of their counts: the mean of their losses is then that of the whole batch.
    corners: weight of the cross-entropy of both heat maps at the true corners of located targets.
    """
    located, judged = pairs.located.float(), pairs.judged.float()
    targets = targets_of(pairs.located, pairs.judged).clamp_min(1) if targets is None else targets
    found_count, judged_count = targets.expand(2)
    side = pairs.search.shape[3]
    # Where nothing is located the truth may be anything; a box that is right adds nothing, and no gradient.
    truth = pairs.boxes.where(pairs.located[:, None], prediction.boxes[-1].detach()) / side
    distance = overlap = located.new_zeros(())
    for boxes in prediction.boxes:
        found = boxes / side
        distance = distance + ((box_edges(found) - box_edges(truth)).abs().sum(dim=1) * located).sum()
        overlap = overlap + ((1 - generalized_iou(found, truth)) * located).sum()
    distance, overlap = (each / (found_count * len(prediction.boxes)) for each in (distance, overlap))
    surprise = (_surprise(prediction.heats, truth) * located).sum() / found_count
    logits, met = prediction.score_logits.float(), box_iou(prediction.boxes[-1].detach() / side, truth)
    hit = located * ((met - WRONG) / (RIGHT - WRONG)).clamp(0, 1)
    doubt = (F.binary_cross_entropy_with_logits(logits, hit, reduction="none") * judged).sum() / judged_count
    right = (((logits > 0) == pairs.located).float() * judged).sum() / judged.sum().clamp_min(1)
    total = DISTANCE * distance + OVERLAP * overlap + corners * surprise + doubt
    return TrackLoss(total, distance, overlap, surprise, doubt, (met * located).sum() / found_count, right)


def targets_of(located: Tensor, judged: Tensor) -> Tensor:
    """How many targets of a batch are located, and how many judged: 2, float."""
    return torch.stack((located.sum(), judged.sum())).float()


def _surprise(heats: Tensor, truth: Tensor) -> Tensor:
    """Cross-entropy, nats, of heats, N x 2 x h x w, at the corners of boxes, N x 4, in sides: N, the mean of both.

    A corner is shared by the four cells around it as bilinear weights are; one beyond the map lies at its border.
    """
    height, width = heats.shape[2:]
    x, y = box_edges(truth).unflatten(1, (2, 2)).unbind(dim=2)  # N x corner
    across, down = _shares(x, width), _shares(y, height)
    # Of what a softmax rounds to 0, too, the logarithm is finite.
    logs = heats.float().clamp_min(1e-30).log()
    return -(down[..., None] * logs * across[..., None, :]).sum(dim=(2, 3)).mean(dim=1)


def _shares(places: Tensor, count: int) -> Tensor:
    """Places, in lengths of a row of so many cells: the share of every cell, ... x count."""
    cells = (places * count - 0.5).clamp(0, count - 1)[..., None]
    return (1 - (cells - torch.arange(count, device=places.device)).abs()).clamp_min(0)
