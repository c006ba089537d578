"""How the learning rate goes."""

import pytest

from protoformer.errors import InputError
from protoformer.training.recipe import ScheduleSection
from protoformer.training.schedule import Position, lr_factor, one_cycle


def shares(schedule: ScheduleSection, steps: int | None, count: int) -> list[float]:
    return [lr_factor(schedule, Position(step, steps)) for step in range(count)]


def test_one_cycle_rises_over_its_warm_up_and_falls_to_the_last_step() -> None:
    rates = shares(ScheduleSection("one_cycle", warm_up=0.05), 100, 100)
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == pytest.approx(1.0) and rates[6] == pytest.approx(94 / 95)
    assert rates[-1] == pytest.approx(1 / 95)
    assert rates == [one_cycle(step, 100) for step in range(100)]


def test_a_warm_up_is_given_in_steps_or_as_a_fraction() -> None:
    by_steps, by_share = ScheduleSection("one_cycle", warm_up=10), ScheduleSection("one_cycle", warm_up=0.1)
    assert shares(by_steps, 100, 100) == shares(by_share, 100, 100)
    held = ScheduleSection("constant", warm_up=4)
    assert shares(held, None, 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert shares(ScheduleSection("constant", warm_up=0.04), 100, 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert shares(ScheduleSection("constant", warm_up=0), None, 2) == [1, 1]


def test_a_fall_ends_at_the_floor_and_a_rise_begins_at_nothing() -> None:
    cycle = ScheduleSection("one_cycle", warm_up=2, floor=0.1)
    assert lr_factor(cycle, Position(0, 12)) == 0.5
    assert lr_factor(cycle, Position(7, 12)) == pytest.approx(0.1 + 0.9 * 0.5)
    assert lr_factor(cycle, Position(12, 12)) == pytest.approx(0.1)
    held = ScheduleSection("constant", warm_up=2, decay=0.5, floor=0.2)
    assert lr_factor(held, Position(0, 12)) == 0.5
    assert lr_factor(held, Position(9, 12)) == pytest.approx(0.2 + 0.8 * 0.5)


def test_sessions_without_a_decay_can_be_chained() -> None:
    assert lr_factor(ScheduleSection("constant", warm_up=5, decay=0), Position(99, 100, time_fraction=1.0)) == 1


@pytest.mark.parametrize("decay", [20, 0.2])
def test_a_decay_falls_over_the_last_steps(decay: float) -> None:
    schedule = ScheduleSection("constant", warm_up=0, decay=decay)
    assert [lr_factor(schedule, Position(step, 100)) for step in (0, 79, 80, 90, 99)] == [1, 1, 1, 0.5, 0.05]


def test_a_decay_falls_over_the_last_of_the_time_if_that_ends_first() -> None:
    schedule = ScheduleSection("constant", warm_up=0, decay=0.2)
    for steps in (None, 10_000):
        reached = [Position(50, steps, spent) for spent in (0.0, 0.8, 0.9, 1.0)]
        assert [lr_factor(schedule, each) for each in reached] == pytest.approx([1, 1, 0.5, 0])
    assert lr_factor(schedule, Position(95, 100, time_fraction=0.1)) == pytest.approx(0.25)


def test_a_schedule_that_needs_an_end_and_has_none_is_refused() -> None:
    with pytest.raises(InputError, match="give --steps"):
        lr_factor(ScheduleSection("one_cycle"), Position(0, None, time_fraction=0.5))
    with pytest.raises(InputError, match="give --steps, or --minutes"):
        lr_factor(ScheduleSection("constant", warm_up=0, decay=0.2), Position(0, None))
    with pytest.raises(InputError, match="give --steps, or --minutes"):
        lr_factor(ScheduleSection("constant", warm_up=0, decay=20), Position(0, None, time_fraction=0.5))
    with pytest.raises(InputError, match="as a number of steps"):
        lr_factor(ScheduleSection("constant", warm_up=0.1), Position(0, None, time_fraction=0.5))


def test_a_session_with_a_time_limit_decays_over_its_last_part() -> None:
    schedule = ScheduleSection("constant", warm_up=0, decay=0.2)
    late = [
        Position(190_000 + done, 200_000, spent, start_step=190_000) for done, spent in ((0, 0.0), (10, 0.8), (20, 0.9))
    ]
    assert [lr_factor(schedule, each) for each in late] == pytest.approx([1, 1, 0.5])
    # The run's steps may end before its time: then they are what is left of this go.
    assert lr_factor(schedule, Position(199_000, 200_000, 0.3, start_step=190_000)) == pytest.approx(0.5)
    assert lr_factor(schedule, Position(200_000, 200_000, 0.3, start_step=200_000)) <= 1
