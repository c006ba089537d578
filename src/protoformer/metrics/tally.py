"""Sums and counts: all that a mean needs, whatever order, batch or process its parts come in."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tally:
    """Sums of several scores and the numbers of things they were summed over: N x columns, float64 and int64."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def of_rows(cls, rows: Tensor) -> "Tally":
        """One row of scores a sample, N x columns; NaN where a sample does not have that score."""
        known = ~rows.isnan()
        return cls(torch.where(known, rows, 0.0).double(), known.long())

    def total(self) -> "Tally":
        """The N rows added up: columns."""
        return Tally(self.sums.sum(dim=0), self.counts.sum(dim=0))

    def means(self) -> list[float]:
        """Each sum over its count; NaN where nothing was counted. For a total only."""
        means: list[float] = (self.sums / self.counts).tolist()
        return means
