"""Old results and uploads are deleted, but not while they are computed or used."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from protoformer.errors import InputError
from protoformer.web import results as module
from protoformer.web.limits import Deadline, Limits
from protoformer.web.results import KEEP_SECONDS, Results, Sweeper, folder_bytes, load_view, save_view
from protoformer.web.site import Site

LIMITS = Limits(max_megabytes=1, max_pixels=10_000, max_frames=5, max_seconds=60, max_jobs=1)


class Clock:
    """Time as files have it, which a test can let pass."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed


def upload(folder: Path, name: str, size: int = 10) -> Path:
    path = folder / name / "image.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    return path


def test_only_old_files_are_deleted(tmp_path: Path) -> None:
    clock = Clock()
    results = Results(tmp_path / "results", 1)
    sweeper = Sweeper(results, tmp_path / "served", 1800, 10**9, clock)
    sweeper.sweep()  # there is nothing yet
    result, file = results.begin(), upload(tmp_path / "served", "one")
    (result / "motion.flo").write_bytes(bytes(10))
    results.finish(result)
    clock.passed = 1790
    sweeper.sweep()
    assert result.exists() and file.exists()
    clock.passed = 1810
    young = results.begin()
    os.utime(young, (clock(), clock()))
    results.finish(young)
    sweeper.sweep()
    assert not result.exists() and not file.exists() and young.exists()
    clock.passed = 3700
    sweeper.sweep()
    assert not young.exists() and not file.parent.exists()


def test_running_computations_are_not_deleted(tmp_path: Path) -> None:
    clock = Clock()
    clock.passed = 10**6
    results = Results(tmp_path / "results", 1)
    sweeper = Sweeper(results, tmp_path / "served", 1800, 0, clock)
    result = results.begin()
    (result / "frame").write_bytes(bytes(1000))
    sweeper.sweep()
    assert (result / "frame").exists()
    results.finish(result)
    sweeper.sweep()
    assert not result.exists()


def test_loading_a_view_marks_its_result_as_used(tmp_path: Path) -> None:
    result = tmp_path / "results" / "a"
    result.mkdir(parents=True)
    save_view(result, 0, {"image": ""})
    os.utime(result, (0, 0))
    load_view(result, 0)
    Sweeper(Results(tmp_path / "results", 1), tmp_path / "served", 1800, 10**9).sweep()
    assert result.exists()


def test_an_upload_that_is_decoded_is_used(tmp_path: Path) -> None:
    from protoformer.web.decoding import decode_image

    path = tmp_path / "served" / "one" / "a.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no image")
    os.utime(path, (0, 0))
    with pytest.raises(InputError, match="not an image"):
        decode_image(LIMITS, path, Deadline(60))
    assert time.time() - path.stat().st_mtime < 60


def test_over_the_quota_the_oldest_files_are_deleted_but_no_recent_ones(tmp_path: Path) -> None:
    clock = Clock()
    results = Results(tmp_path / "results", 1)
    sweeper = Sweeper(results, tmp_path / "served", 1800, 2500, clock)
    folders = []
    for age in (900, 600, 300, 30):
        folder = results.begin()
        (folder / "frame").write_bytes(bytes(1000))
        os.utime(folder, (time.time() - age, time.time() - age))
        results.finish(folder)
        folders.append(folder)
    sweeper.sweep()
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    clock.passed = 20
    Sweeper(results, tmp_path / "served", 1800, 0, clock).sweep()
    assert [folder.exists() for folder in folders] == [False, False, False, True]


def test_a_result_of_a_disconnected_client_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = False
    monkeypatch.setattr(module, "cancellation_check", lambda: lambda: gone)
    site = Site("tiny", tmp_path, LIMITS)
    kept, lost = site.results.begin(), site.results.begin()
    site.results.finish(kept)
    gone = True
    site.results.finish(lost)
    site.results.delete(kept)
    assert not kept.exists() and not lost.exists()


def test_a_computation_waits_until_a_canceled_one_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[Callable[[], bool]] = [lambda: True, lambda: False]
    monkeypatch.setattr(module, "cancellation_check", lambda: states.pop(0))
    results = Results(tmp_path / "results", 1)
    canceled = results.begin()
    begun = threading.Event()

    def begin() -> None:
        results.begin()
        begun.set()

    thread = threading.Thread(target=begin)
    thread.start()
    assert not begun.wait(0.3)
    results.delete(canceled)
    assert begun.wait(10)
    thread.join()


def test_the_sweeper_runs_until_the_page_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    site = Site("tiny", tmp_path, LIMITS)
    old = site.results.begin()
    site.results.finish(old)
    os.utime(old, (0, 0))
    with site.sweeper() as sweeper:
        end = time.monotonic() + 10
        while old.exists() and time.monotonic() < end:
            time.sleep(0.01)
    assert not old.exists() and not sweeper._thread.is_alive()
    assert KEEP_SECONDS == 1800


def test_folder_bytes_sums_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(100))
    assert 100 <= folder_bytes(tmp_path) < 100 + 2**16
    assert folder_bytes(tmp_path / "missing") == 0
