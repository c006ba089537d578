"""The program that measures groups of kernels runs without a GPU and covers every group."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from protoformer.models.kernels import dispatch


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module, without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return load_benchmark("kernels")


def test_every_group_names_functions_that_exist(benchmark: ModuleType) -> None:
    assert list(benchmark.PLAIN_VERSIONS) == list(dispatch.KERNEL_GROUPS)
    for paths in benchmark.PLAIN_VERSIONS.values():
        assert all(callable(benchmark._resolve(path)[2]) for path in paths)


def test_the_dry_run_measures_every_group_and_says_that_it_needs_a_gpu(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "kernels.json"
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--json", str(path)])
    benchmark.main()
    printed, figures = capsys.readouterr().out, json.loads(path.read_text())
    assert "Measuring needs a GPU" in printed
    assert figures["dry_run"] is True
    assert list(figures["groups"]) == list(dispatch.KERNEL_GROUPS)
    for group, measured in figures["groups"].items():
        assert measured["inference"]["enabled"] > 0 and measured["training"]["disabled"] > 0
        assert f"| {group} |" in printed
        assert measured["below_threshold"] is None
    assert "below 5 %" not in printed
    assert dispatch._disabled == frozenset()


def test_no_measurement_starts_after_the_time_is_over(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    results = benchmark.measure(["gru"], benchmark.DRY_RUN, torch.device("cpu"), minutes=-1)
    assert results == {"inference": {}, "training": {}}
    assert benchmark.is_below_threshold("gru", results) is None
    assert "time is over" in capsys.readouterr().out


@pytest.mark.parametrize(("inference", "training", "expected"), [(110, 100, False), (100, 105, False), (104, 96, True)])
def test_a_group_is_marked_if_it_is_worth_little_in_both(
    benchmark: ModuleType, inference: float, training: float, expected: bool
) -> None:
    results = {
        "inference": {"gru": benchmark.Comparison(100, inference)},
        "training": {"gru": benchmark.Comparison(100, training)},
    }
    assert benchmark.is_below_threshold("gru", results) is expected
    assert ("below 5 %" in benchmark.format_table(["gru"], results)) is expected
