"""The folder of a run: its files, its lock, the checks before a run, and the observers that write log and curves."""

import dataclasses
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from protoformer import __version__
from protoformer.errors import InputError, install_command
from protoformer.io.files import json_value, make_folder, short_repr, system_reason, write_atomically
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import Checkpoint
from protoformer.training.distributed import StopRequest, single_process
from protoformer.training.recipe import Recipe
from protoformer.training.schedule import TimeBudget
from protoformer.training.task import Drawing, ValidationResult, ValidationSet, Validator


@dataclass(frozen=True)
class TrainingProgress:
    """Means over the steps since the last log.

    Attributes:
        step: Steps done.
        loss: Mean loss, or None if no step had a finite one.
        metrics: The task's metrics by name.
        lr: Learning rate.
        samples_per_second: Training throughput of all processes.
        seconds: Training time of the whole run.
        data_fraction: Fraction of the time since the last log spent waiting for data.
        skipped_steps: Steps skipped in the whole run because they were not finite.
        broken_samples: Samples of the whole run that could not be read.
        peak_memory: Peak GPU memory, bytes; None on a CPU.
        seconds_left: Estimated seconds until the end of the run; None without a limit.
    """

    step: int
    loss: float | None
    metrics: dict[str, float]
    lr: float
    samples_per_second: float
    seconds: float
    data_fraction: float
    skipped_steps: int
    broken_samples: int
    peak_memory: int | None
    seconds_left: float | None


class Observer:
    """Callbacks of the training loop that do nothing; only rank 0 calls them."""

    def on_start(self, step: int, steps: int | None) -> None:
        """Called when a session starts at `step`; `steps` is the run's total, or None."""

    def on_log(self, progress: TrainingProgress) -> None:
        """Called every `log_every` steps."""

    def on_validation(self, step: int, result: ValidationResult) -> None:
        """Called with the scores of the averaged network."""

    def on_image(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Called with the drawing of a validation example, uint8 H x W x 3."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Called after a checkpoint was written."""

    def on_message(self, sentence: str) -> None:
        """Called with a sentence for the user."""

    def on_end(self, step: int) -> None:
        """Called when the session ends, also by an error."""


class Observers(Observer):
    """Forwards every call to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        def forward(name: str) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                for observer in observers:
                    getattr(observer, name)(*arguments)

            return call

        for name in vars(Observer):
            if name.startswith("on_"):
                setattr(self, name, forward(name))


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the records of a log, in order, without lines that were cut off when the process died."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


class RunLog(Observer):
    """Appends JSON lines to a file; each has a step and an event: start, step, validation or checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, step: int, steps: int | None) -> None:
        """Remove the records after `step`, because a resumed run repeats those steps."""
        records = [record for record in read_log(self.path) if record["step"] <= step]
        write_atomically(self.path, "".join(map(_to_line, records)).encode())
        self._append({"event": "start", "step": step, "steps": steps})

    def on_log(self, progress: TrainingProgress) -> None:
        """Append the progress."""
        self._append({"event": "step", **dataclasses.asdict(progress)})

    def on_validation(self, step: int, result: ValidationResult) -> None:
        """Append the scores."""
        self._append({"event": "validation", "step": step, "dataset": result.name, **result.scores})

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Append the checkpoint's name."""
        self._append({"event": "checkpoint", "step": step, "path": path.name})

    def _append(self, record: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_to_line(record))
        except OSError as error:
            raise InputError(
                f"the log {self.path} could not be written ({system_reason(error)}), so the run ends at its last "
                "checkpoint; check the disk and its permissions, and start the run again."
            ) from None


def _to_line(record: dict[str, Any]) -> str:
    return json.dumps(json_value(record)) + "\n"


