"""The runs of an ablation, one after the other in one process, each by the ordinary loop."""

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
from protoformer.models.layers import meta_init
from protoformer.models.networks import build_network
from protoformer.models.profiling import count_operations, count_parameters
from protoformer.tasks import task_of
from protoformer.training import checkpoint as checkpoints
from protoformer.training.distributed import StopRequest, launch
from protoformer.training.loggers import Observer, read_log
from protoformer.training.run_folder import RunFolder
from protoformer.training.task import ValidationResult, ValidationSet, Validator
from protoformer.training.trainer import Trainer

SPEED = "speed"
"""The name under which a validator tells `milliseconds`."""


@dataclass(frozen=True)
class AblationResult:
    """How far an ablation is. results: by the runs' keys. failed: why, by key. stopped: whether somebody asked to."""

    results: dict[str, RunResult]
    failed: dict[str, str]
    stopped: bool


@dataclass(frozen=True)
class AblationRunner:
    """A plan, carried out in a folder; what is finished there is not done again, and what was begun goes on.

    validators: judge the trained network, each by one of the plan's datasets; `speed` tells its milliseconds. observed:
    whoever watches a run, given the run and how many were before it. write_weights: as of a `Trainer`, or None to keep
    no weights.
    """

    plan: AblationPlan
    folder: Path
    device: str
    speed: Validator
    validators: tuple[Validator, ...] = ()
    observed: Callable[[PlannedRun, int], Observer] = field(default=lambda _run, _before: Observer())
    write_weights: Callable[[nn.Module, Path], None] | None = None

    def run(self) -> AblationResult:
        """Train and judge what is left to do; what cannot be is passed over. A signal ends it after the step."""
        results: dict[str, RunResult] = {}
        failed: dict[str, str] = {}
        held_out: ValidationSet | None = None
        with StopRequest() as stop:
            for before, run in enumerate(self.plan.runs.values()):
                found = read_result(self.place(run), run.key)
                if found is None and not stop.signal_name:
                    held_out = held_out or self._prepared()
                    try:
                        found = self._trained(run, held_out, self.observed(run, before))
                    except InputError as error:
                        failed[run.key] = str(error)
                    _forget()
                if found is not None:
                    results[run.key] = found
        return AblationResult(
            results, failed, stopped=bool(stop.signal_name) and len(results) + len(failed) < len(self.plan.runs)
        )

    def place(self, run: PlannedRun) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / run.name

    def _prepared(self) -> ValidationSet:
        """The scenes that all runs, of whatever seed, are judged by. Textures are then there, too, for all of them."""
        make_folder(self.folder / "runs")
        task, device = task_of(self.plan.base.changed(["data.seed=0"])), launch(self.device).device
        task.source(0, 1, device, lambda _: None)
        return task.held_out(device)

    def _trained(self, run: PlannedRun, held_out: ValidationSet, watching: Observer) -> RunResult | None:
        """The result of a run, or None where it was stopped."""
        folder, heard = self.place(run), _Heard()
        judges = (held_out.validate, *self.validators, self.speed)
        ended = Trainer(
            run.recipe,
            task_of(run.recipe),
            folder,
            device=self.device,
            observers=(heard, watching),
            validators=judges,
            write_weights=self.write_weights,
            fresh=_begins_anew(RunFolder(folder), watching.noted),
            minutes_of_run=True,
        ).run()
        if ended.why not in ("steps", "minutes") or heard.step != ended.step or len(heard.scores) < len(judges):
            return None
        milliseconds = heard.scores.pop(SPEED)["milliseconds"]
        config, size = run.recipe.model.config(), self.plan.judging.size
        result = RunResult(
            *(run.key, run.seed, ended.step, ended.seconds),
            parameters=_parameters(self.plan.task, config),
            gflops=count_operations(self.plan.task, config, *size) / 1e9,
            milliseconds=milliseconds,
            size=size,
            device=_device_name(self.device),
            scores=heard.scores,
        )
        write_result(folder, result)
        checkpoints.clear(folder / "checkpoints")
        with suppress(OSError):
            (folder / "checkpoints").rmdir()
        return result


class _Heard(Observer):
    """Keeps what a network scored at the last step at which it was judged."""

    def __init__(self) -> None:
        self.step = -1
        self.scores: dict[str, dict[str, float]] = {}

    def validated(self, step: int, found: ValidationResult) -> None:
        """Keep it."""
        if step != self.step:
            self.step, self.scores = step, {}
        self.scores[found.name] = found.scores


def _begins_anew(place: RunFolder, told: Callable[[str], None]) -> bool:
    """Whether a run without a result begins anew, since it has no whole checkpoint; told: if that loses steps."""
    if place.begun():
        return False
    if any(record["step"] > 0 for record in read_log(place.log)):
        told(f"the run in {place.path} has neither a result nor a checkpoint that can be read, and starts over.")
    return True


def _parameters(task: str, config: ModelConfig) -> int:
    with meta_init():
        return count_parameters(build_network(task, config))


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _forget() -> None:
    """Give the memory of a network and its recorded step on a GPU back before the next one takes its own."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
