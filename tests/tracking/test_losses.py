"""Tracking losses, compared with values computed by hand."""

import math

import pytest
import torch

from protoformer.models.heads.tracking import TrackingPrediction
from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking.losses import track_loss

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


def predicted(*stages: list[list[float]], logits: list[float]) -> TrackingPrediction:
    boxes = tuple(torch.tensor(stage, requires_grad=True) for stage in stages)
    return TrackingPrediction(boxes, torch.tensor(logits, requires_grad=True), torch.zeros(len(logits), 2, 4, 4))


def test_a_box_beside_the_truth_by_hand() -> None:
    """Edges (30, 0, 40, 10) against (0, 0, 10, 10): 60 px of distance, and a third of the way round is covered."""
    loss = track_loss(predicted([[30.0, 0, 10, 10]], logits=[0.0]), pairs([[0.0, 0, 10, 10]], [True]))
    assert loss.distance.item() == pytest.approx(0.6)
    assert loss.overlap.item() == pytest.approx(1.5)
    assert loss.score.item() == pytest.approx(math.log(2))
    assert loss.total.item() == pytest.approx(5 * 0.6 + 2 * 1.5 + math.log(2))
    assert loss.iou.item() == 0


def test_stages_and_targets_are_averaged() -> None:
    right, wrong = [0.0, 0, 10, 10], [10.0, 0, 10, 10]
    loss = track_loss(
        predicted([right, wrong], [right, right], logits=[30.0, 30.0]), pairs([right, right], [True, True])
    )
    assert loss.distance.item() == pytest.approx(0.2 / 4) and loss.overlap.item() == pytest.approx(1 / 4)
    assert loss.iou.item() == 1 and loss.accuracy.item() == 1
    assert loss.score.item() == pytest.approx(0, abs=1e-6)


def test_a_target_that_is_not_located_has_no_box_to_learn_and_still_a_score() -> None:
    prediction = predicted([[5.0, 5, 9, 9], [1.0, 1, 1, 1]], logits=[2.0, 2.0])
    loss = track_loss(prediction, pairs([[5.0, 5, 9, 9], [math.nan] * 4], [True, False]))
    loss.total.backward()
    assert loss.total.isfinite() and loss.accuracy.item() == 0.5
    assert prediction.boxes[0].grad is not None and prediction.boxes[0].grad[1].abs().max() == 0
    assert prediction.score_logits.grad is not None
    assert (prediction.score_logits.grad[0] < 0, prediction.score_logits.grad[1] > 0) == (True, True)


def test_targets_that_are_not_judged_do_not_count() -> None:
    prediction = predicted([[5.0, 5, 9, 9]], logits=[2.0])
    loss = track_loss(prediction, pairs([[5.0, 5, 90, 9]], [False], [False]))
    loss.total.backward()
    assert loss.total.item() == 0
    assert prediction.boxes[0].grad.abs().max() == 0 and prediction.score_logits.grad.abs().max() == 0


def test_a_box_beside_the_target_is_not_to_be_trusted() -> None:
    """Overlaps of 1, 0.3 and 0: the score is to be 1, 0.5 and 0, and what is not judged does not count."""
    truth = [[0.0, 0, 10, 10]] * 4
    result = [[0.0, 0, 10, 10], [0.0, 0, 3, 10], [50.0, 0, 10, 10], [0.0, 0, 10, 10]]
    prediction = predicted(result, logits=[1.0, 1.0, 1.0, 1.0])
    loss = track_loss(prediction, pairs(truth, [True, True, True, False], [True, True, True, False]))
    unlike, alike = math.log(1 + math.e), math.log(1 + 1 / math.e)
    assert loss.score.item() == pytest.approx((alike + (alike + unlike) / 2 + unlike) / 3)


def test_the_score_is_a_mean_over_what_is_judged() -> None:
    right = [0.0, 0, 10, 10]
    prediction = predicted([right] * 4, logits=[0.0] * 4)
    batch = pairs([right] * 4, [True, False, False, False], [True, True, True, False])
    assert track_loss(prediction, batch).score.item() == pytest.approx(math.log(2))
    shared = track_loss(prediction, batch, torch.tensor([1.0, 6.0]))
    assert shared.score.item() == pytest.approx(math.log(2) / 2)


def test_heat_belongs_at_the_true_corners() -> None:
    """Maps of 4 x 4 cells of 25 px: one corner in the middle of a cell, the other between four, one beyond the map."""
    heats = torch.full((1, 2, 4, 4), 1e-9)
    heats[0, 0, 0, 1] = 0.5
    heats[0, 1, 2:, 2:] = 0.25
    box = torch.tensor([[37.5, 12.5, 37.5, 62.5]], requires_grad=True)
    prediction = TrackingPrediction((box,), torch.zeros(1), heats.requires_grad_())
    truth = pairs([[37.5, 12.5, 37.5, 62.5]], [True])
    loss = track_loss(prediction, truth, corners=0.2)
    assert loss.corners.item() == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert loss.total.item() == pytest.approx(0.2 * loss.corners.item() + math.log(2), abs=1e-6)
    loss.total.backward()
    assert (heats.grad[0, 0, 0, 1] < 0) and (heats.grad[0, 1, 2:, 2:] < 0).all()
    beyond = track_loss(TrackingPrediction((box,), torch.zeros(1), heats), pairs([[-40.0, -9, 115.0, 84.0]], [True]))
    assert beyond.corners.item() == pytest.approx((math.log(1e9) + math.log(4)) / 2)
    nowhere = track_loss(TrackingPrediction((box,), torch.zeros(1), heats), pairs([[math.nan] * 4], [False]))
    assert nowhere.corners.item() == 0


def test_corners_that_crossed_are_drawn_apart() -> None:
    prediction = predicted([[50.0, 50, -20, -20]], logits=[0.0])
    track_loss(prediction, pairs([[40.0, 40, 20, 20]], [True])).total.backward()
    assert (prediction.boxes[0].grad[0, 2:] < 0).all()


def test_the_mean_may_be_over_the_targets_of_several_processes() -> None:
    prediction, truth = predicted([[30.0, 0, 10, 10]], logits=[1.0]), pairs([[0.0, 0, 10, 10]], [True])
    alone, shared = track_loss(prediction, truth), track_loss(prediction, truth, torch.tensor(4.0))
    assert shared.total.item() == pytest.approx(alone.total.item() / 4)
