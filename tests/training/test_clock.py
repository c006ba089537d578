"""Where the time goes, and when a run must turn to its end."""

import pytest
import torch

from protoformer.training import schedule as clock
from protoformer.training.schedule import StepTimer, TimeBudget


class Time:
    """It passes only where it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock, "time", time)
    return time


def stepped(pace: StepTimer, time: Time, *seconds: float, wait: float = 0.0) -> StepTimer:
    """The pace after steps that took so long, with a wait before each."""
    for each in seconds:
        with pace.waiting():
            time.now += wait
        with pace.working():
            time.now += each
        pace.stepped()
    return pace


def test_a_step_takes_what_the_last_ones_took_however_slow_the_first_was(time: Time) -> None:
    pace = StepTimer(torch.device("cpu"))
    assert stepped(pace, time, 90).seconds_per_step() == 0  # of one step nothing is known
    assert stepped(pace, time, 1, 1).seconds_per_step() == 1
    pace.clear()
    assert pace.seconds_per_step() == 1  # though a new window has no steps yet
    assert stepped(pace, time, 3, 3, 3, wait=0.5).seconds_per_step() == 3.5
    assert pace.total_seconds() == 90 + 2 + 3 * 3.5


def test_the_share_of_data_is_the_time_waited_for_them(time: Time) -> None:
    pace = stepped(StepTimer(torch.device("cpu")), time, 3, 3, wait=1)
    assert (pace.data_fraction(), pace.window_seconds(), pace.steps) == (0.25, 8, 2)
    pace.clear()
    assert (pace.data_fraction(), pace.window_seconds(), pace.steps) == (0, 0, 0)


def test_the_end_is_reserved_as_measured_but_at_most_half_of_the_session(time: Time) -> None:
    budget = TimeBudget(None, minutes=2, began=time.now)
    budget.durations = {"validation": 20, "save": 4}
    assert budget.training_seconds() == 120 - 2 - 1.5 * 24
    budget.durations = {"validation": 500}
    assert budget.training_seconds() == 60 and budget.fraction(30) == 0.5
    assert TimeBudget(100, None, began=time.now).training_seconds() is None


def test_training_minutes_reserve_nothing_and_resume(time: Time) -> None:
    budget = TimeBudget(None, minutes=2, began=time.now, include_end=False)
    budget.durations = {"save": 4}
    time.now += 7  # to start up again
    budget.resume(elapsed=30)
    assert (budget.training_seconds(), budget.elapsed(), budget.seconds_left(0, 1.0)) == (120, 30, 90)


def test_seconds_left_are_those_of_the_earlier_limit(time: Time) -> None:
    assert TimeBudget(100, None, time.now).seconds_left(90, 2.0) == 20
    assert TimeBudget(100, 0.2, time.now).seconds_left(90, 2.0) == 10  # 12 s less 2 to end
    assert TimeBudget(None, None, time.now).seconds_left(90, 2.0) is None
