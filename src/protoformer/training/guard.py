"""Losses that are not finite: their steps are skipped and counted where they are computed, and too many stop a run."""

from dataclasses import dataclass

import torch
from torch import Tensor

ROW = 10
"""Steps in a row without a finite loss and gradient that stop a run."""


@dataclass(frozen=True)
class Counted:
    """What a guard has seen.

    good: steps since the last `clear` whose loss and gradient were finite. means: of the values of these steps, NaN if
    there were none. skipped: the other steps, in the run's life. fatal: the number of the first step of a row of ROW
    or more of them, or None.
    """

    good: int
    means: tuple[float, ...]
    skipped: int
    fatal: int | None


class Guard:
    """Counts steps, good and bad, in tensors on the device: nobody waits for it until somebody asks.

    values: how many numbers a step reports.
    """

    def __init__(self, values: int, device: torch.device) -> None:
        def whole(value: int) -> Tensor:
            return torch.full((), value, dtype=torch.int64, device=device)

        self.step, self.skipped, self.row = whole(0), whole(0), whole(0)
        self.first, self.fatal, self.good = whole(-1), whole(-1), whole(0)
        self.sums = torch.zeros(values, dtype=torch.float64, device=device)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a run needs to go on; not the row that stopped it, which whoever goes on has seen."""
        names = ("step", "skipped", "row", "first", "good", "sums")
        return {name: getattr(self, name) for name in names}

    @torch.no_grad()
    def note(self, bad: Tensor, values: Tensor) -> None:
        """One step: whether it was bad (scalar, 0 or 1), and its values."""
        is_bad = bad > 0
        self.first.copy_(torch.where(is_bad & (self.row == 0), self.step, self.first))
        self.row.copy_(torch.where(is_bad, self.row + 1, 0))
        self.fatal.copy_(torch.where((self.row >= ROW) & (self.fatal < 0), self.first, self.fatal))
        self.skipped += is_bad
        self.good += ~is_bad
        self.sums += torch.where(is_bad, 0.0, values.double())
        self.step += 1

    def end_row(self) -> None:
        """Begin a new row: whoever was told of this one may go on, and bear as many bad steps again."""
        self.row.zero_()

    def clear(self) -> None:
        """Begin a new mean."""
        self.good.zero_()
        self.sums.zero_()

    def counted(self, sums: Tensor | None = None) -> Counted:
        """What was seen, which waits for the device. sums: those of all processes, their mean, where there are more."""
        sums = self.sums if sums is None else sums
        good, skipped, fatal, *totals = torch.cat(
            (torch.stack((self.good, self.skipped, self.fatal)).double(), sums)
        ).tolist()
        means = tuple(total / good if good else float("nan") for total in totals)
        return Counted(int(good), means, int(skipped), None if fatal < 0 else int(fatal))

    def is_fatal(self) -> bool:
        """Whether a row stops the run; waits for the device."""
        return int(self.fatal) >= 0
