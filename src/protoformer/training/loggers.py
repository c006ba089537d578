"""Whoever watches a run: the loop tells, and knows nothing of bars, boards and pictures."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from protoformer.errors import InputError
from protoformer.io.files import system_reason, write_atomically
from protoformer.training.distributed import StopRequest, single_process
from protoformer.training.schedule import TimeBudget
from protoformer.training.task import Drawing, ValidationResult, ValidationSet, Validator


@dataclass(frozen=True)
class TrainingProgress:
    """The means over the steps since the last one of these.

    step: steps done. loss: None if none of the steps had a finite one. metrics: the task's, by name. rate: the learning
    rate. samples_per_second: of all processes, while they trained. seconds: training time in the run's life.
    data_share: of that time, spent waiting for data. skipped, broken: steps and samples passed over in the run's life.
    memory: the most that was taken on a GPU, bytes. left: seconds until the run's end, as far as it can be known.
    """

    step: int
    loss: float | None
    metrics: dict[str, float]
    rate: float
    samples_per_second: float
    seconds: float
    data_share: float
    skipped: int
    broken: int
    memory: int | None
    left: float | None


class Observer:
    """Does nothing; those who watch say what they want to see. Only the first of several processes tells."""

    def started(self, step: int, steps: int | None) -> None:
        """A go begins at this step; steps: the run's end, if there is one."""

    def logged(self, progress: TrainingProgress) -> None:
        """Every `log_every` steps."""

    def validated(self, step: int, found: ValidationResult) -> None:
        """The average of the weights was judged."""

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """A held-out sample and what the network makes of it: uint8 H x W x 3."""

    def saved(self, step: int, path: Path) -> None:
        """A checkpoint was written."""

    def noted(self, sentence: str) -> None:
        """Something that a person should know."""

    def ended(self, step: int) -> None:
        """The go is over, whatever ended it."""


class Observers(Observer):
    """Tells each of several."""

    def __init__(self, each: Sequence[Observer]) -> None:
        self.each = tuple(each)

    def started(self, step: int, steps: int | None) -> None:
        """Tell each."""
        for one in self.each:
            one.started(step, steps)

    def logged(self, progress: TrainingProgress) -> None:
        """Tell each."""
        for one in self.each:
            one.logged(progress)

    def validated(self, step: int, found: ValidationResult) -> None:
        """Tell each."""
        for one in self.each:
            one.validated(step, found)

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Tell each."""
        for one in self.each:
            one.pictured(step, name, pixels)

    def saved(self, step: int, path: Path) -> None:
        """Tell each."""
        for one in self.each:
            one.saved(step, path)

    def noted(self, sentence: str) -> None:
        """Tell each."""
        for one in self.each:
            one.noted(sentence)

    def ended(self, step: int) -> None:
        """Tell each."""
        for one in self.each:
            one.ended(step)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, in order; a line that was cut off when its writer died is left out."""
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
    """Writes what happens to a file. Each record has a step and an event: start, step, validation or checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def started(self, step: int, steps: int | None) -> None:
        """Forget what came after the step: that part of the run was lost, and will happen again."""
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        write_atomically(self.path, "".join(map(_line, kept)).encode())
        self._append({"event": "start", "step": step, "steps": steps})

    def logged(self, progress: TrainingProgress) -> None:
        """Write the figures."""
        self._append({"event": "step", **dataclasses.asdict(progress)})

    def validated(self, step: int, found: ValidationResult) -> None:
        """Write the scores."""
        self._append({"event": "validation", "step": step, "on": found.name, **found.scores})

    def saved(self, step: int, path: Path) -> None:
        """Write where."""
        self._append({"event": "checkpoint", "step": step, "path": path.name})

    def _append(self, record: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(record))
        except OSError as error:
            raise InputError(
                f"the log {self.path} could not be written ({system_reason(error)}), and the run ends at its last "
                "checkpoint; check the disk and its permissions, and start it again."
            ) from None


def _line(record: dict[str, Any]) -> str:
    return json.dumps(_plain(record)) + "\n"


def _plain(value: Any) -> Any:
    """For json, which has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


class TensorBoardLogger(Observer):
    """Curves and pictures for TensorBoard, in a folder; without TensorBoard it says so once, and does nothing.

    told: takes the one sentence.
    """

    def __init__(self, folder: Path, told: Callable[[str], None]) -> None:
        self.folder, self.told = folder, told
        self.writer: Any = None

    def started(self, step: int, steps: int | None) -> None:
        """Open the folder; what was drawn after the step is hidden, since it will happen again."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.told("TensorBoard is not installed, so there are no curves for it: pip install tensorboard adds them.")
            return
        self.writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def logged(self, progress: TrainingProgress) -> None:
        """A curve a figure."""
        if self.writer is None:
            return
        figures = dataclasses.asdict(progress)
        del figures["step"], figures["metrics"], figures["left"]
        for name, value in {**figures, **progress.metrics}.items():
            if value is not None:
                self.writer.add_scalar(f"training/{name}", value, progress.step)

    def validated(self, step: int, found: ValidationResult) -> None:
        """A curve a score."""
        if self.writer is not None:
            for name, value in found.scores.items():
                self.writer.add_scalar(f"{found.name}/{name}", value, step)

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """The picture."""
        if self.writer is not None:
            self.writer.add_image(name, pixels, step, dataformats="HWC")

    def ended(self, step: int) -> None:
        """Close the folder."""
        if self.writer is not None:
            self.writer.close()


SLOW = 10.0
"""Seconds of a validation that a run does not begin without having saved."""


class RunValidator:
    """Validates and draws, in the first of several processes alone.

    held_out: what to judge by, or None for nothing of the task's own. validators, draw: more of it, handed in. told:
    hears the results. budget: knows how long it takes. stop: may come between one validator and the next.
    """

    def __init__(
        self,
        held_out: ValidationSet | None,
        validators: tuple[Validator, ...],
        draw: Drawing | None,
        told: Observer,
        budget: TimeBudget,
        stop: StopRequest,
    ) -> None:
        self.held_out, self.draw, self.told, self.budget, self.stop = held_out, draw, told, budget, stop
        self.validators = validators if held_out is None else (held_out.validate, *validators)
        self.validated = self.pictured = -1  # the steps of the last ones

    @property
    def is_slow(self) -> bool:
        """Whether the last validation took so long that one should save before the next."""
        return self.budget.last.get("validation", 0.0) > SLOW

    def validate(self, step: int, network: nn.Module) -> None:
        """Score a network, which is in eval mode, unless that was done at this step."""
        if self.validated == step:
            return
        self.validated, start = step, self.budget.elapsed()
        with single_process():
            for validator in self.validators:
                if self.stop.asked:
                    return
                self.told.validated(step, validator(network))
        self.budget.last["validation"] = self.budget.elapsed() - start

    def picture(self, step: int, network: nn.Module) -> None:
        """Draw what a network, which is in eval mode, makes of a few samples, unless that was done at this step."""
        if self.pictured == step or self.draw is None or self.held_out is None or self.stop.asked:
            return
        self.pictured = step
        with self.budget.measured("pictures"):
            for example in self.held_out.examples(network):
                self.told.pictured(step, example.name, self.draw(example))
