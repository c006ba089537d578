"""The one loop of training, for every task, on one device or many."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import torch
from safetensors.torch import save
from torch import nn

from protoformer.errors import InputError
from protoformer.files import write_atomically
from protoformer.training import checkpoints
from protoformer.training.budget import Budget
from protoformer.training.checkpoints import Checkpoint
from protoformer.training.distributed import agreed, by_itself, launched, mean_over_ranks, ranks, wait_for_all
from protoformer.training.engine import build_engine
from protoformer.training.guard import ROW
from protoformer.training.log import RunLog
from protoformer.training.observer import Observer, Observers, Progress
from protoformer.training.pace import Pace
from protoformer.training.randomness import random_record, random_tensors, restore_random
from protoformer.training.recipe import Recipe
from protoformer.training.run_folder import RunFolder, versions
from protoformer.training.schedule import Reached, rate_share
from protoformer.training.signals import StopRequest
from protoformer.training.task import Batch, Drawing, Task, Validator

if TYPE_CHECKING:
    from lightning.fabric import Fabric

ENDS = ("", "minutes", "SIGTERM", "SIGINT")
"""What ends a go, beside its steps; processes agree on the last of those that they see."""


@dataclass(frozen=True)
class Ended:
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
class Pulse:
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

    def run(self) -> Ended:
        """Train until the steps or the minutes are over, or until somebody asks to stop."""
        fabric = launched(self.device)
        with StopRequest() as stop:
            go = _Go(self, fabric, stop)
            try:
                return go.run()
            finally:
                go.told.ended(go.step)


class _Go(Generic[Batch]):
    """One go of a run: what `Trainer` says, at work."""

    def __init__(self, trainer: Trainer[Batch], fabric: "Fabric", stop: StopRequest) -> None:
        self.trainer, self.recipe, self.task = trainer, trainer.recipe, trainer.task
        self.stop, self.device, self.first = stop, fabric.device, fabric.is_global_zero
        self.place = RunFolder(trainer.folder)
        # Of several processes the first alone writes, draws and tells.
        self.told = Observers((RunLog(self.place.log), *trainer.observers) if self.first else ())
        run = self.recipe.run
        self.budget, self.pace, self.step = Budget(run.steps, run.minutes, trainer.began), Pace(), 0
        self.spent = self.budget.spent(0.0)
        self.rate = self._rate(Pulse(self.spent))  # a schedule that lacks its end is refused before anything is touched
        self.engine = build_engine(fabric, self.recipe, self.task)
        self.source = self.task.source(fabric.global_rank, ranks(), self.device, self.told.noted)
        self.held_out = self.task.held_out(self.device)
        self.broken_before = 0
        self.saved = self.validated = self.pictured = -1  # the steps of the last ones
        self.saved_at = 0.0
        self.checkpoint = self.place.checkpoints

    def run(self) -> Ended:
        """The loop."""
        self._begin()
        batches = self.source.batches(self.step)
        pulse = self._pulse()
        while not pulse.why:
            if pulse.save:
                self._save()
            with self.pace.waiting():
                batch = next(batches)
            with self.pace.working():
                self.rate = self._rate(pulse)
                self.engine.step(self.task.tensors(batch), self.rate)
            self.step += 1
            self.pace.steps += 1
            self._look()
            pulse = self._pulse()
        return self._end(pulse.why)

    def _begin(self) -> None:
        """Take up the run where it stands, or begin it."""
        found = None
        if self.first:
            if self.trainer.fresh:
                self.place.clear()
            else:
                found = self.place.last(self.recipe, self.told.noted)
            self.place.made()
        if found is not None:
            self._restore(found.path, found.checkpoint)
        self.step, begun = (int(value) for value in agreed([self.step, found is not None], self.device))
        self.engine.share()
        self.told.started(self.step, self.recipe.run.steps)
        if begun:
            self.saved = self.step
        else:
            self._save()  # a disk too small is better found now than after an hour

    def _restore(self, path: Path, found: Checkpoint) -> None:
        tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith("random.")}
        self.engine.restore(tensors)
        # The loop draws nothing, and neither does a source: other processes than the first need no state of theirs.
        restore_random(found.tensors, found.record["random"], self.device)
        self.step, self.pace.seconds = found.step, found.record["seconds"]
        self.broken_before, self.budget.last = found.record["broken"], found.record["took"]
        self.saved, self.checkpoint = found.step, path
        self.saved_at = self.budget.elapsed()

    def _pulse(self) -> Pulse:
        """Look up: is it time to save, or to stop? Several processes on GPUs do so when they log, to wait less."""
        run, step = self.recipe.run, self.step
        if run.steps is not None and step >= run.steps:
            return Pulse(self.spent, why="steps")
        by_steps = run.checkpoint_every > 0 and step % run.checkpoint_every == 0
        if ranks() > 1 and self.device.type == "cuda" and step % run.log_every and not by_steps:
            return Pulse(self.spent)
        elapsed, usable = self.budget.elapsed(), self.budget.usable()
        late = self.first and usable is not None and elapsed + self.pace.of_a_step() > usable
        overdue = self.first and 0 < 60 * run.checkpoint_minutes <= elapsed - self.saved_at
        asked = ENDS.index(self.stop.asked or ("minutes" if late else ""))
        # The first process has the clock: it alone saves and judges, and knows how long that takes.
        mine = (asked, by_steps or overdue, (self.budget.spent(elapsed) or 0.0) if self.first else 0.0)
        why, saves, spent = agreed(mine, self.device)
        self.spent = None if usable is None else spent
        return Pulse(self.spent, bool(saves) and self.saved != step, ENDS[int(why)])

    def _rate(self, pulse: Pulse) -> float:
        reached = Reached(self.step, self.recipe.run.steps, pulse.spent)
        return self.recipe.optimizer.rate * rate_share(self.recipe.schedule, reached)

    def _look(self) -> None:
        """After a step: judge it, log, validate, draw, each where it is due."""
        run = self.recipe.run
        logs = self.step % run.log_every == 0
        if (logs or self.device.type == "cpu") and self.engine.guard.is_fatal():
            self._give_up()
        if logs:
            self._log()
        if run.validate_every and self.step % run.validate_every == 0:
            self._validate()
        if run.pictures_every and self.step % run.pictures_every == 0:
            self._draw()

    def _log(self) -> None:
        with self.pace.working():
            sums = mean_over_ranks(self.engine.guard.sums.clone())
            counted = self.engine.guard.counted(sums)
        total, *metrics = counted.means
        spent = self.pace.waited + self.pace.worked
        on_gpu = self.device.type == "cuda"
        progress = Progress(
            step=self.step,
            loss=total if counted.good else None,
            metrics=dict(zip(self.task.metrics, metrics, strict=True)) if counted.good else {},
            rate=self.rate,
            samples_per_second=self.recipe.data.batch * self.pace.steps / max(spent, 1e-9),
            seconds=self.pace.life(),
            data_share=self.pace.waited / max(spent, 1e-9),
            skipped=counted.skipped,
            broken=self._broken(),
            memory=torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            left=self.budget.left(self.step, self.pace.of_a_step()),
        )
        self.engine.guard.clear()
        self.pace.clear()
        self.told.logged(progress)

    def _broken(self) -> int:
        """Samples that could not be read, by any process, in the run's life."""
        ours = torch.tensor(float(self.source.broken), device=self.device)
        return self.broken_before + round(ranks() * float(mean_over_ranks(ours)))

    def _validate(self) -> None:
        self.validated = self.step
        if not self.first:
            return
        network = self.engine.average.network
        with self.budget.measured("validation"), by_itself():
            own = (self.held_out.validate,) if self.recipe.run.validation_scenes else ()
            for validator in (*own, *self.trainer.validators):
                self.told.validated(self.step, validator(network))

    def _draw(self) -> None:
        self.pictured = self.step
        if not self.first or self.trainer.draw is None or not self.recipe.run.validation_scenes:
            return
        with self.budget.measured("pictures"):
            for example in self.held_out.examples(self.engine.average.network):
                self.told.pictured(self.step, example.name, self.trainer.draw(example))

    def _save(self) -> None:
        broken = self._broken()
        self.saved = self.step
        if self.first:
            with self.budget.measured("save"):
                state = self.engine.state(slim=self.trainer.slim)
                tensors = {name: tensor.detach().cpu() for name, tensor in state.items()}
                tensors |= random_tensors(self.device)
                record: dict[str, Any] = {
                    "recipe": self.recipe.as_dict(),
                    "position": self.step,  # of the next batch: one a step, skipped or not
                    "seconds": self.pace.life(),
                    "broken": broken,
                    "took": self.budget.last,
                    "random": random_record(),
                    "versions": versions(),
                }
                checkpoint = Checkpoint(self.step, tensors, record)
                self.checkpoint = checkpoints.save(
                    self.place.checkpoints, checkpoint, part_bytes=self.trainer.part_bytes
                )
            self.told.saved(self.step, self.checkpoint)
        self.saved_at = self.budget.elapsed()

    def _give_up(self) -> None:
        """Too many steps without a finite loss: keep the first of their batches, and the weights from before them."""
        number = self.engine.guard.counted().fatal
        assert number is not None
        self._save()
        tensors = self.task.tensors(next(iter(self.source.batches(number))))
        own = "" if ranks() == 1 else f"-of-process-{torch.distributed.get_rank()}"
        path = self.place.path / f"bad-batch-{number:08d}{own}.safetensors"
        write_atomically(path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
        raise InputError(
            f"{ROW} steps in a row, from step {number} on, had a loss or a gradient that is not finite; the first of "
            f"their batches is in {path} and the weights from before them in {self.checkpoint}: look at the batch, or "
            "lower optimizer.rate, and start the run again."
        )

    def _end(self, why: str) -> Ended:
        """Save, and if nobody is in a hurry write the weights, judge and draw; what matters most comes first."""
        over = why in ("steps", "minutes")
        if over and self.pace.steps:
            self._log()
        if self.saved != self.step:
            self._save()
        weights = None
        if over and self.first and self.step and self.trainer.write_weights is not None:
            weights = self.place.weights
            self.trainer.write_weights(self.engine.average.network, weights)
        if over and self.validated != self.step:
            self._validate()
        if over and self.pictured != self.step:
            self._draw()
        wait_for_all()
        return Ended(self.step, why, self.checkpoint, weights, self.pace.life())
