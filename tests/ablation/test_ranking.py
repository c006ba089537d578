"""Orders, compared by hand."""

import math

import pytest

from protoformer.ablation.summary import ordered_pairs, rank_correlation


def test_pairs_with_different_reference_values_are_compared() -> None:
    assert ordered_pairs([0.8, 0.7, 0.8], [5.0, 4.0, 3.0]) == [(1, 0, 1.0), (1, 2, -1.0)]
    assert ordered_pairs([1, 2], [4.0, 4.0]) == [(0, 1, 0.0)]  # a tie is no agreement


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [2, 1, 4, 3], 0.6),  # 1 - 6 * 4 / (4 * 15)
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5)),  # those that are equal share rank 2.5
    ],
)
def test_spearman_is_the_correlation_of_ranks(one: list[float], other: list[float], expected: float) -> None:
    assert rank_correlation(one, other) == pytest.approx(expected)


def test_constant_values_have_no_correlation() -> None:
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))
