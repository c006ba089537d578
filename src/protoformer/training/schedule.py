"""The learning rate as a share of its peak: a pure function of how far a run is."""

from dataclasses import dataclass

from protoformer.errors import InputError
from protoformer.training.recipe import ScheduleSection


@dataclass(frozen=True)
class Reached:
    """How far a run is.

    step: steps done. steps: of how many in the run's life, or None if nobody said. spent: the share of this go's time
    that is over, 0 to 1, or None if it has no limit.
    """

    step: int
    steps: int | None
    spent: float | None = None


def one_cycle(step: int, steps: int, warm_up: float = 0.05) -> float:
    """The share of the peak rate at a step: a straight rise over `warm_up` of the steps, then down to nothing."""
    rise = max(1, round(warm_up * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def rate_share(schedule: ScheduleSection, reached: Reached) -> float:
    """The share of the highest rate that the next step takes, 0 to 1; a fall ends at the schedule's floor.

    "one_cycle" goes by steps alone. The fall of "constant" goes by whichever end comes first, that of the run's steps
    or of this go's time; where time decides, a run that is stopped and resumed is not the same as one that is not.
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
    """1, and over the last `decay` of the run (below 1 a share, else steps) straight down to 0."""
    if decay == 0:
        return 1.0
    falls = []
    if reached.steps is not None:
        length = decay if decay >= 1 else max(1, round(decay * reached.steps))
        falls.append(max(0, reached.steps - reached.step) / length)
    if reached.spent is not None and decay < 1:
        falls.append(max(0.0, 1 - reached.spent) / decay)
    if not falls:
        raise InputError(
            "a schedule that decays needs an end; give --steps, or --minutes and schedule.decay as a share below 1."
        )
    return min(1.0, *falls)
