"""Partitions of an image, by hand."""

import torch

from protoformer.geometry.regions import (
    UNASSIGNED,
    adjacent_pairs,
    around,
    connected_components,
    distinct_pairs,
    merge_linked_labels,
    relabel_by_size,
    warp_labels,
)


def test_a_label_that_lies_in_two_places_is_two_pieces() -> None:
    labels = torch.tensor([[7, 7, 3, 7], [3, 3, 3, 7], [7, 3, 3, 3]])
    assert connected_components(labels).tolist() == [[0, 0, 1, 2], [1, 1, 1, 2], [3, 1, 1, 1]]


def test_corners_do_not_hold_together() -> None:
    assert connected_components(torch.eye(3).long()).tolist() == [[0, 1, 1], [2, 3, 1], [2, 2, 4]]


def test_a_spiral_is_one_piece() -> None:
    wall = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]])
    assert len(connected_components(wall).unique()) == 2


def test_pieces_end_where_values_jump() -> None:
    values = torch.tensor([[[0.0, 0.4, 0.8, 2.0, 2.1]]])
    assert connected_components(torch.zeros(1, 5).long(), values, 0.5).tolist() == [[0, 0, 0, 1, 1]]


def test_what_is_linked_through_others_is_linked() -> None:
    assert merge_linked_labels(6, torch.tensor([[5, 4, 1], [4, 2, 3]])).tolist() == [0, 1, 2, 1, 2, 2]


def test_labels_touch_by_sides() -> None:
    assert adjacent_pairs(torch.tensor([[0, 1], [2, 0]])).T.tolist() == [[0, 1], [0, 2]]
    assert distinct_pairs(torch.tensor([[3, 1, 2, 1], [1, 3, 2, 0]]), 4).T.tolist() == [[0, 1], [1, 3]]


def test_the_largest_is_first_and_of_equals_that_which_begins_first() -> None:
    assert relabel_by_size(torch.tensor([[9, 4, 4], [2, 5, 5], [5, 0, 0]])).tolist() == [
        [3, 1, 1],
        [4, 0, 0],
        [0, 2, 2],
    ]


def test_parts_move_with_the_flow_and_keep_every_pixel() -> None:
    labels = torch.zeros(12, 16).long()
    labels[4:8, 2:8] = 1
    flow = torch.zeros(2, 12, 16)
    flow[0, labels == 1] = 5.0
    hidden = torch.where(labels == 1, 0.0, 0.1)  # the thing looks the same where it arrives; what it hides does not
    moved = warp_labels(labels, flow, hidden)
    expected = torch.zeros(12, 16).long()
    expected[4:8, 2:7] = UNASSIGNED
    expected[4:8, 7:13] = 1
    corners = around(expected).ne(expected.flatten()).sum(dim=0).view(12, 16) >= 4  # which a vote may round
    assert torch.equal(moved[~corners], expected[~corners])
    behind = warp_labels(labels, flow, 0.1 - hidden)
    assert not (behind[:, 8:] == 1).any()  # as the background looks the same, the thing went behind it


def test_gaps_in_what_nears_are_closed() -> None:
    labels = torch.zeros(9, 9).long()
    flow = torch.stack(((torch.arange(9.0) - 4).expand(9, 9) * 0.25, torch.zeros(9, 9)))
    assert (warp_labels(labels, flow, torch.zeros(9, 9)) == 0).all()
