"""Runs an ablation plan: trains and evaluates its runs one after another in one process."""

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from protoformer.ablation.plan import AblationPlan, PlannedRun
from protoformer.ablation.summary import RunResult, read_result, write_result
from protoformer.errors import InputError
from protoformer.io.files import make_folder
from protoformer.models.config import ModelConfig
from protoformer.models.profiling import count_operations, count_parameters
from protoformer.models.protoformer import build_network
from protoformer.models.runtime import meta_init
from protoformer.tasks import task_of
from protoformer.training import checkpoint as checkpoints
from protoformer.training.distributed import StopRequest, launch
from protoformer.training.run_folder import Observer, RunFolder, read_log
from protoformer.training.task import ValidationResult, ValidationSet, Validator
from protoformer.training.trainer import Trainer

SPEED = "speed"
"""Name of the validation result that holds `milliseconds`."""


@dataclass(frozen=True)
class AblationResult:
    """Outcome of an ablation.

    Attributes:
        results: Results of the finished runs, by key.
        failed: Error messages of the failed runs, by key.
        stopped: Whether a signal stopped it before all runs were done.
    """

    results: dict[str, RunResult]
    failed: dict[str, str]
    stopped: bool


@dataclass(frozen=True)
class AblationRunner:
    """Carries out a plan in a folder; finished runs are skipped and interrupted ones are resumed.

    Attributes:
        plan: Runs to train.
        folder: Folder of the ablation.
        device: cpu or cuda.
        speed: Measures the milliseconds of a forward pass.
        validators: Score the trained network, one for each of the plan's datasets.
        make_observer: Returns the observer of a run, given the run and the number of runs before it.
        write_weights: As in `Trainer`, or None to keep no weights.
    """

    plan: AblationPlan
    folder: Path
    device: str
    speed: Validator
    validators: tuple[Validator, ...] = ()
    make_observer: Callable[[PlannedRun, int], Observer] = field(default=lambda _run, _before: Observer())
    write_weights: Callable[[nn.Module, Path], None] | None = None

    def run(self) -> AblationResult:
        """Train and evaluate the unfinished runs; failed ones are skipped, and a signal ends it after a step."""
        results: dict[str, RunResult] = {}
        failed: dict[str, str] = {}
        validation_set: ValidationSet | None = None
        with StopRequest() as stop:
            for before, run in enumerate(self.plan.runs.values()):
                result = read_result(self.run_folder(run), run.key)
                if result is None and not stop.signal_name:
                    validation_set = validation_set or self._build_validation_set()
                    try:
                        result = self._train(run, validation_set, self.make_observer(run, before))
                    except InputError as error:
                        failed[run.key] = str(error)
                    _free_gpu_memory()
                if result is not None:
                    results[run.key] = result
        return AblationResult(
            results, failed, stopped=bool(stop.signal_name) and len(results) + len(failed) < len(self.plan.runs)
        )

    def run_folder(self, run: PlannedRun) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run.name

    def _build_validation_set(self) -> ValidationSet:
        """Build the validation scenes that runs of all seeds share; this also caches the textures."""
        make_folder(self.folder / "runs")
        task, device = task_of(self.plan.base.changed(["data.seed=0"])), launch(self.device).device
        task.source(0, 1, device, lambda _: None)
        return task.validation_set(device)

    def _train(self, run: PlannedRun, validation_set: ValidationSet, observer: Observer) -> RunResult | None:
        """Train a run and return its result, or None if it was stopped."""
        folder, recorder = self.run_folder(run), _ScoreRecorder()
        validators = (validation_set.validate, *self.validators, self.speed)
        ended = Trainer(
            run.recipe,
            task_of(run.recipe),
            folder,
            device=self.device,
            observers=(recorder, observer),
            validators=validators,
            write_weights=self.write_weights,
            fresh=_must_start_over(RunFolder(folder), observer.on_message),
            minutes_of_run=True,
        ).run()
        if (
            ended.stop_reason not in ("steps", "minutes")
            or recorder.step != ended.step
            or len(recorder.scores) < len(validators)
        ):
            return None
        milliseconds = recorder.scores.pop(SPEED)["milliseconds"]
        config, size = run.recipe.model.config(), self.plan.evaluation.size
        result = RunResult(
            *(run.key, run.seed, ended.step, ended.seconds),
            parameters=_count_parameters(self.plan.task, config),
            gflops=count_operations(self.plan.task, config, *size) / 1e9,
            milliseconds=milliseconds,
            size=size,
            device=_device_name(self.device),
            scores=recorder.scores,
        )
        write_result(folder, result)
        checkpoints.clear(folder / "checkpoints")
        with suppress(OSError):
            (folder / "checkpoints").rmdir()
        return result


class _ScoreRecorder(Observer):
    """Records the scores of the last validation."""

    def __init__(self) -> None:
        self.step = -1
        self.scores: dict[str, dict[str, float]] = {}

    def on_validation(self, step: int, result: ValidationResult) -> None:
        """Record the scores."""
        if step != self.step:
            self.step, self.scores = step, {}
        self.scores[result.name] = result.scores


def _must_start_over(run_folder: RunFolder, on_message: Callable[[str], None]) -> bool:
    """Return whether a run without a result has no intact checkpoint to resume from; report lost steps."""
    if run_folder.begun():
        return False
    if any(record["step"] > 0 for record in read_log(run_folder.log)):
        on_message(f"the run in {run_folder.path} has neither a result nor a readable checkpoint, and starts over.")
    return True


def _count_parameters(task: str, config: ModelConfig) -> int:
    with meta_init():
        return count_parameters(build_network(config, task))


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _free_gpu_memory() -> None:
    """Release the GPU memory of a network and its CUDA graph before the next run."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
