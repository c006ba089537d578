"""How long a run may go on, and when it must turn to its end to be over in time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

LAST_WORDS = 2.0
"""Seconds set aside for weights, the summary and the end of the process."""


class Budget:
    """steps: of the run's life; minutes: of this go, since `began` (time.monotonic()); None is no limit.

    What is done at the end is measured each time it is done, in `last`, seconds by name: so the end is reached in time
    by a run that has done it before.
    """

    def __init__(self, steps: int | None, minutes: float | None, began: float) -> None:
        self.steps, self.began = steps, began
        self.seconds = None if minutes is None else 60 * minutes
        self.last: dict[str, float] = {}

    def elapsed(self) -> float:
        """Seconds since the go began."""
        return time.monotonic() - self.began

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Remember how long this takes."""
        start = time.monotonic()
        yield
        self.last[what] = time.monotonic() - start

    def usable(self) -> float | None:
        """Seconds of the go that can be spent on training; None: all."""
        if self.seconds is None:
            return None
        return max(1e-9, self.seconds - LAST_WORDS - 1.5 * sum(self.last.values()))

    def spent(self, elapsed: float) -> float | None:
        """The share of the usable time that is over, 0 to 1; None where there is no limit."""
        usable = self.usable()
        return None if usable is None else min(1.0, elapsed / usable)

    def left(self, step: int, seconds_a_step: float) -> float | None:
        """Seconds until the first of the ends; None where there is none."""
        ends = []
        if self.steps is not None:
            ends.append((self.steps - step) * seconds_a_step)
        usable = self.usable()
        if usable is not None:
            ends.append(max(0.0, usable - self.elapsed()))
        return min(ends) if ends else None