class TensorBoardLogger(Observer):
    """Writes curves and images for TensorBoard; does nothing where TensorBoard is not installed."""

    def __init__(self, folder: Path, on_message: Callable[[str], None]) -> None:
        """Write to a folder; `on_message` is called with one sentence if TensorBoard is not installed."""
        self.folder, self.warn = folder, on_message
        self.writer: Any = None

    def on_start(self, step: int, steps: int | None) -> None:
        """Open the folder and purge events after `step`, because a resumed run repeats those steps."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.warn(f"TensorBoard is not installed, so no curves are written: {install_command('board')}.")
            return
        self.writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def on_log(self, progress: TrainingProgress) -> None:
        """Add the progress as scalars."""
        if self.writer is None:
            return
        scalars = dataclasses.asdict(progress)
        del scalars["step"], scalars["metrics"], scalars["seconds_left"]
        for name, value in {**scalars, **progress.metrics}.items():
            if value is not None:
                self.writer.add_scalar(f"training/{name}", value, progress.step)

    def on_validation(self, step: int, result: ValidationResult) -> None:
        """Add the scores as scalars."""
        if self.writer is not None:
            for name, value in result.scores.items():
                self.writer.add_scalar(f"{result.name}/{name}", value, step)

    def on_image(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Add the image."""
        if self.writer is not None:
            self.writer.add_image(name, pixels, step, dataformats="HWC")

    def on_end(self, step: int) -> None:
        """Close the writer."""
        if self.writer is not None:
            self.writer.close()


SLOW_VALIDATION_SECONDS = 10.0
"""A checkpoint is written before a validation that is expected to take longer."""


class RunValidator:
    """Validates the averaged network and draws examples, in rank 0 only."""

    def __init__(
        self,
        validation_set: ValidationSet | None,
        validators: tuple[Validator, ...],
        draw: Drawing | None,
        observer: Observer,
        budget: TimeBudget,
        stop: StopRequest,
    ) -> None:
        """Collect the validators; a stop request ends the validation between two of them."""
        self.validation_set, self.draw, self.observer = validation_set, draw, observer
        self.budget, self.stop = budget, stop
        self.validators = validators if validation_set is None else (validation_set.validate, *validators)
        self._validated_step = self._drawn_step = -1

    @property
    def is_slow(self) -> bool:
        """Whether the last validation took so long that a checkpoint should be written before the next."""
        return self.budget.durations.get("validation", 0.0) > SLOW_VALIDATION_SECONDS

    def validate(self, step: int, network: nn.Module) -> None:
        """Score a network in eval mode, unless this step was validated."""
        if self._validated_step == step:
            return
        self._validated_step, start = step, self.budget.elapsed()
        with single_process():
            for validator in self.validators:
                if self.stop.signal_name:
                    return
                self.observer.on_validation(step, validator(network))
        self.budget.durations["validation"] = self.budget.elapsed() - start

    def draw_examples(self, step: int, network: nn.Module) -> None:
        """Draw the predictions of a network in eval mode on a few samples, unless this step was drawn."""
        if self._drawn_step == step or self.draw is None or self.validation_set is None or self.stop.signal_name:
            return
        self._drawn_step = step
        with self.budget.measure("drawing"):
            for example in self.validation_set.examples(network):
                self.observer.on_image(step, example.name, self.draw(example))


UNREPORTED_KEYS = ("description", "run.minutes")
"""Recipe keys that may change between sessions of a run without a note."""
CHANGEABLE_MODEL_KEYS = ("model.init_weights", "model.activation_checkpointing")
"""Keys of the model section that may change, because they do not affect the shapes or the meaning of the weights."""


