"""A batch that is stopped, or loses a worker, and goes on."""

import csv
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protoformer.video.reader import open_video

pytest.importorskip("av")
pytestmark = [
    pytest.mark.filterwarnings("always::protoformer.UntrainedWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals on Windows"),
]

Make = Callable[..., Path]
Start = Callable[..., Any]
Wait = Callable[..., None]
FRAMES = {"0": 3, "1": 120, "2": 120, "3": 3}
ARGUMENTS = ("batch", "flow", "videos/*.mp4", "-o", "out", "--model", "tiny", "--num-updates", "1", "--scale", "2")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Make) -> Path:
    """The current folder, with videos of 64x96: a short one, two long ones and a short one."""
    monkeypatch.chdir(tmp_path)
    Path("videos").mkdir()
    for name, count in FRAMES.items():
        frames = np.random.default_rng(int(name)).integers(0, 256, (count, 64, 96, 3), dtype=np.uint8)
        make_video(tmp_path / f"videos/{name}.mp4", list(frames))
    return tmp_path


def statuses() -> list[str]:
    with Path("out/summary.csv").open(newline="") as file:
        return [row["status"] for row in csv.DictReader(file)]


def at_work() -> list[str]:
    """The names of the videos that have been begun and are not finished."""
    return [Path(path.read_text()).name for path in Path("out/.batch/work").glob("*/video")]


def finished() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in Path("out/.batch/ledger").glob("*.json")}


@pytest.mark.parametrize(("workers", "sent", "code"), [("1", signal.SIGTERM, 143), ("2", signal.SIGINT, 130)])
def test_a_stop_keeps_what_is_finished_and_the_next_run_goes_on(
    place: Path,
    protoformer: Callable[..., Any],
    started: Start,
    until: Wait,
    workers: str,
    sent: signal.Signals,
    code: int,
) -> None:
    with started(*ARGUMENTS, "--workers", workers) as running:
        until(lambda: finished() and {"1.mp4", "2.mp4"} & set(at_work()), running)
        time.sleep(0.2)  # somewhere within a video
        if workers == "1":
            running.send_signal(sent)
        else:
            os.killpg(running.pid, sent)  # Ctrl-C is for everybody in the terminal
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (code, "") and "Traceback" not in err, err
    assert err.splitlines()[-1] == (
        "protoformer: stopped; finished videos are kept in out, and the same command continues from there."
    )
    kept = {f"{name}.mp4" for name in FRAMES} & {path.name for path in Path("out").iterdir()}
    assert kept == {name.removesuffix(".json") for name in finished()} and 1 <= len(kept) < 4
    assert {path.name for path in Path("out").iterdir()} == kept | {".batch", "summary.csv"}
    assert not Path("out/.batch/work").exists()
    assert sorted(statuses()) == ["done"] * len(kept) + ["waiting"] * (4 - len(kept))
    before = {name: Path("out", name).stat().st_mtime_ns for name in kept}

    outcome = protoformer(*ARGUMENTS, "--workers", "1")
    assert outcome.code == 0
    assert sorted(statuses()) == ["done"] * (4 - len(kept)) + ["skipped"] * len(kept)
    assert {name: Path("out", name).stat().st_mtime_ns for name in kept} == before
    for name, count in FRAMES.items():
        assert len(list(open_video(f"out/{name}.mp4").frames())) == count - 1


@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a batch are found as Linux lists them")
def test_a_killed_worker_costs_nothing_but_time(place: Path, started: Start, until: Wait) -> None:
    with started(*ARGUMENTS, "--workers", "2") as running:
        until(lambda: {"1.mp4", "2.mp4"} <= set(at_work()), running)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(workers[0]), signal.SIGKILL)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0 and "Traceback" not in err, err
    assert out.startswith("4 videos: 4 done, 0 finished before, 0 failed; ")
    assert statuses() == ["done"] * 4 and len(finished()) == 4
    assert not Path("out/.batch/work").exists()
    for name, count in FRAMES.items():
        assert len(list(open_video(f"out/{name}.mp4").frames())) == count - 1


@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a batch are found as Linux lists them")
def test_a_killed_batch_leaves_no_worker(place: Path, started: Start, until: Wait) -> None:
    with started(*ARGUMENTS, "--workers", "1") as running:
        until(lambda: {"1.mp4", "2.mp4"} & set(at_work()), running)
        workers = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        running.kill()
        running.wait()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, "a worker lives on"
            time.sleep(0.02)
