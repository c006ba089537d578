"""Steps that teach nothing are skipped, and counted where they are computed: too many that are not finite stop a run.

A step teaches nothing if its loss or gradient is not finite, or if its batch has no valid target, such as a pixel whose
motion is known.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ROW = 10
"""Steps in a row without a finite loss and gradient that stop a run."""


@dataclass(frozen=True)
class Counted:
    """What a guard has seen.

    good: steps since the last `clear` that had a target, and whose loss and gradient were finite. means: of the values
    of these steps, NaN if there were none. In the run's life: skipped, steps that were not finite; empty, others that
    had no valid target; learned, the rest, which changed the weights. fatal: the number of the first step of a row of
    ROW or more that were not finite, or None.
    """

    good: int
    means: tuple[float, ...]
    skipped: int
    fatal: int | None
    empty: int = 0
    learned: int = 0


class Guard:
    """Counts steps, good and bad, in tensors on the device: nobody waits for it until somebody asks.

    values: how many numbers a step reports.
    """

    def __init__(self, values: int, device: torch.device) -> None:
        def whole(value: int) -> Tensor:
            return torch.full((), value, dtype=torch.int64, device=device)

        self.step, self.skipped, self.row = whole(0), whole(0), whole(0)
        self.first, self.fatal, self.good = whole(-1), whole(-1), whole(0)
        self.empty, self.learned = whole(0), whole(0)
        self.sums = torch.zeros(values, dtype=torch.float64, device=device)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a run needs to go on; not the row that stopped it, which whoever goes on has seen."""
        names = ("step", "skipped", "row", "first", "good", "sums", "empty", "learned")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def completed(state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add what states of earlier versions lack, who took every finite step for one that taught something."""
        if "step" not in state or "skipped" not in state:
            return state
        return {"empty": torch.zeros_like(state["step"]), "learned": state["step"] - state["skipped"], **state}

    @torch.no_grad()
    def note(self, bad: Tensor, values: Tensor, empty: Tensor | None = None) -> None:
        """One step: whether it was not finite, its values, and whether it had no valid target (scalars, 0 or 1)."""
        is_bad = bad > 0
        is_empty = torch.zeros_like(is_bad) if empty is None else (empty > 0) & ~is_bad
        taught = ~(is_bad | is_empty)
        self.first.copy_(torch.where(is_bad & (self.row == 0), self.step, self.first))
        self.row.copy_(torch.where(is_bad, self.row + 1, 0))
        self.fatal.copy_(torch.where((self.row >= ROW) & (self.fatal < 0), self.first, self.fatal))
        self.skipped += is_bad
        self.empty += is_empty
        self.learned += taught
        self.good += taught
        self.sums += torch.where(taught, values.double(), 0.0)
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
        counts = torch.stack((self.good, self.skipped, self.fatal, self.empty, self.learned))
        good, skipped, fatal, empty, learned, *totals = torch.cat((counts.double(), sums)).tolist()
        means = tuple(total / good if good else float("nan") for total in totals)
        return Counted(int(good), means, int(skipped), None if fatal < 0 else int(fatal), int(empty), int(learned))

    def is_fatal(self) -> bool:
        """Whether a row stops the run; waits for the device."""
        return int(self.fatal) >= 0
