"""The loop by the clock: runs that have minutes end in time, and go on at the rate that there was."""

import dataclasses
import signal
from pathlib import Path

import pytest

from protoformer.training import checkpoint as checkpoints
from protoformer.training.recipe import Recipe, ScheduleSection
from protoformer.training.task import ValidationResult


class Clock:
    """Time that passes only where it is recorder to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def slowed(self, seconds: float, work):
        """The same work, taking so long."""

        def slow(*inputs, **options):
            self.now += seconds
            return work(*inputs, **options)

        return slow


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """On it a checkpoint takes 7 seconds, and a step of a run that `timed` gives takes 1."""
    clock = Clock()
    monkeypatch.setattr("protoformer.training.schedule.time", clock)
    monkeypatch.setattr(checkpoints, "save", clock.slowed(7, checkpoints.save))
    return clock


def timed(lines, clock: Clock, folder: Path, recipe: Recipe, **options):
    trainer = lines.trainer(folder, recipe, began=clock.now, **options)
    trainer.task.tensors = clock.slowed(1, trainer.task.tensors)
    trainer.task.validate = clock.slowed(4, trainer.task.validate)
    return trainer


def test_minutes_end_a_run_in_time_and_it_goes_on_afterwards(lines, tmp_path: Path, clock: Clock) -> None:
    recipe = lines.recipe(steps=None, minutes=2)
    ended = timed(lines, clock, tmp_path, recipe).run()
    # 120 s less 2 to end, and one and a half times the 7 of a checkpoint, one of which was the first; 4 s of validation
    # nobody knew of before.
    assert (ended.stop_reason, ended.step, clock.now) == ("minutes", 100, 7 + 100 + 7 + 4)
    began = clock.now
    again = timed(lines, clock, tmp_path, recipe).run()
    assert (again.stop_reason, again.step) == ("minutes", 100 + 107)
    third = timed(lines, clock, tmp_path, lines.recipe(steps=None, minutes=2)).run()
    assert third.stop_reason == "minutes" and third.step > again.step
    assert clock.now <= began + 2 * 120
    assert lines.last(tmp_path).step == third.step


def test_a_decay_by_time_reaches_its_floor_at_the_end(lines, tmp_path: Path, clock: Clock, recorder) -> None:
    recipe = dataclasses.replace(
        lines.recipe(steps=None, minutes=2, log_every=1),
        schedule=ScheduleSection("constant", warm_up=0, decay=0.5),
    )
    timed(lines, clock, tmp_path, recipe, observers=(recorder,)).run()
    rates = [each.lr / recipe.optimizer.lr for each in recorder.of("on_log")]
    usable = 120 - 2 - 1.5 * 7
    assert rates == pytest.approx([min(1, (1 - (7 + step) / usable) / 0.5) for step in range(100)])


@pytest.mark.parametrize("stopped", [40, 100])
def test_sessions_that_share_minutes_resume_at_the_same_learning_rate(
    stopped: int, lines, tmp_path: Path, clock: Clock, recorder
) -> None:
    """Before the fall of the rate, and in it; all of the minutes are trained, whatever the end takes."""
    recipe = dataclasses.replace(
        lines.recipe(steps=None, minutes=2, log_every=1),
        schedule=ScheduleSection("constant", warm_up=0, decay=0.5),
    )
    first = timed(lines, clock, tmp_path, recipe, observers=(recorder,), minutes_of_run=True)
    plain = first.task.tensors

    def tensors(batch):
        if len(recorder.of("on_log")) == stopped - 1:
            signal.raise_signal(signal.SIGTERM)
        return plain(batch)

    first.task.tensors = tensors
    assert (first.run().step, clock.now) == (stopped, 7 + stopped + 7)
    clock.now += 1000
    second = timed(lines, clock, tmp_path, recipe, observers=(recorder,), minutes_of_run=True)
    clock.now += 30  # to start up
    ended = second.run()
    assert (ended.stop_reason, ended.step) == ("minutes", 120 - 7)
    rates = [each.lr / recipe.optimizer.lr for each in recorder.of("on_log")]
    assert rates == pytest.approx([min(1, (1 - (7 + step) / 120) / 0.5) for step in range(113)])

    third = timed(
        lines, clock, tmp_path, recipe, observers=(recorder,), minutes_of_run=True
    )  # as if it had not been judged
    assert third.run().step == 113 + 1 and recorder.of("on_log")[-1].lr == 0
    assert recorder.of("on_message") == []


def test_a_decay_with_minutes_is_a_fraction_of_the_session(lines, tmp_path: Path, clock: Clock, recorder) -> None:
    timed(lines, clock, tmp_path, lines.recipe(steps=30)).run()
    recipe = dataclasses.replace(
        lines.recipe(steps=40, minutes=60, log_every=1), schedule=ScheduleSection("constant", warm_up=0, decay=0.5)
    )
    timed(lines, clock, tmp_path, recipe, observers=(recorder,)).run()
    rates = [each.lr / recipe.optimizer.lr for each in recorder.of("on_log")]
    assert rates == pytest.approx([1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_checkpoints_are_written_by_the_clock(lines, tmp_path: Path, clock: Clock, recorder) -> None:
    timed(lines, clock, tmp_path, lines.recipe(steps=150, checkpoint_minutes=1), observers=(recorder,)).run()
    assert recorder.of("on_checkpoint") == [0, 60, 120, 150]


def test_a_short_session_trains_at_least_one_step(lines, tmp_path: Path, clock: Clock, recorder) -> None:
    slow = timed(lines, clock, tmp_path, lines.recipe(steps=None, minutes=60, validate_every=5))
    slow.task.validate = clock.slowed(600, slow.task.validate)
    slow.run()
    before = lines.last(tmp_path).step
    short = timed(lines, clock, tmp_path, lines.recipe(steps=None, minutes=1), observers=(recorder,))
    assert short.run().step == before + 30  # half of its minute
    assert recorder.of("on_message") == ["run.validate_every changes from 5 to 0."]
    began = clock.now
    late = timed(lines, clock, tmp_path, lines.recipe(steps=None, minutes=1), observers=(recorder,))
    hurried = dataclasses.replace(late, began=clock.now - 100)  # loading took all of it
    assert hurried.run().step == before + 31
    assert (
        recorder.of("on_message")[-1] == "the minutes of this session were over after one step; give it more minutes."
    )
    assert clock.now < began + 600 + 60 and lines.last(tmp_path).step == before + 31


def test_durations_measured_on_another_device_are_ignored(lines, tmp_path: Path, clock: Clock) -> None:
    timed(lines, clock, tmp_path, lines.recipe(steps=5)).run()
    (path,) = (tmp_path / "checkpoints").glob("step-00000005")
    found = checkpoints.load(path)
    assert found.record["device"] == "cpu" and found.record["took"] == {"save": 7}
    for device, steps in (("cpu", 107), ("cuda", 118)):  # 118 s, with or without one and a half times 7
        folder = tmp_path / device
        checkpoints.save(folder / "checkpoints", dataclasses.replace(found, record={**found.record, "device": device}))
        assert timed(lines, clock, folder, lines.recipe(steps=None, minutes=2)).run().step == 5 + steps


def test_a_slow_first_step_does_not_end_a_session(lines, tmp_path: Path, clock: Clock) -> None:
    trainer = timed(lines, clock, tmp_path, lines.recipe(steps=None, minutes=2, log_every=1))
    plain, compiling = trainer.task.tensors, iter([70])

    def tensors(batch):
        clock.now += next(compiling, 0)
        return plain(batch)

    trainer.task.tensors = tensors
    assert trainer.run().step == 30  # 107.5 s less 7 of the first checkpoint and 70


def test_a_stop_comes_between_validators_and_a_slow_validation_after_a_checkpoint(
    lines, tmp_path: Path, clock: Clock, recorder
) -> None:
    def judge(network) -> ValidationResult:
        if recorder.of("on_validation")[-1] == 20:
            signal.raise_signal(signal.SIGTERM)
        return ValidationResult("judge", {})

    recipe = lines.recipe(steps=40, validate_every=10)
    trainer = timed(lines, clock, tmp_path, recipe, observers=(recorder,), validators=(judge, judge))
    trainer.task.validate = clock.slowed(11, trainer.task.validate)
    ended = trainer.run()
    assert (ended.stop_reason, ended.step) == ("SIGTERM", 20)
    assert recorder.of("on_validation") == [10, 10, 10, 20, 20]  # of three, the last one was not asked again
    kinds = [
        (kind, what) for kind, what in recorder.events if kind in ("on_checkpoint", "on_validation") and what == 20
    ]
    assert kinds == [("on_checkpoint", 20), ("on_validation", 20), ("on_validation", 20)]
    assert lines.last(tmp_path).record["took"]["validation"] == 15  # of the whole one
