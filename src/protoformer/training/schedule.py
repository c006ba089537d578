"""The learning rate as a share of its peak: a pure function of how far a run is."""

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from protoformer.errors import InputError
from protoformer.training.recipe import ScheduleSection


@dataclass(frozen=True)
class Position:
    """How far a run is.

    step: steps done. steps: of how many in the run's life, or None if nobody said. spent: the share of this go's time
    that is over, or of the run's where its goes share it, 0 to 1, or None if it has no limit. began: steps
    done when this go began.
    """

    step: int
    steps: int | None
    spent: float | None = None
    began: int = 0


def one_cycle(step: int, steps: int, warm_up: float = 0.05) -> float:
    """The share of the peak rate at a step: a straight rise over `warm_up` of the steps, then down to nothing."""
    rise = max(1, round(warm_up * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def lr_factor(schedule: ScheduleSection, reached: Position) -> float:
    """The share of the highest rate that the next step takes, 0 to 1; a fall ends at the schedule's floor.

    "one_cycle" goes by steps alone. The fall of "constant" is over the last of the run's steps; in a go that has a
    limit of time, a share is one of that time, or of the go's steps, whichever ends first. Such a run, stopped and
    resumed, is not the same as one that is not.
    """
    if schedule.kind == "one_cycle":
        if reached.steps is None:
            raise InputError("a schedule of one_cycle needs to know where it ends; give --steps.")
        share = schedule.warm_up if schedule.warm_up < 1 else schedule.warm_up / reached.steps
        rising = reached.step < max(1, round(share * reached.steps))
        cycle = one_cycle(min(reached.step, reached.steps), reached.steps, share)
        return cycle if rising else _floored(cycle, schedule.floor)
    return min(_rise(schedule.warm_up, reached), _floored(_fall(schedule.decay, reached), schedule.floor))


def _floored(share: float, floor: float) -> float:
    return floor + (1 - floor) * share


def _rise(warm_up: float, reached: Position) -> float:
    if warm_up == 0:
        return 1.0
    if warm_up >= 1:
        return min(1.0, (reached.step + 1) / warm_up)
    if reached.steps is None:
        raise InputError(
            f"schedule.warm_up is {warm_up:g} of the steps, and nobody said how many these are; "
            "give --steps, or the warm-up as a number of steps."
        )
    return min(1.0, (reached.step + 1) / max(1, round(warm_up * reached.steps)))


def _fall(decay: float, reached: Position) -> float:
    """1, and over the last `decay` of the run, or of a go with a limit of time, straight down to 0."""
    if decay == 0:
        return 1.0
    if reached.spent is not None and decay < 1:
        return min(1.0, max(0.0, 1 - _gone(reached, reached.spent)) / decay)
    if reached.steps is None:
        raise InputError(
            "a schedule that decays needs an end; give --steps, or --minutes and schedule.decay as a share below 1."
        )
    length = decay if decay >= 1 else max(1, round(decay * reached.steps))
    return min(1.0, max(0, reached.steps - reached.step) / length)


def _gone(reached: Position, spent: float) -> float:
    """The share of a go that is over, by its time or by its steps."""
    if reached.steps is None:
        return spent
    return max(spent, (reached.step - reached.began) / max(1, reached.steps - reached.began))


LAST_WORDS = 2.0
"""Seconds set aside for weights, the summary and the end of the process."""
_RECENT = 5
"""Steps by which the next one is judged."""


class StepTimer:
    """Time since the last `clear`, spent waiting for data and working, and all of it in the run's life, seconds.

    What is not training (saving, validating) is not in it. device: that the steps run on.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds = self.waited = self.worked = 0.0
        self.steps = 0
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._before = 0.0  # the time of this window that belongs to its earlier steps

    def clear(self) -> None:
        """Begin a new window."""
        self.seconds = self.life()
        self.waited = self.worked = self._before = 0.0
        self.steps = 0
        self._idle = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For data."""
        start, mark = time.monotonic(), self._mark()
        yield
        self.waited += time.monotonic() - start
        end = self._mark()
        if mark is not None and end is not None:
            self._idle.append((mark, end))

    @contextmanager
    def working(self) -> Iterator[None]:
        """On a step, or for its figures: a GPU's work is done when they are there."""
        start = time.monotonic()
        yield
        self.worked += time.monotonic() - start

    def stepped(self) -> None:
        """A step is over."""
        self.steps += 1
        self._recent.append(self.spent() - self._before)
        self._before = self.spent()

    def spent(self) -> float:
        """Seconds of this window."""
        return self.waited + self.worked

    def of_a_step(self) -> float:
        """Seconds a step takes: the median of the last few, since a first one also compiles; 0 before the second."""
        return statistics.median_low(self._recent) if len(self._recent) > 1 else 0.0

    def data_share(self) -> float:
        """The share of this window that went to waiting for data.

        On a GPU it is the time that its own stream had nothing to do but wait, which the program, ahead of it, does not
        see; ask once the device has done the window's work.
        """
        waited = sum(mark.elapsed_time(end) for mark, end in self._idle) / 1000 if self.on_gpu else self.waited
        return min(1.0, waited / max(self.spent(), 1e-9))

    def life(self) -> float:
        """Seconds of training in the run's life."""
        return self.seconds + self.spent()

    def _mark(self) -> torch.cuda.Event | None:
        """A moment of the GPU's own time; nobody waits for it."""
        if not self.on_gpu:
            return None
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark


class TimeBudget:
    """steps: of the run's life; minutes: of this go, since `began` (time.monotonic()); None is no limit.

    end_within: whether the minutes hold the end of the go, too, or training alone. What is done at the end is measured
    each time it is done, in `last`, seconds by name: so the end is reached in time by a run that has done it before.
    """

    def __init__(self, steps: int | None, minutes: float | None, began: float, *, end_within: bool = True) -> None:
        self.steps, self.began, self.end_within = steps, began, end_within
        self.seconds = None if minutes is None else 60 * minutes
        self.last: dict[str, float] = {}

    def elapsed(self) -> float:
        """Seconds since the go began."""
        return time.monotonic() - self.began

    def go_on(self, elapsed: float) -> None:
        """Count on from what earlier goes took, seconds; what came before this call, in this one, is not counted."""
        self.began = time.monotonic() - elapsed

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Remember how long this takes; not where an error ends it."""
        start = time.monotonic()
        yield
        self.last[what] = time.monotonic() - start

    def usable(self) -> float | None:
        """Seconds of the go that can be spent on training; None: all. The end, however slow it was, gets half at most.

        A short go after a long one must get on, too.
        """
        if self.seconds is None or not self.end_within:
            return self.seconds
        return self.seconds - min(self.seconds / 2, LAST_WORDS + 1.5 * sum(self.last.values()))

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
