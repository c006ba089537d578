"""Drawing of a pair of crops."""

import torch

from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking.drawing import PREDICTION_COLOR, REFERENCE_COLOR, TRUTH_COLOR, draw_pair


def pairs(located: bool) -> TrackPairs:
    return TrackPairs(
        reference=torch.zeros(1, 3, 20, 20),
        reference_boxes=torch.tensor([[4.0, 5.0, 10.0, 8.0]]),
        search=torch.zeros(1, 3, 30, 30),
        boxes=torch.tensor([[10.0, 12.0, 6.0, 7.0]]),
        located=torch.tensor([located]),
        judged=torch.tensor([True]),
    )


def test_boxes_are_drawn_where_they_are_and_the_bar_is_as_long_as_the_score() -> None:
    sheet = draw_pair(pairs(True), torch.tensor([-5.0, 2.0, 9.0, 9.0, 0.5]))
    assert sheet.shape == (30, 50, 3)
    assert tuple(sheet[5, 4]) == tuple(sheet[12, 13]) == REFERENCE_COLOR
    assert tuple(sheet[12, 20 + 10]) == tuple(sheet[18, 20 + 15]) == TRUTH_COLOR
    assert tuple(sheet[2, 20]) == tuple(sheet[10, 20 + 3]) == PREDICTION_COLOR
    assert (sheet[-1, :10] == PREDICTION_COLOR).all() and (sheet[-1, 10:20] == 0).all()


def test_a_target_that_is_not_there_has_no_true_box() -> None:
    sheet = draw_pair(pairs(False), torch.tensor([40.0, 40.0, 9.0, 9.0, 0.0]))
    assert not (sheet == TRUTH_COLOR).all(axis=2).any()
