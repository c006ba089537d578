"""A video that hangs or kills its worker costs itself alone, with one worker as with several."""

import os
import subprocess
import sys
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from protoformer.batch import workers as workers_module
from protoformer.batch.ledger import list_jobs
from protoformer.batch.running import Batch, BatchCallback, BatchResult, run_batch
from protoformer.batch.workers import TimeLimit
from protoformer.errors import InputError

linux = pytest.mark.skipif(sys.platform != "linux", reason="the processes of a batch are found as Linux lists them")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers, which are processes of their own, find the work of these tests."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


def run(tmp_path: Path, names: list[str], workers: int, minutes: float | None = None) -> BatchResult:
    (tmp_path / "videos").mkdir()
    for name in names:
        (tmp_path / f"videos/{name}.mp4").write_bytes(b"pixels")
    out = tmp_path / "out"
    return run_batch(
        out,
        lambda ledger: list_jobs([f"{tmp_path}/videos/*.mp4"], out, (".mp4",), {}, ledger),
        import_module("scripted_work").Scripted(),
        Batch(workers=workers, limit=TimeLimit(minutes)),
        BatchCallback(),
    )


def statuses(result: BatchResult) -> dict[str, str]:
    return {job.video.stem: report.status for job, report in zip(result.jobs, result.reports, strict=True)}


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


@linux
def test_a_crashing_video_costs_itself_alone_with_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "ATTEMPTS", 1)  # so that fewer processes are started
    before = set(children())
    result = run(tmp_path, ["abort-1", "exit-2", "good-3"], workers=1)
    assert statuses(result) == {"abort-1": "failed", "exit-2": "failed", "good-3": "done"}
    assert all(reason.startswith("1 workers crashed at ") for reason in result.failures.values())
    assert not (tmp_path / "out/.batch/work").exists()
    left = [pid for pid in set(children()) - before if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert left == []


@pytest.mark.skipif(sys.platform == "win32", reason="the C library is another one on Windows")
@pytest.mark.parametrize(("workers", "how"), [(1, "block"), (2, "loop")])
def test_a_hanging_video_is_given_up_at_the_time_limit(tmp_path: Path, workers: int, how: str) -> None:
    began = time.monotonic()
    result = run(tmp_path, [f"{how}-1", "good-2"], workers, minutes=1 / 30)
    assert time.monotonic() - began < 60
    assert statuses(result) == {f"{how}-1": "failed", "good-2": "done"}
    assert result.failures[tmp_path / f"videos/{how}-1.mp4"] == (
        f"{tmp_path}/videos/{how}-1.mp4 took longer than 0.0333333 minutes and was stopped; "
        "give a higher --max-minutes-per-video, or try it by itself."
    )
    assert [report.seconds for report in result.reports if report.status == "failed"] == [2.0]
    assert not (tmp_path / "out/.batch/work").exists() and not (tmp_path / f"out/{how}-1.mp4").exists()


def test_a_worker_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"pixels")
    with pytest.raises(InputError, match=r"no worker could load the model \(RuntimeError: no driver\)"):
        run_batch(
            tmp_path / "out",
            lambda ledger: list_jobs([tmp_path / "a.mp4"], tmp_path / "out", (".mp4",), {}, ledger),
            import_module("scripted_work").Broken(),
            Batch(workers=1),
            BatchCallback(),
        )


@linux
def test_a_stopped_batch_ends_a_worker_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "SHUTDOWN_SECONDS", 0.5)
    (tmp_path / "block.mp4").write_bytes(b"pixels")
    (job,) = list_jobs([tmp_path / "block.mp4"], tmp_path / "out", (".mp4",), {})
    before = set(children())
    with closing(workers_module.ProcessPool(import_module("scripted_work").Scripted(), 1)) as pool:
        worker = pool.start()
        worker.ready.result()
        worker.submit(job)
        while not (tmp_path / "block.blocked").exists():
            time.sleep(0.01)
        time.sleep(0.1)  # it holds the lock of its interpreter, so it does not handle SIGTERM
        began = time.monotonic()
    assert 0.4 < time.monotonic() - began < 10
    left = [pid for pid in set(children()) - before if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert left == []


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_is_a_time(minutes: float) -> None:
    with pytest.raises(InputError, match="give a number over 0"):
        TimeLimit(minutes)


PROGRAM = """
import sys
from pathlib import Path

import protoformer as pf

Path("runs").open("a").write("x")
print(pf.batch_flow("a.mp4", "out", model="tiny").count("failed"))
"""


def test_a_program_without_a_main_guard_is_run_once(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video")
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.stdout, (tmp_path / "runs").read_text()) == ("1\n", "x"), ended.stderr
