"""Whoever watches a run: the loop tells, and knows nothing of bars, boards and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protoformer.training.task import Validated


@dataclass(frozen=True)
class Progress:
    """The means over the steps since the last one of these.

    step: steps done. loss: None if none of the steps had a finite one. metrics: the task's, by name. rate: the learning
    rate. samples_per_second: of all processes, while they trained. seconds: training time in the run's life.
    data_share: of that time, spent waiting for data. skipped, broken: steps and samples passed over in the run's life.
    memory: the most that was taken on a GPU, bytes. left: seconds until the run's end, as far as it can be known.
    """

    step: int
    loss: float | None
    metrics: dict[str, float]
    rate: float
    samples_per_second: float
    seconds: float
    data_share: float
    skipped: int
    broken: int
    memory: int | None
    left: float | None


class Observer:
    """Does nothing; those who watch say what they want to see. Only the first of several processes tells."""

    def started(self, step: int, steps: int | None) -> None:
        """A go begins at this step; steps: the run's end, if there is one."""

    def logged(self, progress: Progress) -> None:
        """Every `log_every` steps."""

    def validated(self, step: int, found: Validated) -> None:
        """The average of the weights was judged."""

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """A held-out sample and what the network makes of it: uint8 H x W x 3."""

    def saved(self, step: int, path: Path) -> None:
        """A checkpoint was written."""

    def noted(self, sentence: str) -> None:
        """Something that a person should know."""

    def ended(self, step: int) -> None:
        """The go is over, whatever ended it."""


class Observers(Observer):
    """Tells each of several."""

    def __init__(self, each: Sequence[Observer]) -> None:
        self.each = tuple(each)

    def started(self, step: int, steps: int | None) -> None:
        """Tell each."""
        for one in self.each:
            one.started(step, steps)

    def logged(self, progress: Progress) -> None:
        """Tell each."""
        for one in self.each:
            one.logged(progress)

    def validated(self, step: int, found: Validated) -> None:
        """Tell each."""
        for one in self.each:
            one.validated(step, found)

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Tell each."""
        for one in self.each:
            one.pictured(step, name, pixels)

    def saved(self, step: int, path: Path) -> None:
        """Tell each."""
        for one in self.each:
            one.saved(step, path)

    def noted(self, sentence: str) -> None:
        """Tell each."""
        for one in self.each:
            one.noted(sentence)

    def ended(self, step: int) -> None:
        """Tell each."""
        for one in self.each:
            one.ended(step)
