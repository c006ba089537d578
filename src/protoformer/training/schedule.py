"""The learning rate as a share of its peak: a pure function of how far a run is."""

from dataclasses import dataclass

from protoformer.errors import InputError
from protoformer.training.recipe import ScheduleSection


@dataclass(frozen=True)
class Reached:
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


def rate_share(schedule: ScheduleSection, reached: Reached) -> float:
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


def _rise(warm_up: float, reached: Reached) -> float:
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


def _fall(decay: float, reached: Reached) -> float:
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


def _gone(reached: Reached, spent: float) -> float:
    """The share of a go that is over, by its time or by its steps."""
    if reached.steps is None:
        return spent
    return max(spent, (reached.step - reached.began) / max(1, reached.steps - reached.began))
