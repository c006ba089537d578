"""What all `torchmetrics` classes here have in common."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from protoformer.training.task import Tally


class Averages(Metric):
    """What all metrics here are: columns that are averaged, each over the things that it was seen in.

    The states are sums, so that batches, processes and merged metrics add up; they live on the metric's device, where
    whatever is added is moved.
    """

    full_state_update = False
    is_differentiable = False

    sums: Tensor
    counts: Tensor

    def __init__(self, columns: int) -> None:
        # A cached result would outlive a merge of states, and dividing a few sums costs nothing.
        super().__init__(compute_with_cache=False)
        self.add_state("sums", torch.zeros(columns, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(columns, dtype=torch.int64), dist_reduce_fx="sum")

    def _wrap_compute(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        # torchmetrics copies the tensors in a result, looks for them in dataclasses too, and refuses frozen ones. The
        # scores are plain numbers: they pass it in a sealed box, which it leaves alone.
        sealed = super()._wrap_compute(lambda: _Sealed(compute()))

        @functools.wraps(compute)
        def scores() -> Any:
            return sealed().value

        return scores

    def add(self, tally: Tally) -> None:
        """Take in the rows of a tally."""
        total = tally.total()
        self.sums = self.sums + total.sums.to(self.sums.device)
        self.counts = self.counts + total.counts.to(self.counts.device)

    def total(self) -> Tally:
        """All that was added so far: columns."""
        return Tally(self.sums, self.counts)


class _Sealed:
    """A value that nothing looks into."""

    def __init__(self, value: object) -> None:
        self.value = value
