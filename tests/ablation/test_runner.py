"""Runs of an ablation: each to its end once, whatever comes between."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from protoformer.ablation.plan import (
    TABLES,
    AblationPlan,
    AblationTable,
    EvaluationPlan,
    PlannedRun,
    RunBudget,
    base_recipe,
    plan_ablation,
)
from protoformer.ablation.runner import SPEED, AblationRunner
from protoformer.ablation.summary import read_result, summarize
from protoformer.training import checkpoint as checkpoints
from protoformer.training.run_folder import Observer, TrainingProgress, read_log
from protoformer.training.task import ValidationResult

SMALL = (
    *(
        "data.num_workers=0",
        "data.batch_size=1",
        "data.crop_size=[64, 64]",
        "data.families={objects: 1}",
        "run.precision=fp32",
    ),
    *("run.validation_scenes=2", "model.overrides.flow.num_train_updates=1", "model.overrides.flow.num_updates=1"),
)
TWO = AblationTable("iterations", "two of its rows", TABLES["iterations"].variants[1:3])


pytestmark = pytest.mark.usefixtures("few_textures")


ONE = AblationTable("iterations", "one of its rows", TABLES["iterations"].variants[1:2])


def plan_of(budget: RunBudget, *settings: str, task: str = "flow", table: AblationTable = TWO) -> AblationPlan:
    return plan_ablation(
        (table,), 1, base_recipe(task, "tiny", [*SMALL, *settings]), budget, EvaluationPlan(("sizes",), (64, 64))
    )


class Watching(Observer):
    """Begun: the runs that were. notes: of all. at: the step, in the first run's log, at which to ask for a stop."""

    def __init__(self, at: int | None = None) -> None:
        self.begun: list[str] = []
        self.notes: list[str] = []
        self.at = at

    def watch(self, run: PlannedRun, before: int) -> "Watching":
        self.begun.append(run.name)
        return self

    def on_log(self, progress: TrainingProgress) -> None:
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_message(self, sentence: str) -> None:
        self.notes.append(sentence)


def ablation(plan: AblationPlan, folder: Path, watching: Watching, **options: Any) -> AblationRunner:
    def counted(network: nn.Module) -> ValidationResult:
        return ValidationResult("sizes", {"epe": float(len(list(network.parameters())))})

    def speed(network: nn.Module) -> ValidationResult:
        assert not network.training
        return ValidationResult(SPEED, {"milliseconds": 2.5})

    options = {"validators": (counted,), **options}
    return AblationRunner(plan, folder, "cpu", speed, make_observer=watching.watch, **options)


def test_a_stopped_ablation_goes_on_and_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    plan, stopped, further, again = (
        plan_of(RunBudget(steps=3), "run.log_every=1"),
        Watching(at=2),
        Watching(),
        Watching(),
    )
    ended = ablation(plan, tmp_path, stopped).run()
    assert ended.stopped and not ended.results and not ended.failed and len(stopped.begun) == 1

    ended = ablation(plan, tmp_path, further).run()
    assert not ended.stopped and ended.results.keys() == plan.runs.keys() and len(further.begun) == 2
    for run in plan.runs.values():
        folder = tmp_path / "runs" / run.name
        assert sorted(path.name for path in folder.iterdir()) == ["log.jsonl", "result.json"]  # nothing large stays
        result = read_result(folder, run.key)
        assert result is not None and result == ended.results[run.key]
        assert (result.steps, result.seed, result.milliseconds, result.size) == (3, 0, 2.5, (64, 64))
        assert {"epe", "fl"} <= result.scores["synthetic"].keys() and result.scores["sizes"]["epe"] > 10
        assert result.parameters > 1e5 and 0 < result.gflops < 10 and result.seconds > 0
    first = next(iter(plan.runs.values()))
    starts = [
        each["step"] for each in read_log(tmp_path / "runs" / first.name / "log.jsonl") if each["event"] == "start"
    ]
    assert starts == [0, 2]

    assert ablation(plan, tmp_path, again).run() == ended and again.begun == []


