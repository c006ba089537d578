"""What tracking makes small, against sums done by hand."""

import math

import pytest
import torch

from protoformer.model import TrackPrediction
from protoformer.training import track_loss
from protoformer.world import TrackPairs

SIDE = 100


def pairs(boxes: list[list[float]], located: list[bool], judged: list[bool] | None = None) -> TrackPairs:
    count = len(boxes)
    return TrackPairs(
        reference=torch.zeros(count, 3, 8, 8),
        reference_boxes=torch.zeros(count, 4),
        search=torch.zeros(count, 3, SIDE, SIDE),
        boxes=torch.tensor(boxes),
        located=torch.tensor(located),
        judged=torch.tensor(judged or [True] * count),
    )


def predicted(*stages: list[list[float]], logits: list[float]) -> TrackPrediction:
    boxes = tuple(torch.tensor(stage, requires_grad=True) for stage in stages)
    return TrackPrediction(boxes, torch.tensor(logits, requires_grad=True), torch.zeros(len(logits), 2, 4, 4))


def test_a_box_beside_the_truth_by_hand() -> None:
    """Edges (30, 0, 40, 10) against (0, 0, 10, 10): 60 px of distance, and a third of the way round is covered."""
    loss = track_loss(predicted([[30.0, 0, 10, 10]], logits=[0.0]), pairs([[0.0, 0, 10, 10]], [True]))
    assert loss.distance.item() == pytest.approx(0.6)
    assert loss.overlap.item() == pytest.approx(1.5)
    assert loss.doubt.item() == pytest.approx(math.log(2))
    assert loss.total.item() == pytest.approx(5 * 0.6 + 2 * 1.5 + math.log(2))
    assert loss.iou.item() == 0


def test_stages_and_targets_are_averaged() -> None:
    right, wrong = [0.0, 0, 10, 10], [10.0, 0, 10, 10]
    loss = track_loss(
        predicted([right, wrong], [right, right], logits=[30.0, 30.0]), pairs([right, right], [True, True])
    )
    assert loss.distance.item() == pytest.approx(0.2 / 4) and loss.overlap.item() == pytest.approx(1 / 4)
    assert loss.iou.item() == 1 and loss.right.item() == 1
    assert loss.doubt.item() == pytest.approx(0, abs=1e-6)


def test_a_target_that_is_not_located_has_no_box_to_learn_and_still_a_score() -> None:
    prediction = predicted([[5.0, 5, 9, 9], [1.0, 1, 1, 1]], logits=[2.0, 2.0])
    loss = track_loss(prediction, pairs([[5.0, 5, 9, 9], [math.nan] * 4], [True, False]))
    loss.total.backward()
    assert loss.total.isfinite() and loss.right.item() == 0.5
    assert prediction.boxes[0].grad is not None and prediction.boxes[0].grad[1].abs().max() == 0
    assert prediction.score_logits.grad is not None
    assert (prediction.score_logits.grad[0] < 0, prediction.score_logits.grad[1] > 0) == (True, True)


def test_what_nobody_can_judge_counts_for_nothing() -> None:
    prediction = predicted([[5.0, 5, 9, 9]], logits=[2.0])
    loss = track_loss(prediction, pairs([[5.0, 5, 90, 9]], [False], [False]))
    loss.total.backward()
    assert loss.total.item() == 0
    assert prediction.boxes[0].grad.abs().max() == 0 and prediction.score_logits.grad.abs().max() == 0


def test_corners_that_crossed_are_drawn_apart() -> None:
    prediction = predicted([[50.0, 50, -20, -20]], logits=[0.0])
    track_loss(prediction, pairs([[40.0, 40, 20, 20]], [True])).total.backward()
    assert (prediction.boxes[0].grad[0, 2:] < 0).all()


def test_the_mean_may_be_over_the_targets_of_several_processes() -> None:
    prediction, truth = predicted([[30.0, 0, 10, 10]], logits=[1.0]), pairs([[0.0, 0, 10, 10]], [True])
    alone, shared = track_loss(prediction, truth), track_loss(prediction, truth, torch.tensor(4.0))
    assert shared.total.item() == pytest.approx(alone.total.item() / 4)
