"""The one loop of training, for every task, on one device or many."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import torch
from safetensors.torch import save
from torch import nn

from protoformer.errors import InputError, shortened
from protoformer.io.files import shown, write_atomically
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import Checkpoint, FoundCheckpoint
from protoformer.training.checkpoint_files import check_part_bytes
from protoformer.training.distributed import (
    StopRequest,
    agree,
    barrier,
    gather,
    launch,
    mean_over_ranks,
    random_record,
    random_tensors,
    restore_random,
    world_size,
)
from protoformer.training.engine import build_engine
from protoformer.training.loggers import Observer, Observers, RunLog, RunValidator, TrainingProgress
from protoformer.training.prefetch import Batch, BrokenSample, InFlight
from protoformer.training.recipe import Recipe
from protoformer.training.run_folder import RunFolder, versions
from protoformer.training.schedule import Position, StepTimer, TimeBudget, lr_factor
from protoformer.training.step import ROW, CountedSteps
from protoformer.training.task import Drawing, Task, Validator

if TYPE_CHECKING:
    from lightning.fabric import Fabric


REQUESTS = ("", "SIGTERM", "SIGINT")
"""What processes may be asked; they agree on the last of those that they see."""


@dataclass(frozen=True)
class TrainingEnd:
    """How a go ended.

    step: steps of the run's life. why: "steps" or "minutes" are over, or the name of the signal that asked for it.
    checkpoint: the last one. weights: the average's, or None where a signal came first. seconds: of training, in the
    run's life.
    """

    step: int
    why: str
    checkpoint: Path
    weights: Path | None
    seconds: float


@dataclass(frozen=True)
class Heartbeat:
    """What all processes agree on.

    spent: the share of the go's time that is over, or None where it has no limit. save: whether to do so now. why: what
    ends the go, if anything does.
    """

    spent: float | None
    save: bool = False
    why: str = ""


@dataclass(frozen=True)
class Trainer(Generic[Batch]):
    """A run of a recipe in a folder: it begins there, or goes on from the last whole checkpoint.

    device: cpu or cuda; `torchrun` gives each of its processes one. observers, validators, draw, write_weights: handed
    in, so that training knows nothing of predictors and pictures. part_bytes: the largest file of a checkpoint. slim:
    save the optimizer's moments in bfloat16, which makes a quarter less and going on no longer exact.
    fresh: start over, whatever lies in the folder. began: when this go's minutes began, by time.monotonic().
    minutes_of_run: the minutes are the run's, of training alone: its goes share them, and the end comes on top.
    """

    recipe: Recipe
    task: Task[Batch]
    folder: Path
    device: str = "cpu"
    observers: tuple[Observer, ...] = ()
    validators: tuple[Validator, ...] = ()
    draw: Drawing | None = None
    write_weights: Callable[[nn.Module, Path], None] | None = None
    part_bytes: int | None = None
    slim: bool = False
    fresh: bool = False
    began: float = field(default_factory=time.monotonic)
    minutes_of_run: bool = False

    def __post_init__(self) -> None:
        check_part_bytes(self.part_bytes)  # before anything is lost or learned

    def run(self) -> TrainingEnd:
        """Train until the steps or the minutes are over, or until somebody asks to stop."""
        fabric = launch(self.device)
        with StopRequest() as stop, ExitStack() as kept:
            go = _Go(self, fabric, stop, kept)
            try:
                return go.run()
            finally:
                go.told.ended(go.step)


class _Go(Generic[Batch]):
    """One go of a run: what `Trainer` says, at work. kept: what is held until the end of it."""

    def __init__(self, trainer: Trainer[Batch], fabric: "Fabric", stop: StopRequest, kept: ExitStack) -> None:
        self.trainer, self.recipe, self.task = trainer, trainer.recipe, trainer.task
        self.stop, self.kept, self.device, self.first = stop, kept, fabric.device, fabric.is_global_zero
        self.place = RunFolder(trainer.folder)
        # Of several processes the first alone writes, draws and tells.
        self.told = Observers((RunLog(self.place.log), *trainer.observers) if self.first else ())
        run = self.recipe.run
        self.budget = TimeBudget(run.steps, run.minutes, trainer.began, end_within=not trainer.minutes_of_run)
        self.pace = StepTimer(self.device)
        self.step = self.began = 0  # and that at the beginning of this go
        self.spent = self.budget.spent(0.0)
        self.rate = self._rate(
            Heartbeat(self.spent)
        )  # a schedule that lacks its end is refused before anything is touched
        self.engine = build_engine(fabric, self.recipe, self.task)
        self.source = self.task.source(fabric.global_rank, world_size(), self.device, self.told.noted)
        held_out = self.task.held_out(self.device) if run.validation_scenes else None
        self.judge = RunValidator(held_out, trainer.validators, trainer.draw, self.told, self.budget, stop)
        self.in_flight = InFlight(self.device)
        self.saved, self.saved_at = -1, 0.0  # the step of the last one, and when that was
        self.checkpoint = self.place.checkpoints
        self.whole: set[Path] = set()  # checkpoints that were written or read here
        self.is_warned = False  # that nothing was learned so far

    def run(self) -> TrainingEnd:
        """The loop."""
        self._begin()
        batches = self.source.batches(self.step)
        pulse = self._pulse()
        while not pulse.why:
            if pulse.save:
                with barrier():
                    self._save()
            with self._saved_if_refused(), self.pace.waiting():
                batch = next(batches)
            with self.pace.working():
                self.rate = self._rate(pulse)
                self.engine.step(self.task.tensors(batch), self.rate)
                self.in_flight.another()
            self.step += 1
            self.pace.stepped()
            self._look()
            pulse = self._pulse()
        return self._end(pulse.why)

    def _begin(self) -> None:
        """Take up the run where it stands, or begin it."""
        begun = False
        with barrier():
            if self.first:
                begun = self._taken_up()
        self.step = self.began = int(agree([self.step])[0])
        self.engine.share()
        with barrier():
            self.told.started(self.step, self.recipe.run.steps)
            if not begun:
                self._save()  # a disk too small is better found now than after an hour

    def _taken_up(self) -> bool:
        """Whether there is a run to go on with; then its state is taken over."""
        self.kept.enter_context(self.place.taken())
        if self.trainer.fresh:
            self.place.clear()
            return False
        found = self.place.last(self.recipe, self.told.noted)
        if found is not None:
            self._restore(found)
        return found is not None

    def _restore(self, found: FoundCheckpoint) -> None:
        """Take over the state of a checkpoint, which may be any that has the right form."""
        try:
            self._take_over(found)
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the checkpoint {found.path} does not hold the state of a run ({shortened(error)}); take another one, "
                "or start over with --fresh."
            ) from None

    def _take_over(self, found: FoundCheckpoint) -> None:
        record, tensors = found.checkpoint.record, found.checkpoint.tensors
        self.engine.restore({name: tensor for name, tensor in tensors.items() if not name.startswith("random.")})
        # The loop draws nothing, and neither does a source: other processes than the first need no state of theirs.
        restore_random(tensors, record["random"], self.device)
        self.step, self.pace.seconds = found.checkpoint.step, _seconds(record["seconds"])
        if isinstance(record["broken"], dict):  # once it was their number alone
            self.source.broken.reasons.update({name: str(reason) for name, reason in record["broken"].items()})
        if record.get("device") == self.device.type:  # another one takes another time
            self.budget.last = {name: _seconds(took) for name, took in record["took"].items()}
        if self.trainer.minutes_of_run:
            # Once there was no other count than the first.
            self.budget.go_on(_seconds(record.get("elapsed", record["seconds"])))
        self.saved, self.saved_at, self.checkpoint = self.step, self.budget.elapsed(), found.path
        self.whole.add(found.path)

    def _pulse(self) -> Heartbeat:
        """Look up, whether it is time to save or to stop."""
        run, step = self.recipe.run, self.step
        if run.steps is not None and step >= run.steps:
            return Heartbeat(self.spent, why="steps")
        elapsed, usable = self.budget.elapsed(), self.budget.usable()
        # However short its time, a go gets on.
        late = usable is not None and step > self.began and elapsed + self.pace.of_a_step() > usable
        by_steps = run.checkpoint_every > 0 and step % run.checkpoint_every == 0
        overdue = 0 < 60 * run.checkpoint_minutes <= elapsed - self.saved_at
        saves = (by_steps or overdue) and self.saved != step
        # The first process has the clock: it alone saves and judges, and knows how long that takes.
        mine = (saves, late, self.budget.spent(elapsed) or 0.0) if self.first else (0.0, 0.0, 0.0)
        asked, save_now, over, spent = agree((REQUESTS.index(self.stop.asked), *mine))
        self.spent = None if usable is None else spent
        return Heartbeat(self.spent, bool(save_now), REQUESTS[int(asked)] or ("minutes" if over else ""))

    def _rate(self, pulse: Heartbeat) -> float:
        reached = Position(self.step, self.recipe.run.steps, pulse.spent, self.began)
        return self.recipe.optimizer.rate * lr_factor(self.recipe.schedule, reached)

    @contextmanager
    def _saved_if_refused(self) -> Iterator[None]:
        """What any process refuses within it ends all of them, once the state is saved."""
        try:
            with barrier():
                yield
        except (InputError, SystemExit):
            self._save_new()
            raise

    def _look(self) -> None:
        """After a step: judge it, log, validate, draw, each where it is due."""
        run, average = self.recipe.run, self.engine.average.network
        logs = self.step % run.log_every == 0
        if (logs or self.device.type == "cpu") and self.engine.guard.is_fatal():
            self._give_up()
        if logs:
            self._log()
        if self.first and run.validate_every and self.step % run.validate_every == 0:
            if self.judge.is_slow:
                self._save_new()
            self.judge.validate(self.step, average)
        if self.first and run.pictures_every and self.step % run.pictures_every == 0:
            self.judge.picture(self.step, average)

    def _log(self) -> None:
        with self.pace.working():
            sums = mean_over_ranks(self.engine.guard.sums.clone())
            counted = self.engine.guard.counted(sums)
        self._share_broken()
        if not counted.learned and not self.is_warned:
            self.is_warned = True
            self.told.noted(f"nothing was learned so far: {_taught_nothing(self.step, counted)}.")
        total, *metrics = counted.means
        spent, steps = max(self.pace.spent(), 1e-9), self.pace.steps
        on_gpu = self.device.type == "cuda"
        progress = TrainingProgress(
            step=self.step,
            loss=total if counted.good else None,
            metrics=dict(zip(self.task.metrics, metrics, strict=True)) if counted.good else {},
            rate=self.rate,
            samples_per_second=self.recipe.data.batch * steps / spent,
            seconds=self.pace.life(),
            data_share=self.pace.data_share(),
            skipped=counted.skipped,
            broken=len(self.source.broken),
            memory=torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            left=self.budget.left(self.step, spent / max(1, steps)),
        )
        self.engine.guard.clear()
        self.pace.clear()
        self.told.logged(progress)

    def _share_broken(self) -> None:
        """Let all know of every sample that one could not read; the first process tells people, and judges."""
        if world_size() == 1:
            return  # the source itself did
        broken = self.source.broken
        for said in gather(json.dumps(broken.reasons)):
            broken.add(BrokenSample(name, reason) for name, reason in json.loads(said).items())
        with self._saved_if_refused():
            if self.first:
                broken.judge()

    def _save_new(self) -> None:
        """Save what has changed since the last time."""
        if self.saved != self.step:
            self._save()

    def _save(self) -> None:
        if not self.first:
            return
        with self.budget.measured("save"):
            state = self.engine.state(slim=self.trainer.slim)
            tensors = {name: tensor.detach().cpu() for name, tensor in state.items()}
            tensors |= random_tensors(self.device)
            record: dict[str, Any] = {
                "recipe": self.recipe.as_dict(),
                "position": self.step,  # of the next batch: one a step, skipped or not
                "seconds": self.pace.life(),
                "elapsed": self.budget.elapsed(),
                "broken": self.source.broken.reasons,
                "took": self.budget.last,
                "device": self.device.type,
                "random": random_record(),
                "versions": versions(),
            }
            self.checkpoint = checkpoints.save(
                self.place.checkpoints,
                Checkpoint(self.step, tensors, record),
                part_bytes=self.trainer.part_bytes,
                whole=self.whole,
            )
        self.whole = {self.checkpoint, *(path for path in self.whole if path.exists())}
        self.saved, self.saved_at = self.step, self.budget.elapsed()
        self.told.saved(self.step, self.checkpoint)

    def _give_up(self) -> None:
        """Too many steps without a finite loss: keep the first of their batches, and the weights from before them."""
        number = self.engine.guard.counted().fatal
        assert number is not None
        self.engine.guard.end_row()
        self._save()
        tensors = self.task.tensors(next(iter(self.source.batches(number))))
        own = "" if world_size() == 1 else f"-of-process-{torch.distributed.get_rank()}"
        path = self.place.path / f"bad-batch-{number:08d}{own}.safetensors"
        write_atomically(path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
        with barrier():
            if self.first:
                raise InputError(
                    f"{ROW} steps in a row, from step {number} on, had a loss or a gradient that is not finite; the "
                    f"first of their batches is in {path} and the weights from before them in {self.checkpoint}: look "
                    "at the batch, or lower optimizer.rate, and start the run again."
                )

    def _end(self, why: str) -> TrainingEnd:
        """Save, and if nobody is in a hurry write the weights, judge and draw; what matters most comes first."""
        over, weights = why in ("steps", "minutes"), None
        if over and self.pace.steps:
            self._log()
        with barrier():
            if self.first:
                self._save_new()
                begun = 0 if self.trainer.minutes_of_run else self.began
                if why == "minutes" and self.step - begun == 1:
                    self.told.noted("the time of this go was over after one step; give it more minutes.")
                if over:
                    self._refuse_untaught()
                    weights = self._judged_at_the_end()
        return TrainingEnd(self.step, why, self.checkpoint, weights, self.pace.life())

    def _refuse_untaught(self) -> None:
        """Weights that no step has changed are not trained ones: they are neither written as such nor judged."""
        counted = self.engine.guard.counted()
        if not counted.learned and (counted.empty or self.trainer.write_weights is not None):
            raise InputError(
                f"nothing was learned, and no weights were written: {_taught_nothing(self.step, counted)}; check the "
                "recipe's data, and which of it the loss counts."
            )

    def _judged_at_the_end(self) -> Path | None:
        """The file of the weights, if somebody writes one."""
        average, weights = self.engine.average.network, None
        if self.trainer.write_weights is not None:
            weights = self.place.weights
            self.trainer.write_weights(average, weights)
        self.judge.validate(self.step, average)
        self.judge.picture(self.step, average)
        return weights


def _seconds(value: Any) -> float:
    """A duration of a checkpoint's record."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{shown(value)} is no number of seconds")
    return float(value)


def _taught_nothing(step: int, counted: CountedSteps) -> str:
    """Why no step changed the weights."""
    return (
        f"of {step} steps, {counted.empty} had not a single valid target, such as a pixel whose truth is known, and "
        f"{counted.skipped} a loss or a gradient that is not finite"
    )
