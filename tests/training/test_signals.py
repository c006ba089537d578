"""A run that is asked to stop, and one that is not asked."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from protoformer.flow.training import FlowTask
from protoformer.training.distributed import StopRequest
from protoformer.training.recipe import read_recipe
from protoformer.training.run_folder import read_log
from protoformer.training.trainer import Trainer

RECIPE = """
model: {preset: tiny, overrides: {flow: {num_train_updates: 2}}}
data: {batch_size: 1, crop_size: [64, 64], families: {objects: 1}}
schedule: {kind: one_cycle}
run: {steps: 7, log_every: 1, checkpoint_every: 3, validate_every: 0, draw_every: 0, validation_scenes: 0}
"""


def test_the_first_request_is_remembered_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        assert stop.signal_name == ""
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_name == "SIGTERM"
        signal.raise_signal(signal.SIGTERM)  # impatience that is not a person's changes nothing
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_nested_stop_request_is_passed_to_the_enclosing_one() -> None:
    with StopRequest() as around:
        with StopRequest() as within:
            signal.raise_signal(signal.SIGTERM)
            assert (within.signal_name, around.signal_name) == ("SIGTERM", "")
        assert around.signal_name == "SIGTERM"


def test_a_second_control_c_stops_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal_name == "SIGINT"
        signal.raise_signal(signal.SIGINT)


def signalled(trainer: Trainer[Any], step: int, *signals: signal.Signals) -> Trainer[Any]:
    """The trainer, whose process gets signals in the middle of a step."""
    plain, count = trainer.task.tensors, iter(range(10_000))

    def tensors(batch: Any) -> dict[str, torch.Tensor]:
        if next(count) == step:
            for each in signals:
                signal.raise_signal(each)
        return plain(batch)

    trainer.task.tensors = tensors  # type: ignore[method-assign]
    return trainer


@pytest.mark.parametrize("each", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_finishes_its_step_and_goes_on_exactly(
    lines, tmp_path: Path, each: signal.Signals
) -> None:
    lines.trainer(tmp_path / "whole").run()
    written: list[Path] = []
    write: Callable[[Any, Path], None] = lambda _, path: written.append(path)  # noqa: E731
    ended = signalled(lines.trainer(tmp_path / "stopped", write_weights=write), 16, each).run()
    assert (ended.step, ended.stop_reason, ended.weights, written) == (17, each.name, None, [])
    assert lines.last(tmp_path / "stopped").step == 17
    assert lines.trainer(tmp_path / "stopped", write_weights=write).run().step == 40
    whole, stopped = lines.last(tmp_path / "whole"), lines.last(tmp_path / "stopped")
    assert all(torch.equal(tensor, stopped.tensors[name]) for name, tensor in whole.tensors.items())
    assert written == [tmp_path / "stopped" / "weights.safetensors"]


def test_two_control_c_leave_the_last_checkpoint(lines, tmp_path: Path, recorder) -> None:
    trainer = lines.trainer(tmp_path, lines.recipe(checkpoint_every=5), observers=(recorder,))
    with pytest.raises(KeyboardInterrupt):
        signalled(trainer, 12, signal.SIGINT, signal.SIGINT).run()
    assert lines.last(tmp_path).step == 10
    assert recorder.events[-1] == ("on_end", 12)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


@contextmanager
def started(recipe: Path, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "protoformer",
        "train",
        str(recipe),
        "-o",
        str(folder),
        "--device",
        "cpu",
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def await_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until the log tells of a step."""
    end = time.monotonic() + 120
    while not any(record["step"] >= step for record in read_log(folder / "log.jsonl")):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)


def test_sigterm_to_the_command_saves_and_is_no_failure(lines, recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(recipe, folder, "--steps", "10000") as process:
        await_step(folder, 2, process)
        process.terminate()
        out, err = process.communicate(timeout=60)
    step = lines.last(folder).step
    assert (process.returncode, err) == (0, "") and step >= 2
    path = folder / "checkpoints" / f"step-{step:08d}"
    assert out == f"stopped by SIGTERM at step {step} and saved {path}; repeat the command to continue\n"
    assert not (folder / "weights.safetensors").exists()


def test_after_sigkill_the_same_command_ends_as_if_nothing_had_happened(lines, recipe: Path, tmp_path: Path) -> None:
    chosen = read_recipe(recipe)
    Trainer(chosen, FlowTask(chosen), tmp_path / "whole").run()
    folder = tmp_path / "run"
    with started(recipe, folder) as process:
        await_step(folder, 4, process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert process.returncode == -signal.SIGKILL
    assert lines.last(folder).step < 7
    with started(recipe, folder, "--json") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "") and '"step": 7' in out
    whole, killed = lines.last(tmp_path / "whole"), lines.last(folder)
    assert all(torch.equal(tensor, killed.tensors[name]) for name, tensor in whole.tensors.items())
    assert [record["step"] for record in read_log(folder / "log.jsonl") if record["event"] == "step"] == [*range(1, 8)]
