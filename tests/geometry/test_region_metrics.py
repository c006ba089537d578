"""Regions against true parts, by hand."""

import math

import pytest
import torch

from protoformer.geometry.regions import boundaries, join_order, owners
from protoformer.geometry.warps import cell_of_pixel
from region_metrics import adjusted_rand_index, best_merge, boundary_fraction, boundary_recall


def quarters(side: int = 8) -> torch.Tensor:
    return cell_of_pixel((side, side), (2, 2)).view(side, side)


def test_the_numbering_of_parts_does_not_matter() -> None:
    truth = quarters()
    assert adjusted_rand_index(7 - 3 * truth, truth) == pytest.approx(1)


def test_the_index_of_a_known_pair_of_partitions() -> None:
    # Of 15 pairs 4 are together in ours, 4 in theirs, 2 in both; by chance it would be 4 * 4 / 15.
    own, expected = torch.tensor([[0, 0, 0, 1, 1, 2]]), torch.tensor([[0, 0, 1, 1, 1, 2]])
    assert adjusted_rand_index(own, expected) == pytest.approx((2 - 16 / 15) / (4 - 16 / 15))


def test_random_labels_score_zero_and_one_part_agrees_with_one_part() -> None:
    random = torch.Generator().manual_seed(0)
    own, expected = torch.randint(0, 5, (2, 200, 200), generator=random)
    assert adjusted_rand_index(own, expected) == pytest.approx(0, abs=0.001)
    assert adjusted_rand_index(torch.zeros(3, 3).long(), torch.ones(3, 3).long()) == 1


def test_only_what_counts_is_counted() -> None:
    truth, own = quarters(), quarters()
    own[0, 0] = 3
    assert adjusted_rand_index(own, truth) < 1
    counted = torch.ones(8, 8, dtype=torch.bool)
    counted[0, 0] = False
    assert adjusted_rand_index(own, truth, counted) == pytest.approx(1)
    with pytest.raises(ValueError, match="cannot be compared"):
        adjusted_rand_index(own, truth[:4])


def test_boundaries_lie_to_the_left_of_and_above_a_change() -> None:
    edge = boundaries(quarters(4))
    assert edge.tolist() == [[x == 1 or y == 1 for x in range(4)] for y in range(4)]
    assert boundary_fraction(quarters(4)) == 7 / 16


@pytest.mark.parametrize(("shift", "recall"), [(0, 1.0), (2, 1.0), (3, 0.0)])
def test_a_boundary_is_found_within_two_pixels(shift: int, recall: float) -> None:
    truth = (torch.arange(20) >= 10).long().expand(20, 20)
    result = (torch.arange(20) >= 10 + shift).long().expand(20, 20)
    assert boundary_recall(result, truth) == recall


def test_without_true_boundaries_there_is_no_recall() -> None:
    assert math.isnan(boundary_recall(quarters(), torch.zeros(8, 8).long()))


def test_small_cells_can_be_joined_into_the_truth_by_who_knows_it() -> None:
    truth = quarters()
    fine = cell_of_pixel((8, 8), (4, 4)).view(8, 8)
    assert adjusted_rand_index(fine, truth) < 0.5
    assert adjusted_rand_index(best_merge(fine, truth), truth) == pytest.approx(1)


def test_joins_begin_with_what_is_nearest_and_smallest() -> None:
    means, sizes = torch.tensor([[0.0], [1.0], [5.0], [5.5]]), torch.tensor([1, 1, 100, 100])
    order = join_order(means, sizes)
    assert order == [(0, 1), (2, 3), (0, 2)]  # 1/2 against 0.25 * 50
    assert owners(4, order[:2]).tolist() == [0, 0, 2, 2]
