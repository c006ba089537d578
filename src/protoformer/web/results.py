"""Folders of results and uploads: which are being computed, and which are old enough to go."""

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
from types import TracebackType
from typing import Any, Self


def abandonment() -> Callable[[], bool]:
    """A function that says whether the client of the current computation cancelled it or went away.

    To be called in the thread in which gradio runs the computation; the function may be called in any. Outside of
    gradio it always says no.
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

    def is_abandoned() -> bool:
        # A client that disconnects makes its event dead; one that cancels it has it taken from the queue.
        return not event.alive or event_id not in events

    return is_abandoned


def _never() -> bool:
    return False


SWEEP_SECONDS = 60
"""Between two sweeps."""
RECENT_SECONDS = 60
"""What was used in this time is not deleted, however little room is left."""
_STEP = 0.1


class Results:
    """A folder with a folder for each result."""

    def __init__(self, folder: Path, most_running: int) -> None:
        """Nothing is created yet.

        Args:
            folder: Where the results lie.
            most_running: Computations at a time.
        """
        self.folder = folder
        self._most_running = most_running
        self._running: dict[Path, Callable[[], bool]] = {}
        self._changed = threading.Condition()

    def begin(self) -> Path:
        """Make the folder of a computation that begins, which is over with `finish` or `delete`.

        A computation that was cancelled goes on to its next look at the deadline, while gradio starts the next one.
        This waits for it, so that no more are computed at a time than the page allows.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        is_abandoned = abandonment()
        with self._changed:
            while len(self._running) >= self._most_running and self._any_abandoned() and not is_abandoned():
                self._changed.wait(_STEP)
            result = Path(tempfile.mkdtemp(dir=self.folder))
            self._running[result] = is_abandoned
        return result

    def finish(self, result: Path) -> None:
        """End a computation; its result stays, unless nobody waits for it any more."""
        is_abandoned = self._end(result)
        if is_abandoned is not None and is_abandoned():
            self.delete(result)

    def delete(self, result: Path | None) -> None:
        """Delete a result, computed or not; others than those in this folder are left alone."""
        if result is not None and result.parent == self.folder:
            self._end(result)
            shutil.rmtree(result, ignore_errors=True)

    def idle(self) -> list[Path]:
        """The results that are not being computed."""
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

    def _any_abandoned(self) -> bool:
        return any(is_abandoned() for is_abandoned in self._running.values())


@dataclass(frozen=True)
class _Kept:
    """Something that can be deleted: when it was last used, in seconds since 1970, and its bytes."""

    path: Path
    used: float
    size: int


class Sweeper:
    """Deletes results and uploads that are old, and the oldest ones where all together take too much room.

    Never deleted is what is being computed, or was used within `RECENT_SECONDS`. In a `with` it does so in a thread
    every `SWEEP_SECONDS`.
    """

    def __init__(
        self,
        results: Results,
        uploads: Path,
        keep_seconds: float,
        most_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is deleted yet.

        Args:
            results: The folder of results.
            uploads: The folder of uploads and of copies for download.
            keep_seconds: How long what nobody uses is kept.
            most_bytes: Bytes of all of it together.
            clock: Seconds since 1970.
        """
        self._results, self._uploads = results, uploads
        self._keep_seconds, self._most_bytes, self._clock = keep_seconds, most_bytes, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def sweep(self) -> None:
        """Delete what has to go now."""
        now = self._clock()
        kept = sorted(self._kept(), key=lambda each: each.used)
        total = sum(each.size for each in kept)
        for each in kept:
            age = now - each.used
            if age > self._keep_seconds or (total > self._most_bytes and age > RECENT_SECONDS):
                self._delete(each.path)
                total -= each.size
        self._delete_empty_folders(now)

    def _kept(self) -> Iterator[_Kept]:
        for path in self._results.idle():
            with suppress(OSError):  # gone in the meantime
                yield _Kept(path, path.stat().st_mtime, folder_bytes(path))
        for path in self._uploads.rglob("*"):
            with suppress(OSError):
                status = path.lstat()
                if not path.is_dir():
                    # A copy has the time of its original, but it was made when its status was.
                    yield _Kept(path, max(status.st_mtime, status.st_ctime), status.st_size)

    def _delete(self, path: Path) -> None:
        if path.parent == self._results.folder:
            if path in self._results.idle():
                self._results.delete(path)
        else:
            with suppress(OSError):
                path.unlink()

    def _delete_empty_folders(self, now: float) -> None:
        for path in self._uploads.glob("*/"):
            with suppress(OSError):
                if now - path.stat().st_mtime > self._keep_seconds:
                    path.rmdir()  # refused where there is something inside

    def _run(self) -> None:
        while not self._ended.wait(SWEEP_SECONDS):
            try:
                self.sweep()
            except Exception:  # the next sweep may do better, and none at all fills the disk
                traceback.print_exc()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
