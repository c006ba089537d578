"""How far two lists of figures agree on which things are better; less is better in both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Pair:
    """Two things, by their places in the lists, of which the first one is better by the reference.

    difference: how much more the other one has by our figures: negative where we find the order the other way round.
    """

    better: int
    worse: int
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether both lists have the same order."""
        return self.difference > 0


def ordered_pairs(reference: Sequence[float], ours: Sequence[float]) -> tuple[Pair, ...]:
    """Every pair of things that the reference tells apart."""
    found = []
    for one, other in combinations(range(len(reference)), 2):
        if reference[one] != reference[other]:
            better, worse = (one, other) if reference[one] < reference[other] else (other, one)
            found.append(Pair(better, worse, ours[worse] - ours[better]))
    return tuple(found)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: 1 for the same order, -1 for the opposite one; NaN where a list tells nothing apart."""
    first, second = _ranks(one), _ranks(other)
    middle = (len(first) + 1) / 2
    products = math.fsum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    squares = [math.fsum((each - middle) ** 2 for each in ranks) for ranks in (first, second)]
    return products / math.sqrt(squares[0] * squares[1]) if all(squares) else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the mean of theirs."""
    return [
        1 + sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]
