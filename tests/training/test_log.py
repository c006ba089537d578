"""What is written about a run as it goes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.training.loggers import RunLog, TensorBoardLogger, TrainingProgress, read_log
from protoformer.training.task import ValidationResult

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


def test_a_board_has_curves_and_pictures(tmp_path: Path) -> None:
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
    assert len(recorder) == 1 and "pip install tensorboard" in recorder[0]
    assert not (tmp_path / "board").exists()
