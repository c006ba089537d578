"""Where the time of training goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pace:
    """Time since the last `clear`, spent waiting for data and working, and all of it in the run's life, seconds.

    What is not training (saving, validating) is not in it.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.waited, self.worked = seconds, 0.0, 0.0
        self.steps = 0

    def clear(self) -> None:
        """Begin a new window."""
        self.seconds = self.life()
        self.waited = self.worked = 0.0
        self.steps = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For data."""
        start = time.perf_counter()
        yield
        self.waited += time.perf_counter() - start

    @contextmanager
    def working(self) -> Iterator[None]:
        """On a step, or for its figures: a GPU's work is done when they are there."""
        start = time.perf_counter()
        yield
        self.worked += time.perf_counter() - start

    def of_a_step(self) -> float:
        """Seconds a step takes, in this window; 0 before the first."""
        return (self.waited + self.worked) / max(1, self.steps)

    def life(self) -> float:
        """Seconds of training in the run's life."""
        return self.seconds + self.waited + self.worked