def test_a_run_that_cannot_be_is_passed_over_and_named(tmp_path: Path) -> None:
    plan = plan_of(RunBudget(steps=1))
    first, second = plan.runs.values()
    (tmp_path / "runs" / first.name / "weights.safetensors").mkdir(parents=True)
    ended = ablation(plan, tmp_path, Watching()).run()
    assert ended.results.keys() == {second.key} and not ended.stopped
    assert "does not belong to a run" in ended.failed[first.key]


def test_depth_is_ablated_too_and_weights_are_kept_where_somebody_writes_them(tmp_path: Path) -> None:
    plan = plan_of(
        RunBudget(steps=1), "model.overrides.depth.num_updates=1", "run.validation_scenes=1", task="depth", table=ONE
    )
    written: list[Path] = []
    ended = ablation(plan, tmp_path, Watching(), write_weights=lambda _network, path: written.append(path)).run()
    assert [path.parent.name for path in written] == [run.name for run in plan.runs.values()]
    summary = summarize(plan, ONE, ended.results)
    assert summary.columns == ("synthetic abs_rel", "synthetic rmse") and summary.rows[0].published == (0.065, 2.737)


def test_a_run_by_minutes_resumes_with_its_learning_rate_and_remaining_minutes(tmp_path: Path) -> None:
    """Of 60 seconds 55 were over when it was stopped, as its checkpoint tells; the last 18 are for the rate's fall."""
    plan = plan_of(RunBudget(minutes=2), "run.log_every=1", "schedule.warm_up=0")
    run = next(iter(plan.runs.values()))
    folder = tmp_path / "runs" / run.name
    assert ablation(plan, tmp_path, Watching(at=1)).run().stopped
    found = checkpoints.load(folder / "checkpoints" / "step-00000001")
    shutil.rmtree(folder / "checkpoints")
    late = dataclasses.replace(found, record={**found.record, "elapsed": 55.0})
    checkpoints.save(folder / "checkpoints", late)
    assert ablation(plan, tmp_path, Watching(at=2)).run().stopped
    before, after = (each for each in read_log(folder / "log.jsonl") if each["event"] == "step")
    assert before["lr"] == run.recipe.optimizer.lr and 5 < before["seconds_left"] <= 60
    assert 0 < after["lr"] / run.recipe.optimizer.lr <= 5 / 18 and 0 < after["seconds_left"] <= 5


def test_a_finished_run_whose_result_is_damaged_starts_over_and_says_so(tmp_path: Path) -> None:
    plan, again = plan_of(RunBudget(steps=1), table=ONE), Watching()
    (first,) = plan.runs.values()
    ended = ablation(plan, tmp_path, Watching()).run()
    folder = tmp_path / "runs" / first.name
    (folder / "result.json").write_text("{")
    mended = ablation(plan, tmp_path, again).run()
    assert again.begun == [first.name] and not mended.failed
    assert mended.results[first.key].scores == ended.results[first.key].scores
    assert read_result(folder, first.key) == mended.results[first.key]
    assert again.notes == [f"the run in {folder} has neither a result nor a readable checkpoint, and starts over."]


def test_a_result_that_is_another_runs_or_damaged_is_none(tmp_path: Path) -> None:
    assert read_result(tmp_path, "a") is None
    for text in ("{", "[]", '{"key": "a"}'):
        (tmp_path / "result.json").write_text(text)
        assert read_result(tmp_path, "a") is None


def test_a_result_of_other_types_is_none(tmp_path: Path) -> None:
    figures = {"seconds": 2.0, "parameters": 3, "gflops": 0.5, "milliseconds": 4.0, "size": [64, 96]}
    good = {"key": "a", "seed": 0, "steps": 1, **figures, "device": "CPU", "scores": {"synthetic": {"epe": 1.5}}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(good))
    assert read_result(tmp_path, "a") is not None
    for change in (
        {"seconds": "x"},
        {"size": [1]},
        {"scores": [1]},
        {"scores": {"synthetic": {"epe": "x"}}},
        {"gflops": None},
    ):
        path.write_text(json.dumps(good | change))
        assert read_result(tmp_path, "a") is None, change
    for text in ("[" * 100_000, json.dumps(good | {"parameters": 10**400}), json.dumps(good | {"steps": float("nan")})):
        path.write_text(text)
        assert read_result(tmp_path, "a") is None
