"""Loss functions for tracking."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.regions import box_edges, box_iou, generalized_iou
from protoformer.models.heads.tracking import TrackingPrediction
from protoformer.synthetic.samples import TrackPairs

L1_WEIGHT, GIOU_WEIGHT = 5.0, 2.0
"""Weights of |edges - truth|_1 and of 1 - GIoU, as published."""
NEGATIVE_IOU, POSITIVE_IOU = 0.1, 0.5
"""IoU of the last box with the target up to which the target score is 0, and from which on it is 1."""


@dataclass(frozen=True)
class TrackLoss:
    """Scalar losses and metrics of a batch.

    Attributes:
        total: Loss to minimize.
        distance: Mean over stages of |edges - truth|_1, in sides of the search crop.
        overlap: Mean over stages of 1 - GIoU.
        corners: Cross-entropy of the corner heat maps, nats.
        score: Cross-entropy of the score, nats.
        iou: Mean IoU of the last box.
        accuracy: Accuracy of the score as a classifier of the target's presence.
    """

    total: Tensor
    distance: Tensor
    overlap: Tensor
    corners: Tensor
    score: Tensor
    iou: Tensor
    accuracy: Tensor


def track_loss(
    prediction: TrackingPrediction, pairs: TrackPairs, targets: Tensor | None = None, corners: float = 0.0
) -> TrackLoss:
    """Compute 5 L1 + 2 (1 - GIoU), averaged over stages and located targets, plus the cross-entropy of the score.

    The target of the score is 1 where the target is present and the last box lies on it.

    Args:
        prediction: Output of the network for N pairs.
        pairs: N pairs with true boxes.
        targets: Two numbers above 0 (or one for both): counts of located and of judged targets to divide by instead of
            those of this batch. Processes that share a batch each pass the mean of their counts, so that the mean of
            their losses is that of the whole batch.
        corners: Weight of the cross-entropy of both heat maps at the true corners of located targets.

    Returns:
        The loss and its parts.
    """
    located, judged = pairs.located.float(), pairs.judged.float()
    targets = targets_of(pairs.located, pairs.judged).clamp_min(1) if targets is None else targets
    num_located, num_judged = targets.expand(2)
    side = pairs.search.shape[3]
    # The true box of a target that is not located is arbitrary; the prediction itself has zero loss and no gradient.
    truth = pairs.boxes.where(pairs.located[:, None], prediction.boxes[-1].detach()) / side
    distance = overlap = located.new_zeros(())
    for stage_boxes in prediction.boxes:
        boxes = stage_boxes / side
        distance = distance + ((box_edges(boxes) - box_edges(truth)).abs().sum(dim=1) * located).sum()
        overlap = overlap + ((1 - generalized_iou(boxes, truth)) * located).sum()
    distance, overlap = (each / (num_located * len(prediction.boxes)) for each in (distance, overlap))
    corner_nll = (_corner_nll(prediction.heatmaps, truth) * located).sum() / num_located
    logits, iou = prediction.score_logits.float(), box_iou(prediction.boxes[-1].detach() / side, truth)
    score_target = located * ((iou - NEGATIVE_IOU) / (POSITIVE_IOU - NEGATIVE_IOU)).clamp(0, 1)
    score_loss = (
        F.binary_cross_entropy_with_logits(logits, score_target, reduction="none") * judged
    ).sum() / num_judged
    accuracy = (((logits > 0) == pairs.located).float() * judged).sum() / judged.sum().clamp_min(1)
    total = L1_WEIGHT * distance + GIOU_WEIGHT * overlap + corners * corner_nll + score_loss
    return TrackLoss(total, distance, overlap, corner_nll, score_loss, (iou * located).sum() / num_located, accuracy)


def targets_of(located: Tensor, judged: Tensor) -> Tensor:
    """Count the located and the judged targets of a batch: 2, float."""
    return torch.stack((located.sum(), judged.sum())).float()


def _corner_nll(heats: Tensor, truth: Tensor) -> Tensor:
    """Compute the cross-entropy of corner heat maps, N x 2 x h x w, averaged over both corners: N, nats.

    A corner of the true boxes, N x 4 in sides of the search crop, is distributed over the four cells around it with
    bilinear weights; one outside the map is clamped to its border.
    """
    height, width = heats.shape[2:]
    x, y = box_edges(truth).unflatten(1, (2, 2)).unbind(dim=2)  # N x corner
    weights_x, weights_y = _cell_weights(x, width), _cell_weights(y, height)
    # The logarithm stays finite where a softmax underflows to 0.
    logs = heats.float().clamp_min(1e-30).log()
    return -(weights_y[..., None] * logs * weights_x[..., None, :]).sum(dim=(2, 3)).mean(dim=1)


def _cell_weights(positions: Tensor, count: int) -> Tensor:
    """Return linear weights of `count` cells, ... x count, for positions in lengths of the row."""
    cells = (positions * count - 0.5).clamp(0, count - 1)[..., None]
    return (1 - (cells - torch.arange(count, device=positions.device)).abs()).clamp_min(0)
