"""Base class of the `torchmetrics` metrics of all tasks."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from protoformer.viz.report import Tally


class Averages(Metric):
    """Metric that averages several columns, each over the samples that have it.

    The states are sums and counts, so that batches, processes and merged metrics can be added; they live on the
    metric's device.
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
        # torchmetrics copies tensors in a result, also inside dataclasses, and fails on frozen ones. Results here are
        # plain numbers, so they are wrapped in an object that it does not inspect.
        wrapped = super()._wrap_compute(lambda: _Opaque(compute()))

        @functools.wraps(compute)
        def compute_unwrapped() -> Any:
            return wrapped().value

        return compute_unwrapped

    def add(self, tally: Tally) -> None:
        """Add the rows of a tally."""
        total = tally.total()
        self.sums = self.sums + total.sums.to(self.sums.device)
        self.counts = self.counts + total.counts.to(self.counts.device)

    def total(self) -> Tally:
        """Return the sums of all rows added so far: columns."""
        return Tally(self.sums, self.counts)


class _Opaque:
    """Wraps a value so that torchmetrics does not inspect it."""

    def __init__(self, value: object) -> None:
        self.value = value
