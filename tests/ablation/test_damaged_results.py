"""A damaged record of a run is passed over, whatever is wrong with it."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from protoformer.ablation.summary import RESULT, RunResult, read_result, write_result
from protoformer.training.run_folder import read_log

WHOLE = RunResult("key", 1, 10, 2.5, 1000, 0.5, 3.0, (64, 96), "cpu", {"synthetic": {"epe": 1.0, "fl": 2.0}})


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_result(tmp_path, WHOLE)
    assert read_result(tmp_path, "key") == WHOLE and read_result(tmp_path, "other") is None
    odd = dataclasses.replace(WHOLE, steps=0, scores={"synthetic": {"epe": float("nan")}})
    write_result(tmp_path, odd)
    assert repr(read_result(tmp_path, "key")) == repr(odd)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "2"},
        {"seed": None},
        {"steps": True},
        {"parameters": 1.5},
        {"size": [64]},
        {"size": ["64", "96"]},
        {"size": 3},
        {"device": 7},
        {"scores": []},
        {"scores": {"synthetic": 1.0}},
        {"scores": {"synthetic": {"epe": "low"}}},
        {"scores": {"synthetic": {"epe": [1.0]}}},
        {"other": 1},
    ],
)
def test_a_result_of_wrong_types_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / RESULT).write_text(json.dumps({**dataclasses.asdict(WHOLE), **change}))
    assert read_result(tmp_path, "key") is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 200_000, b"1" * 10_000, b" " * 2**25])
def test_a_result_that_is_none_is_passed_over(tmp_path: Path, data: bytes) -> None:
    (tmp_path / RESULT).write_bytes(data)
    assert read_result(tmp_path, "key") is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_named_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RESULT)
    os.mkfifo(tmp_path / "log.jsonl")
    assert read_result(tmp_path, "key") is None and read_log(tmp_path / "log.jsonl") == []


def test_a_nested_line_of_a_log_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("[" * 200_000 + '\n{"step": 1}\n')
    assert read_log(tmp_path / "log.jsonl") == [{"step": 1}]
