"""Learning-rate schedule, step timing and the time budget of a run."""

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
    """Progress of a run, from which the learning rate is computed.

    Attributes:
        step: Steps done in the whole run.
        steps: Total steps of the run, or None without a limit.
        time_fraction: Fraction of the training time that has passed, 0 to 1, or None without a time limit. It refers
            to this session, or to the whole run where all sessions share one time limit.
        start_step: Steps done when this session started.
    """

    step: int
    steps: int | None
    time_fraction: float | None = None
    start_step: int = 0


def one_cycle(step: int, steps: int, warm_up: float = 0.05) -> float:
    """Compute the learning-rate factor of a linear one-cycle schedule.

    Args:
        step: Steps done.
        steps: Total steps of the run.
        warm_up: Fraction of the steps over which the factor rises linearly; it then falls linearly to 0.

    Returns:
        The factor of the peak learning rate, 0 to 1.
    """
    rise = max(1, round(warm_up * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def lr_factor(schedule: ScheduleSection, position: Position) -> float:
    """Compute the factor of the peak learning rate for the next step.

    "one_cycle" depends on steps alone. "constant" decays over the last steps of the run; with a time limit, a decay
    given as a fraction refers to the session's time or to its steps, whichever ends first. A run with a time limit
    that is stopped and resumed therefore differs from one that is not interrupted.

    Args:
        schedule: The recipe's schedule.
        position: Progress of the run.

    Returns:
        The factor, 0 to 1; a decay ends at the schedule's floor.

    Raises:
        InputError: If the schedule needs an end and the run has none.
    """
    if schedule.kind == "one_cycle":
        if position.steps is None:
            raise InputError("the one_cycle schedule needs the number of steps; give --steps.")
        fraction = schedule.warm_up if schedule.warm_up < 1 else schedule.warm_up / position.steps
        is_warm_up = position.step < max(1, round(fraction * position.steps))
        cycle = one_cycle(min(position.step, position.steps), position.steps, fraction)
        return cycle if is_warm_up else schedule.floor + (1 - schedule.floor) * cycle
    decay = schedule.floor + (1 - schedule.floor) * _decay_factor(schedule.decay, position)
    return min(_warm_up_factor(schedule.warm_up, position), decay)


def _warm_up_factor(warm_up: float, position: Position) -> float:
    """Rise linearly to 1 over the warm-up, which is a number of steps, or below 1 a fraction of all steps."""
    if warm_up == 0:
        return 1.0
    if warm_up >= 1:
        return min(1.0, (position.step + 1) / warm_up)
    if position.steps is None:
        raise InputError(
            f"schedule.warm_up is {warm_up:g} of the steps, but the run has no number of steps; "
            "give --steps, or the warm-up as a number of steps."
        )
    return min(1.0, (position.step + 1) / max(1, round(warm_up * position.steps)))


def _decay_factor(decay: float, position: Position) -> float:
    """Fall linearly from 1 to 0 over the last `decay` of the run, or of a session with a time limit."""
    if decay == 0:
        return 1.0
    if position.time_fraction is not None and decay < 1:
        done = position.time_fraction
        if position.steps is not None:  # the session ends by time or by steps, whichever is earlier
            done = max(done, (position.step - position.start_step) / max(1, position.steps - position.start_step))
        return min(1.0, max(0.0, 1 - done) / decay)
    if position.steps is None:
        raise InputError(
            "a schedule that decays needs an end; give --steps, or --minutes and schedule.decay as a fraction below 1."
        )
    length = decay if decay >= 1 else max(1, round(decay * position.steps))
    return min(1.0, max(0, position.steps - position.step) / length)


SHUTDOWN_SECONDS = 2.0
"""Seconds reserved for writing the weights and the summary and for the end of the process."""
_NUM_RECENT_STEPS = 5
"""Number of steps from which the duration of the next one is estimated."""


class StepTimer:
    """Measures the time spent waiting for data and training, excluding checkpoints and validation.

    Times are in seconds. A window is the time since the last `clear`.
    """

    def __init__(self, device: torch.device) -> None:
        """Start the first window of steps on a device."""
        self.on_gpu = device.type == "cuda"
        self.seconds = self.waited = self.worked = 0.0
        self.steps = 0
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT_STEPS)
        self._last_step_end = 0.0  # within this window

    def clear(self) -> None:
        """Start a new window."""
        self.seconds = self.total_seconds()
        self.waited = self.worked = self._last_step_end = 0.0
        self.steps = 0
        self._idle = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the enclosed time as waiting for data."""
        start, start_event = time.monotonic(), self._record_event()
        yield
        self.waited += time.monotonic() - start
        end_event = self._record_event()
        if start_event is not None and end_event is not None:
            self._idle.append((start_event, end_event))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the enclosed time as training, including reads of metrics, which wait for the GPU."""
        start = time.monotonic()
        yield
        self.worked += time.monotonic() - start

    def stepped(self) -> None:
        """Count a finished step."""
        self.steps += 1
        self._recent.append(self.window_seconds() - self._last_step_end)
        self._last_step_end = self.window_seconds()

    def window_seconds(self) -> float:
        """Return the seconds of this window."""
        return self.waited + self.worked

    def seconds_per_step(self) -> float:
        """Return the median of the last steps, because the first one also compiles; 0 before the second step."""
        return statistics.median_low(self._recent) if len(self._recent) > 1 else 0.0

    def data_fraction(self) -> float:
        """Return the fraction of this window spent waiting for data.

        On a GPU this is the time its stream was idle, which the host, running ahead of it, cannot measure. Call it only
        after the device has finished the window's work.
        """
        waited = sum(start.elapsed_time(end) for start, end in self._idle) / 1000 if self.on_gpu else self.waited
        return min(1.0, waited / max(self.window_seconds(), 1e-9))

    def total_seconds(self) -> float:
        """Return the training time of the whole run."""
        return self.seconds + self.window_seconds()

    def _record_event(self) -> torch.cuda.Event | None:
        """Record a CUDA event without synchronizing; None on a CPU."""
        if not self.on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class TimeBudget:
    """Tracks the steps and the time that a run has left.

    The last duration of each task that is repeated at the end (saving, validation, drawing) is kept in `durations`, in
    seconds by name, so that training stops early enough for all of them to fit.
    """

    def __init__(self, steps: int | None, minutes: float | None, began: float, *, include_end: bool = True) -> None:
        """Set the limits; None is no limit.

        Args:
            steps: Total steps of the run.
            minutes: Minutes of this session.
            began: Start of the session, by time.monotonic().
            include_end: Whether the final save, validation and drawing count toward the minutes.
        """
        self.steps, self.began, self.include_end = steps, began, include_end
        self.seconds = None if minutes is None else 60 * minutes
        self.durations: dict[str, float] = {}

    def elapsed(self) -> float:
        """Return the seconds since the session started."""
        return time.monotonic() - self.began

    def resume(self, elapsed: float) -> None:
        """Continue counting from the seconds of earlier sessions; time of this session before the call is ignored."""
        self.began = time.monotonic() - elapsed

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Store how long the enclosed block takes, unless it raises."""
        start = time.monotonic()
        yield
        self.durations[name] = time.monotonic() - start

    def training_seconds(self) -> float | None:
        """Return the seconds of the session available for training; None without a limit.

        At most half of the session is reserved for its end, so that a short session after a long one still trains.
        """
        if self.seconds is None or not self.include_end:
            return self.seconds
        return self.seconds - min(self.seconds / 2, SHUTDOWN_SECONDS + 1.5 * sum(self.durations.values()))

    def fraction(self, elapsed: float) -> float | None:
        """Return the fraction of the training time that has passed, 0 to 1; None without a limit."""
        available = self.training_seconds()
        return None if available is None else min(1.0, elapsed / available)

    def seconds_left(self, step: int, seconds_per_step: float) -> float | None:
        """Return the seconds until the first limit is reached; None without a limit."""
        remaining = []
        if self.steps is not None:
            remaining.append((self.steps - step) * seconds_per_step)
        available = self.training_seconds()
        if available is not None:
            remaining.append(max(0.0, available - self.elapsed()))
        return min(remaining) if remaining else None
