"""Result folders and uploads of the web page: running computations, saved views, and deletion of old files."""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

KEEP_SECONDS = 1800
"""Longest time that unused uploads and results are kept; all are deleted when the page ends."""
SWEEP_SECONDS = 60
"""Interval between two sweeps."""
RECENT_SECONDS = 60
"""Files used within this time are never deleted, even if the disk quota is exceeded."""
_POLL_SECONDS = 0.1


def cancellation_check() -> Callable[[], bool]:
    """Return a function that tells whether the client canceled the current computation or disconnected.

    Must be called in the thread in which gradio runs the computation; the returned function can be called in any
    thread. Outside of gradio it always returns False.
    """
    context = sys.modules.get("gradio.context")
    if context is None:
        return _never
    local: Any = context.LocalContext
    blocks, event_id = local.blocks.get(None), local.event_id.get(None)
    events = {} if blocks is None else blocks._queue.event_ids_to_events
    event = events.get(event_id)
    if event is None:
        return _never

    def is_canceled() -> bool:
        # A client that disconnects sets `alive` to False; canceling removes the event from the queue.
        return not event.alive or event_id not in events

    return is_canceled


def _never() -> bool:
    return False


class Results:
    """A folder with one subfolder per result.

    Args:
        folder: Folder of the results; created on demand.
        max_running: Maximum number of simultaneous computations.
    """

    def __init__(self, folder: Path, max_running: int) -> None:
        self.folder = folder
        self._max_running = max_running
        self._running: dict[Path, Callable[[], bool]] = {}
        self._changed = threading.Condition()

    def begin(self, is_canceled: Callable[[], bool] | None = None) -> Path:
        """Create the folder of a computation, which ends with `finish` or `delete`.

        Args:
            is_canceled: Tells whether the client canceled it or disconnected; None: `cancellation_check()`.

        A canceled computation continues until its next deadline check, while gradio already starts the next one. This
        method waits for it, so that the maximum number of computations is not exceeded.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        is_canceled = is_canceled or cancellation_check()
        with self._changed:
            while len(self._running) >= self._max_running and self._any_canceled() and not is_canceled():
                self._changed.wait(_POLL_SECONDS)
            result = Path(tempfile.mkdtemp(dir=self.folder))
            self._running[result] = is_canceled
        return result

    def finish(self, result: Path) -> None:
        """End a computation and keep its result, unless the client canceled it."""
        is_canceled = self._end(result)
        if is_canceled is not None and is_canceled():
            self.delete(result)

    def delete(self, result: Path | None) -> None:
        """Delete a result, finished or not; paths outside of this folder are ignored."""
        if result is not None and result.parent == self.folder:
            self._end(result)
            shutil.rmtree(result, ignore_errors=True)

    def idle(self) -> list[Path]:
        """Return the results that are not being computed."""
        with self._changed:
            running = set(self._running)
        try:
            return [path for path in self.folder.iterdir() if path not in running]
        except FileNotFoundError:
            return []

    def _end(self, result: Path) -> Callable[[], bool] | None:
        with self._changed:
            ended = self._running.pop(result, None)
            self._changed.notify_all()
        return ended

    def _any_canceled(self) -> bool:
        return any(is_canceled() for is_canceled in self._running.values())


def save_view(folder: Path, index: int, view: dict[str, Any]) -> None:
    """Save what the page shows of a frame; indices begin at 0."""
    _view_path(folder, index).write_text(json.dumps(view))


def load_view(folder: Path, index: int) -> dict[str, Any]:
    """Load a view that `save_view` saved, and mark the result as used.

    Raises:
        FileNotFoundError: If there is no view with this index.
    """
    view: dict[str, Any] = json.loads(_view_path(folder, index).read_text())
    with suppress(OSError):
        os.utime(folder)
    return view


def _view_path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.json"


@dataclass(frozen=True)
class _StoredFile:
    """A file or result folder: time of its last use, seconds since 1970, and its size, bytes."""

    path: Path
    used: float
    size: int


class Sweeper:
    """Deletes old results and uploads, and the oldest ones if their total size exceeds the quota.

    Running computations and files used within `RECENT_SECONDS` are never deleted. As a context manager it sweeps in a
    thread every `SWEEP_SECONDS`.

    Args:
        results: Result folders.
        uploads: Folder of uploads and of copies for download.
        keep_seconds: Time after which unused files are deleted.
        max_bytes: Quota of all files together.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        results: Results,
        uploads: Path,
        keep_seconds: float,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._results, self._uploads = results, uploads
        self._keep_seconds, self._max_bytes, self._clock = keep_seconds, max_bytes, clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def sweep(self) -> None:
        """Delete the files that are too old or exceed the quota."""
        now = self._clock()
        files = sorted(self._stored_files(), key=lambda file: file.used)
        total = sum(file.size for file in files)
        for file in files:
            age = now - file.used
            if age > self._keep_seconds or (total > self._max_bytes and age > RECENT_SECONDS):
                self._delete(file.path)
                total -= file.size
        for path in self._uploads.glob("*/"):
            with suppress(OSError):
                if now - path.stat().st_mtime > self._keep_seconds:
                    path.rmdir()  # fails unless empty

    def _stored_files(self) -> Iterator[_StoredFile]:
        for path in self._results.idle():
            with suppress(OSError):  # deleted in the meantime
                yield _StoredFile(path, path.stat().st_mtime, folder_bytes(path))
        for path in self._uploads.rglob("*"):
            with suppress(OSError):
                status = path.lstat()
                if not path.is_dir():
                    # A copy has the modification time of its original; its status change time is when it was made.
                    yield _StoredFile(path, max(status.st_mtime, status.st_ctime), status.st_size)

    def _delete(self, path: Path) -> None:
        if path.parent == self._results.folder:
            if path in self._results.idle():
                self._results.delete(path)
        else:
            with suppress(OSError):
                path.unlink()

    def _run(self) -> None:
        while not self._stopped.wait(SWEEP_SECONDS):
            try:
                self.sweep()
            except Exception:  # keep sweeping: without it the disk fills up
                traceback.print_exc()


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
