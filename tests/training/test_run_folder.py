"""The folder of a run: who may write there, what must not be lost, and its log."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError, install_command
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import lock_folder
from protoformer.training.run_folder import RunLog, TensorBoardLogger, TrainingProgress, read_log
from protoformer.training.task import ValidationResult


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(*_: object, **__: object) -> Path:
    raise InputError("the disk is full.")


def test_after_a_failed_first_save_the_same_command_begins(lines, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(InputError, match="the disk is full"):
        patched.setattr(checkpoints, "save", refused)
        lines.trainer(tmp_path, lines.recipe(steps=5)).run()
    assert [record["step"] for record in read_log(tmp_path / "log.jsonl")] == [0]
    assert lines.trainer(tmp_path, lines.recipe(steps=5)).run().step == 5


def test_after_a_first_save_that_was_killed_the_same_command_begins(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path / "whole", lines.recipe(steps=5)).run()
    half = tmp_path / "run" / "checkpoints" / ".step-00000000.0a.part"
    half.mkdir(parents=True)
    (half / "tensors-00001-of-00001.safetensors").write_bytes(b"half")
    (tmp_path / "run" / "log.jsonl").write_text('{"event": "start", "step": 0, "steps": 5}\n')
    assert lines.trainer(tmp_path / "run", lines.recipe(steps=5)).run().step == 5
    assert not half.exists()


@pytest.mark.parametrize("kept", ["log.jsonl", "weights.safetensors", "checkpoints/step-00000005"])
def test_a_folder_with_traces_of_steps_is_not_overwritten(lines, tmp_path: Path, kept: str) -> None:
    lines.trainer(tmp_path / "run", lines.recipe(steps=5)).run()
    (tmp_path / "run" / "weights.safetensors").write_bytes(b"weights")
    rest = tmp_path / "rest"
    (rest / "checkpoints").mkdir(parents=True)
    if (tmp_path / "run" / kept).is_dir():
        shutil.copytree(tmp_path / "run" / kept, rest / kept)
        (rest / kept / "record.json").write_text("{}")
    else:
        shutil.copy(tmp_path / "run" / kept, rest / kept)
    before = content(rest)
    with pytest.raises(InputError, match=rf"{kept.split('/')[0]} belongs to a run that cannot be resumed, .* --fresh"):
        lines.trainer(rest, lines.recipe(steps=5)).run()
    assert content(rest) == before


@pytest.mark.parametrize("fresh", [False, True])
def test_weights_that_no_run_wrote_are_kept(lines, tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"mine")
    with pytest.raises(
        InputError, match=r"weights.safetensors does not belong to a run, .*; move it away, or choose another"
    ):
        lines.trainer(tmp_path, fresh=fresh).run()
    assert content(tmp_path) == {tmp_path / "weights.safetensors": b"mine"}
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "summary.png"])
def test_a_folder_where_a_file_should_be_is_one_sentence_and_nothing_is_lost(lines, tmp_path: Path, name: str) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=5)).run()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=rf"{name} .*; move it away, or choose another folder\."):
        lines.trainer(tmp_path, fresh=True).run()
    assert lines.last(tmp_path).step == 5


def test_two_runs_do_not_train_in_one_folder_at_once(lines, tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="folders cannot be locked on this system")
    second = lines.trainer(tmp_path, lines.recipe(steps=5))

    def judge(network):
        with pytest.raises(InputError) as caught:
            second.run()
        assert (
            str(caught.value) == f"another process trains in {tmp_path}; wait for it to end, or choose another folder."
        )
        raise InputError("judged.")

    with pytest.raises(InputError, match="judged"):
        lines.trainer(tmp_path, lines.recipe(steps=5), validators=(judge,)).run()
    assert second.run().step == 5  # whatever ended the first one


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_that_lives_longer_than_its_run_holds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="folders cannot be locked on this system")
    (reading, writing), (started, starting) = os.pipe(), os.pipe()
    with lock_folder(tmp_path):
        child = os.fork()
        if not child:
            os.close(writing)
            os.write(starting, b"1")
            os.read(reading, 1)  # until the other end is closed
            os._exit(0)
        os.read(started, 1)
        with pytest.raises(BlockingIOError), lock_folder(tmp_path):
            pass
    with lock_folder(tmp_path):
        pass
    os.close(writing)
    os.waitpid(child, 0)
    for handle in (reading, started, starting):
        os.close(handle)


def test_a_checkpoint_that_was_read_or_written_here_is_not_checked_again(lines, tmp_path: Path, monkeypatch) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=5)).run()
    checked: list[str] = []
    plain = checkpoints._verify
    monkeypatch.setattr(checkpoints, "_verify", lambda path: (checked.append(path.name), plain(path)))
    lines.trainer(tmp_path, lines.recipe(steps=20, checkpoint_every=5)).run()
    assert checked == []
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-00000015", "step-00000020"}


PROGRESS = TrainingProgress(10, 1.5, {"epe": 0.5}, 1e-4, 12.0, 60.0, 0.1, 2, 1, None, None)


def test_a_log_is_json_line_by_line_without_nan(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.on_start(0, 20)
    log.on_log(PROGRESS)
    log.on_validation(10, ValidationResult("synthetic", {"epe": float("nan")}))
    log.on_checkpoint(10, tmp_path / "step-00000010")

    def strict(constant: str) -> None:
        raise AssertionError(f"{constant} is no json")

    records = [json.loads(line, parse_constant=strict) for line in log.path.read_text().splitlines()]
    assert records == read_log(log.path)
    assert [record["event"] for record in records] == ["start", "step", "validation", "checkpoint"]
    assert records[1]["loss"] == 1.5 and records[1]["metrics"] == {"epe": 0.5}
    assert records[2] == {"event": "validation", "step": 10, "dataset": "synthetic", "epe": None}


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.path.mkdir()
    with pytest.raises(InputError, match=r"log.jsonl could not be written .*; check the disk"):
        log.on_log(PROGRESS)


def test_there_is_no_log_where_there_was_no_run(tmp_path: Path) -> None:
    assert read_log(tmp_path / "log.jsonl") == []


def test_tensorboard_has_curves_and_images(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoardLogger(tmp_path, pytest.fail)
    board.on_start(0, 20)
    board.on_log(PROGRESS)
    board.on_validation(10, ValidationResult("synthetic", {"epe": 0.7}))
    board.on_image(10, "scene", np.zeros((4, 6, 3), dtype=np.uint8))
    board.on_end(10)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()
    assert {"training/loss", "training/epe", "training/lr", "training/skipped_steps", "synthetic/epe"} <= set(
        tags["scalars"]
    )
    assert "training/peak_memory" not in tags["scalars"]
    (loss,) = events.Scalars("training/loss")
    assert (loss.step, loss.value) == (10, 1.5)
    (image,) = events.Images("scene")
    assert (image.width, image.height) == (6, 4)


def test_without_tensorboard_it_says_so_once_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    recorder: list[str] = []
    board = TensorBoardLogger(tmp_path / "board", recorder.append)
    board.on_start(0, 20)
    board.on_log(PROGRESS)
    board.on_validation(10, ValidationResult("synthetic", {"epe": 0.7}))
    board.on_image(10, "scene", np.zeros((4, 6, 3), dtype=np.uint8))
    board.on_end(10)
    assert len(recorder) == 1 and install_command("board") in recorder[0]
    assert not (tmp_path / "board").exists()
