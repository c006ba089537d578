"""Boxes that meet, and boxes that do not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoformer.geometry.boxes import box_centres, box_overlap


def overlap(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    boxes = torch.tensor([first, second], dtype=torch.float64)
    return box_overlap(boxes[0], boxes[1]).item()


def test_the_centre_is_half_a_size_from_the_corner() -> None:
    assert box_centres(torch.tensor([[10.0, 20.0, 4.0, 5.0]])).tolist() == [[12.0, 22.5]]


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
