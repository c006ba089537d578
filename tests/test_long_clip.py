"""The program that measures memory over a long clip measures what it says."""

import json
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from protoformer.video.writer import VideoWriter


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("long_clip")


def test_a_slope_is_what_memory_grows_by(benchmark: ModuleType) -> None:
    held, pixels = [], b"x" * 2**22
    meter = benchmark.MemoryMeter((2, 6))
    for done in range(1, 8):
        held.append(mmap.mmap(-1, len(pixels)))  # fresh pages, where the heap may have freed ones to reuse
        held[-1].write(pixels)
        meter(done)
    assert set(meter.mib) == {2, 6}
    assert (meter.mib[6] - meter.mib[2]) / 4 == pytest.approx(4, abs=1)


def test_a_task_is_measured_and_written(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    clip = tmp_path / "clip.mp4"
    with VideoWriter(clip, fps=30) as writer:
        for image in benchmark.shaky_frames(4, (64, 96)):
            writer.write(image)
    monkeypatch.setattr(sys, "argv", ["long_clip.py", "--only", "track", str(clip), "--frames", "2", "4"])
    benchmark.main()
    (found,) = json.loads(capsys.readouterr().out)
    assert found["task"] == "track" and found["size"] == [64, 96] and found["mib"].keys() == {"2", "4"}
    assert found["slope"] == pytest.approx(1024 * (found["mib"]["4"] - found["mib"]["2"]) / 2)
    assert (tmp_path / "track.mp4").exists()
