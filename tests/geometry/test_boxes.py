"""Boxes that meet, and boxes that do not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoformer.geometry.regions import (
    box_centers,
    box_edges,
    box_from_edges,
    box_iou,
    clip_boxes,
    enlarge_boxes,
    generalized_iou,
)


def overlap(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    boxes = torch.tensor([first, second], dtype=torch.float64)
    return box_iou(boxes[0], boxes[1]).item()


def test_the_center_is_half_a_size_from_the_corner() -> None:
    assert box_centers(torch.tensor([[10.0, 20.0, 4.0, 5.0]])).tolist() == [[12.0, 22.5]]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((0, 0, 10, 10), 1.0),
        ((5, 0, 10, 10), 50 / 150),
        ((5, 5, 10, 10), 25 / 175),
        ((2, 3, 5, 4), 20 / 100),
        ((10, 0, 10, 10), 0.0),
        ((30, 30, 10, 10), 0.0),
        ((5, 5, 0, 0), 0.0),
        ((5, 5, -3, -3), 0.0),
    ],
)
def test_the_overlap_is_what_they_share_of_what_they_cover(second: tuple[float, ...], expected: float) -> None:
    assert overlap((0, 0, 10, 10), second) == pytest.approx(expected, abs=1e-15)
    assert overlap(second, (0, 0, 10, 10)) == pytest.approx(expected, abs=1e-15)


def test_two_boxes_without_area_do_not_overlap() -> None:
    assert overlap((5, 5, 0, 0), (5, 5, 0, 0)) == 0


COORDINATE = st.floats(-1e3, 1e3)
SIZE = st.floats(1e-2, 1e3)


@given(st.tuples(COORDINATE, COORDINATE, SIZE, SIZE))
def test_a_box_overlaps_itself_by_one_and_never_more(box: tuple[float, ...]) -> None:
    assert 1 - 1e-9 < overlap(box, box) <= 1


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((0, 0, 10, 10), 1.0),
        ((5, 0, 10, 10), 50 / 150),  # the box around both is their union
        ((5, 5, 10, 10), 25 / 175 - 50 / 225),
        ((10, 0, 10, 10), 0.0),
        ((30, 0, 10, 10), -200 / 400),
        ((30, 30, 10, 10), 200 / 1600 - 1),
        ((5, 5, 0, 0), 0.0),
        ((20, 0, -5, 10), -100 / 200),  # it has no extent, but a corner
    ],
)
def test_the_generalized_overlap_also_counts_what_lies_between(second: tuple[float, ...], expected: float) -> None:
    boxes = torch.tensor([(0, 0, 10, 10), second], dtype=torch.float64)
    assert generalized_iou(boxes[0], boxes[1]).item() == pytest.approx(expected, abs=1e-12)
    assert generalized_iou(boxes[1], boxes[0]).item() == pytest.approx(expected, abs=1e-12)


def test_a_box_far_away_is_drawn_nearer() -> None:
    box = torch.tensor([30.0, 0.0, 10.0, 10.0], requires_grad=True)
    generalized_iou(box, torch.tensor([0.0, 0.0, 10.0, 10.0])).backward()
    assert box.grad is not None and box.grad[0] < 0


@given(st.lists(st.floats(-50, 50), min_size=8, max_size=8))
def test_the_generalized_overlap_lies_between_its_bounds_and_never_above_the_overlap(values: list[float]) -> None:
    first, second = torch.tensor(values, dtype=torch.float64).view(2, 4)
    result = generalized_iou(first, second).item()
    assert -1 - 1e-9 <= result <= box_iou(first, second).item() + 1e-9


def test_edges_are_undone() -> None:
    boxes = torch.tensor([[1.0, 2.0, 3.0, -4.0]])
    assert box_edges(boxes).tolist() == [[1, 2, 4, -2]]
    assert torch.equal(box_from_edges(box_edges(boxes)), boxes)


def test_a_box_grows_about_its_center() -> None:
    assert enlarge_boxes(torch.tensor([[10.0, 20.0, 4.0, 6.0]]), 2.0).tolist() == [[8, 17, 8, 12]]


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((-2, -3, 4, 5), (0, 0, 2, 2)),
        ((18, 8, 9, 9), (18, 8, 2, 2)),
        ((30, 4, 5, 2), (20, 4, 0, 2)),
        ((-9, -9, 99, 99), (0, 0, 20, 10)),
    ],
)
def test_a_box_is_cut_to_the_image(box: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert clip_boxes(torch.tensor([box]).float(), 20, 10).tolist() == [list(expected)]