class RunFolder:
    """Paths in the folder of a run.

    Attributes:
        path: The folder.
        checkpoints: Folder of checkpoints.
        log: Log as JSON lines.
        weights: Averaged weights, written at the end.
        board: Folder of TensorBoard events.
        summary: Image with curves and examples, written at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.jsonl"
        self.weights = path / "weights.safetensors"
        self.board = path / "tensorboard"
        self.summary = path / "summary.png"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder if needed and lock it against other runs.

        Raises:
            InputError: If the folder holds weights of something else, or another process trains there.
        """
        self._refuse_foreign_weights()
        make_folder(self.checkpoints)
        with ExitStack() as stack:
            try:
                stack.enter_context(checkpoints.lock_folder(self.path))
            except BlockingIOError:
                raise InputError(
                    f"another process trains in {self.path}; wait for it to end, or choose another folder."
                ) from None
            except OSError as error:
                raise InputError(
                    f"the folder {self.path} cannot be read ({system_reason(error)}); choose another."
                ) from None
            yield

    def begun(self) -> bool:
        """Return whether there is an intact checkpoint to resume from."""
        return checkpoints.find_newest(self.checkpoints, lambda _: None) is not None

    def load_last(self, recipe: Recipe, on_message: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
        """Load the checkpoint to resume from.

        Args:
            recipe: Recipe of this session.
            on_message: Called with a sentence for each damaged checkpoint and each changed recipe key.

        Returns:
            Path and content of the checkpoint, or None in a folder without a run.

        Raises:
            InputError: If the run in the folder trains another network, or its checkpoints are all damaged.
        """
        loaded = checkpoints.load_newest(self.checkpoints, on_message)
        if loaded is None:
            self._refuse_leftovers()
            return None
        self._compare_recipes(recipe, loaded[1].record, on_message)
        return loaded

    def clear(self) -> None:
        """Remove the files of a run (checkpoints, log, weights, curves and summary) and nothing else."""
        try:
            for path in (self.log, self.weights, self.summary, *self.board.glob("events.out.tfevents.*")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(
                f"{path} cannot be removed ({system_reason(error)}); move it away, or choose another folder."
            ) from None
        checkpoints.clear(self.checkpoints)

    def _refuse_foreign_weights(self) -> None:
        """Raise where the run would overwrite weights that no run has written."""
        has_run = self.checkpoints.is_dir() or bool(read_log(self.log))
        if self.weights.is_dir() or (self.weights.exists() and not has_run):
            raise InputError(
                f"{self.weights} does not belong to a run, and a run would write its weights there; move it away, or "
                "choose another folder."
            )

    def _refuse_leftovers(self) -> None:
        """Raise where a run without an intact checkpoint would be lost; one without a step may be overwritten."""
        leftovers = []
        if any(record["step"] > 0 for record in read_log(self.log)):
            leftovers.append(self.log)
        if self.weights.exists():
            leftovers.append(self.weights)
        if any(step > 0 for step in checkpoints.list_steps(self.checkpoints)):
            leftovers.append(self.checkpoints)
        if leftovers:
            raise InputError(
                f"{leftovers[0]} belongs to a run that cannot be resumed, because it has no intact checkpoint; "
                "choose another folder, or start over with --fresh."
            )

    def _compare_recipes(self, recipe: Recipe, record: dict[str, Any], on_message: Callable[[str], None]) -> None:
        """Raise where the run's recipe is of another network, and report its other differences."""
        try:
            previous = Recipe.from_dict(record["recipe"])
        except KeyError:
            raise InputError(
                f"the checkpoint of the run in {self.path} has no recipe; choose another folder, or start over with "
                "--fresh."
            ) from None
        for key in recipe.differences(previous):
            new, old = (_get(each.as_dict(), key) for each in (recipe, previous))
            if key == "task" or (key.startswith("model.") and key not in CHANGEABLE_MODEL_KEYS):
                raise InputError(
                    f"the run in {self.path} has {key} {short_repr(old)}, not {short_repr(new)}, so its weights are of "
                    "another network; resume with the same value, choose another folder, or start over with --fresh."
                )
            if key not in UNREPORTED_KEYS:
                on_message(f"{key} changes from {short_repr(old)} to {short_repr(new)}.")


def _get(values: Any, key: str) -> Any:
    """Return the value at a dotted key, or None."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def versions() -> dict[str, str]:
    """Return the versions of the software that a run uses."""
    return {"protoformer": __version__, "torch": torch.__version__, "python": platform.python_version()}
