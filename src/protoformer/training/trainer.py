"""The training loop of every task, on one device or many.

`_Session.run` is the loop; it reads from top to bottom. A run is a recipe in a folder; a session is one process
lifetime of that run, which starts it or resumes it from its last checkpoint.
"""

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

from protoformer.errors import InputError, shorten
from protoformer.io.files import short_repr, write_atomically
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import Checkpoint
from protoformer.training.distributed import (
    StopRequest,
    all_gather_text,
    all_reduce_max,
    barrier,
    launch,
    mean_over_ranks,
    restore_rng,
    rng_record,
    rng_tensors,
    world_size,
)
from protoformer.training.engine import MAX_BAD_STEPS, StepCounts, build_engine
from protoformer.training.prefetch import Batch, InFlight
from protoformer.training.recipe import Recipe
from protoformer.training.run_folder import (
    Observer,
    Observers,
    RunFolder,
    RunLog,
    RunValidator,
    TrainingProgress,
    versions,
)
from protoformer.training.schedule import Position, StepTimer, TimeBudget, lr_factor
from protoformer.training.task import Drawing, Task, Validator

if TYPE_CHECKING:
    from lightning.fabric import Fabric


STOP_SIGNALS = ("", "SIGTERM", "SIGINT")
"""Signals that end a session; processes exchange their index and act on the largest."""


@dataclass(frozen=True)
class TrainingEnd:
    """Outcome of a session.

    Attributes:
        step: Steps done in the whole run.
        stop_reason: "steps" or "minutes" for the limit that was reached, or the name of the signal.
        checkpoint: Path of the last checkpoint.
        weights: Path of the averaged weights, or None after a signal.
        seconds: Training time of the whole run.
    """

    step: int
    stop_reason: str
    checkpoint: Path
    weights: Path | None
    seconds: float


@dataclass(frozen=True)
class Trainer(Generic[Batch]):
    """Trains a recipe in a folder, or resumes the run there from its last intact checkpoint.

    Predictors and drawing are passed in, so that training does not depend on them.

    Attributes:
        recipe: Everything that defines the run.
        task: Network, data and loss of the recipe's task.
        folder: Folder of the run.
        device: cpu or cuda; `torchrun` assigns one GPU to each of its processes.
        observers: Receive progress, scores and images.
        validators: Score the averaged network on further data.
        draw: Draws a validation example, or None.
        write_weights: Writes the averaged network at the end, or None.
        slim: Save the optimizer's moments in bfloat16: checkpoints are a quarter smaller, and resuming is not exact.
        fresh: Start over, discarding the run in the folder.
        began: Start of the session's minutes, by time.monotonic().
        minutes_of_run: Count the recipe's minutes over all sessions of the run, training only.
    """

    recipe: Recipe
    task: Task[Batch]
    folder: Path
    device: str = "cpu"
    observers: tuple[Observer, ...] = ()
    validators: tuple[Validator, ...] = ()
    draw: Drawing | None = None
    write_weights: Callable[[nn.Module, Path], None] | None = None
    slim: bool = False
    fresh: bool = False
    began: float = field(default_factory=time.monotonic)
    minutes_of_run: bool = False

    def run(self) -> TrainingEnd:
        """Train until the steps or the minutes are over, or until a stop signal arrives."""
        fabric = launch(self.device)
        with StopRequest() as stop, ExitStack() as stack:
            session = _Session(self, fabric, stop, stack)
            try:
                return session.run()
            finally:
                session.observer.on_end(session.step)


@dataclass(frozen=True)
class _LoopStatus:
    """Decision before a step, the same in all processes.

    Attributes:
        time_fraction: Fraction of the training time that has passed, or None without a limit.
        save_due: Whether to write a checkpoint now.
        stop_reason: "steps", "minutes" or a signal's name where the session ends, else empty.
    """

    time_fraction: float | None
    save_due: bool = False
    stop_reason: str = ""


class _Session(Generic[Batch]):
    """One process lifetime of a run.

    Attributes:
        step: Steps done in the whole run.
        start_step: Steps done when the session started.
    """

    def __init__(self, trainer: Trainer[Batch], fabric: "Fabric", stop: StopRequest, stack: ExitStack) -> None:
        self.trainer, self.recipe, self.task = trainer, trainer.recipe, trainer.task
        self.stop, self.stack, self.device, self.is_main = stop, stack, fabric.device, fabric.is_global_zero
        self.run_folder = RunFolder(trainer.folder)
        # Of several processes, only rank 0 writes, draws and reports.
        self.observer = Observers((RunLog(self.run_folder.log), *trainer.observers) if self.is_main else ())
        run = self.recipe.run
        self.budget = TimeBudget(run.steps, run.minutes, trainer.began, include_end=not trainer.minutes_of_run)
        self.timer = StepTimer(self.device)
        self.step = self.start_step = 0
        self.time_fraction = self.budget.fraction(0.0)
        self.lr = self._get_lr(self.time_fraction)  # refuses a schedule without an end before any file is touched
        self.engine = build_engine(fabric, self.recipe, self.task)
        self.source = self.task.source(fabric.global_rank, world_size(), self.device, self.observer.on_message)
        validation_set = self.task.validation_set(self.device) if run.validation_scenes else None
        self.validator = RunValidator(
            validation_set, trainer.validators, trainer.draw, self.observer, self.budget, stop
        )
        self.in_flight = InFlight(self.device)
        self.checkpoint = self.run_folder.checkpoints
        self.saved_step, self.saved_time = -1, 0.0  # of the last checkpoint
        self.verified: set[Path] = set()  # checkpoints that this session wrote or read
        self.has_warned = False  # that no step has changed the weights yet

    def run(self) -> TrainingEnd:
        """Run the training loop."""
        run, guard, average = self.recipe.run, self.engine.guard, self.engine.average.network
        self._start_or_resume()
        batches = self.source.batches(self.step)
        while True:
            status = self._poll()
            if status.stop_reason:
                break
            if status.save_due:
                with barrier():
                    self._save()

            # Fetch a batch, then forward, backward, clip, AdamW and weight average.
            with self._save_on_error(), self.timer.waiting():
                batch = next(batches)
            with self.timer.working():
                self.lr = self._get_lr(status.time_fraction)
                self.engine.step(self.task.tensors(batch), self.lr)
                self.in_flight.add_step()
            self.step += 1
            self.timer.stepped()

            # Log, validate and draw. Reading the guard synchronizes a GPU, so there it is read only with the log.
            log_due = self.step % run.log_every == 0
            if (log_due or self.device.type == "cpu") and guard.is_fatal():
                self._abort_on_bad_steps()
            if log_due:
                self._log()
            if self.is_main and run.validate_every and self.step % run.validate_every == 0:
                if self.validator.is_slow:
                    self._save_if_changed()
                self.validator.validate(self.step, average)
            if self.is_main and run.draw_every and self.step % run.draw_every == 0:
                self.validator.draw_examples(self.step, average)
        return self._finish(status.stop_reason)

    def _start_or_resume(self) -> None:
        """Restore the folder's last checkpoint, or write the first one of a new run."""
        resumed = False
        with barrier():
            if self.is_main:
                resumed = self._resume()
        self.step = self.start_step = int(all_reduce_max([self.step])[0])
        self.engine.broadcast()
        with barrier():
            self.observer.on_start(self.step, self.recipe.run.steps)
            if not resumed:
                self._save()  # detects a full disk now rather than after an hour

    def _resume(self) -> bool:
        """Lock the folder and restore its last checkpoint; returns whether there is one."""
        self.stack.enter_context(self.run_folder.lock())
        if self.trainer.fresh:
            self.run_folder.clear()
            return False
        loaded = self.run_folder.load_last(self.recipe, self.observer.on_message)
        if loaded is None:
            return False
        path, state = loaded
        try:
            self._restore(path, state)  # its files are intact, but its content may be anything
            return True
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"the checkpoint {path} does not hold the state of a run ({shorten(error)}); use another one, "
                "or start over with --fresh."
            ) from None

    def _restore(self, path: Path, state: Checkpoint) -> None:
        record, tensors = state.record, state.tensors
        self.engine.restore({name: tensor for name, tensor in tensors.items() if not name.startswith("random.")})
        # Neither the loop nor a source draws random numbers, so the other ranks need no random state of their own.
        restore_rng(tensors, record["random"], self.device)
        self.step, self.timer.seconds = state.step, _check_seconds(record["seconds"])
        self.source.broken.reasons.update({name: str(reason) for name, reason in record["broken"].items()})
        if record.get("device") == self.device.type:  # durations measured on another device do not apply
            self.budget.durations = {name: _check_seconds(seconds) for name, seconds in record["took"].items()}
        if self.trainer.minutes_of_run:
            self.budget.resume(_check_seconds(record["elapsed"]))
        self.saved_step, self.saved_time, self.checkpoint = self.step, self.budget.elapsed(), path
        self.verified.add(path)

    def _poll(self) -> _LoopStatus:
        """Decide, in agreement with all processes, whether to save or to stop before the next step."""
        run, step = self.recipe.run, self.step
        if run.steps is not None and step >= run.steps:
            return _LoopStatus(self.time_fraction, stop_reason="steps")
        elapsed, available = self.budget.elapsed(), self.budget.training_seconds()
        # A session always does at least one step, however short its time is.
        is_late = (
            available is not None and step > self.start_step and elapsed + self.timer.seconds_per_step() > available
        )
        by_steps = run.checkpoint_every > 0 and step % run.checkpoint_every == 0
        by_time = 0 < 60 * run.checkpoint_minutes <= elapsed - self.saved_time
        save_due = (by_steps or by_time) and self.saved_step != step
        # Only rank 0 decides about time: it alone saves and validates, and has measured how long that takes.
        own = (save_due, is_late, self.budget.fraction(elapsed) or 0.0) if self.is_main else (0.0, 0.0, 0.0)
        signal_index, save_now, time_over, time_fraction = all_reduce_max(
            (STOP_SIGNALS.index(self.stop.signal_name), *own)
        )
        self.time_fraction = None if available is None else time_fraction
        stop_reason = STOP_SIGNALS[int(signal_index)] or ("minutes" if time_over else "")
        return _LoopStatus(self.time_fraction, bool(save_now), stop_reason)

    def _get_lr(self, time_fraction: float | None) -> float:
        position = Position(self.step, self.recipe.run.steps, time_fraction, self.start_step)
        return self.recipe.optimizer.lr * lr_factor(self.recipe.schedule, position)

    @contextmanager
    def _save_on_error(self) -> Iterator[None]:
        """Save a checkpoint before an `InputError` of any process ends all of them."""
        try:
            with barrier():
                yield
        except (InputError, SystemExit):
            self._save_if_changed()
            raise

    def _log(self) -> None:
        """Report the means since the last log."""
        with self.timer.working():
            sums = mean_over_ranks(self.engine.guard.sums.clone())
            counts = self.engine.guard.read_counts(sums)
        self._sync_broken_samples()
        if not counts.learned and not self.has_warned:
            self.has_warned = True
            self.observer.on_message(
                f"no step has changed the weights so far: {_explain_no_updates(self.step, counts)}."
            )
        loss, *metrics = counts.means
        seconds, steps = max(self.timer.window_seconds(), 1e-9), self.timer.steps
        on_gpu = self.device.type == "cuda"
        progress = TrainingProgress(
            step=self.step,
            loss=loss if counts.good else None,
            metrics=dict(zip(self.task.metrics, metrics, strict=True)) if counts.good else {},
            lr=self.lr,
            samples_per_second=self.recipe.data.batch_size * steps / seconds,
            seconds=self.timer.total_seconds(),
            data_fraction=self.timer.data_fraction(),
            skipped_steps=counts.skipped,
            broken_samples=len(self.source.broken),
            peak_memory=torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            seconds_left=self.budget.seconds_left(self.step, seconds / max(1, steps)),
        )
        self.engine.guard.clear()
        self.timer.clear()
        self.observer.on_log(progress)

    def _sync_broken_samples(self) -> None:
        """Merge the unreadable samples of all processes; rank 0 reports them and checks their number."""
        if world_size() == 1:
            return  # the source has done both
        broken = self.source.broken
        for reasons in all_gather_text(json.dumps(broken.reasons)):
            broken.add(json.loads(reasons))
        with self._save_on_error():
            if self.is_main:
                broken.check()

    def _save_if_changed(self) -> None:
        """Save a checkpoint unless this step was saved."""
        if self.saved_step != self.step:
            self._save()

    def _save(self) -> None:
        """Write a checkpoint, in rank 0 only."""
        if not self.is_main:
            return
        with self.budget.measure("save"):
            state = self.engine.state(slim=self.trainer.slim)
            tensors = {name: tensor.detach().cpu() for name, tensor in state.items()}
            tensors |= rng_tensors(self.device)
            record: dict[str, Any] = {
                "recipe": self.recipe.as_dict(),
                "position": self.step,  # index of the next batch: every step uses one, also where it is skipped
                "seconds": self.timer.total_seconds(),
                "elapsed": self.budget.elapsed(),
                "broken": self.source.broken.reasons,
                "took": self.budget.durations,
                "device": self.device.type,
                "random": rng_record(),
                "versions": versions(),
            }
            self.checkpoint = checkpoints.save(
                self.run_folder.checkpoints,
                Checkpoint(self.step, tensors, record),
                verified=self.verified,
            )
        self.verified = {self.checkpoint, *(path for path in self.verified if path.exists())}
        self.saved_step, self.saved_time = self.step, self.budget.elapsed()
        self.observer.on_checkpoint(self.step, self.checkpoint)

    def _abort_on_bad_steps(self) -> None:
        """Save the last good weights and the first bad batch, then raise."""
        number = self.engine.guard.read_counts().fatal
        assert number is not None
        self.engine.guard.reset_row()
        self._save()
        tensors = self.task.tensors(next(iter(self.source.batches(number))))
        suffix = "" if world_size() == 1 else f"-of-process-{torch.distributed.get_rank()}"
        path = self.run_folder.path / f"bad-batch-{number:08d}{suffix}.safetensors"
        write_atomically(path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
        with barrier():
            if self.is_main:
                raise InputError(
                    f"{MAX_BAD_STEPS} steps in a row, from step {number} on, had a loss or a gradient that is not "
                    f"finite; the first of their batches is in {path} and the weights before them are in "
                    f"{self.checkpoint}: check the batch, or lower optimizer.lr, and start the run again."
                )

    def _finish(self, stop_reason: str) -> TrainingEnd:
        """Save, and unless a signal ended the session, write the weights first and then validate and draw."""
        completed, weights = stop_reason in ("steps", "minutes"), None
        if completed and self.timer.steps:
            self._log()
        with barrier():
            if self.is_main:
                self._save_if_changed()
                start_step = 0 if self.trainer.minutes_of_run else self.start_step
                if stop_reason == "minutes" and self.step - start_step == 1:
                    self.observer.on_message(
                        "the minutes of this session were over after one step; give it more minutes."
                    )
                if completed:
                    self._refuse_untrained_weights()
                    weights = self._write_and_validate()
        return TrainingEnd(self.step, stop_reason, self.checkpoint, weights, self.timer.total_seconds())

    def _refuse_untrained_weights(self) -> None:
        """Raise where no step has changed the weights, so that they are not written or scored as trained ones."""
        counts = self.engine.guard.read_counts()
        if not counts.learned and (counts.empty or self.trainer.write_weights is not None):
            raise InputError(
                f"no step changed the weights, so none were written: {_explain_no_updates(self.step, counts)}; check "
                "the recipe's data and which of its targets are valid."
            )

    def _write_and_validate(self) -> Path | None:
        """Write, validate and draw the averaged network; returns the path of the weights, if any are written."""
        average, weights = self.engine.average.network, None
        if self.trainer.write_weights is not None:
            weights = self.run_folder.weights
            self.trainer.write_weights(average, weights)
        self.validator.validate(self.step, average)
        self.validator.draw_examples(self.step, average)
        return weights


def _check_seconds(value: Any) -> float:
    """Return a duration of a checkpoint's record, or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{short_repr(value)} is not a number of seconds")
    return float(value)


def _explain_no_updates(step: int, counts: StepCounts) -> str:
    """Explain why no step changed the weights."""
    return (
        f"of {step} steps, {counts.empty} had no valid target, such as a pixel with ground truth, and "
        f"{counts.skipped} had a loss or a gradient that is not finite"
    )
