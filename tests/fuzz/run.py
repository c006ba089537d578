"""A run: processes that read files, a watch over them, and the table of what came of it."""

import faulthandler
import gc
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.fuzz.corpus import Corpus, Replay
from tests.fuzz.examination import Limits, Outcome, examine, limit_memory

_CHUNK = 16
"""Files that a process is given at a time."""
_LIFE = 100
"""Chunks after which a process is replaced, so that a small leak in a library does not add up."""
_MOST_SAVED = 3
"""Files that are saved of findings with the same cause."""


@dataclass
class Row:
    """What came of the files of one kind."""

    files: int = 0
    ok: int = 0
    refused: int = 0
    findings: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    megabytes: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count one file."""
        self.files += 1
        self.ok += outcome.status == "ok"
        self.refused += outcome.status == "refused"
        self.findings += outcome.is_finding
        self.seconds += outcome.seconds
        self.slowest = max(self.slowest, outcome.seconds)
        self.megabytes = max(self.megabytes, outcome.megabytes)


@dataclass
class Result:
    """What came of a run.

    Attributes:
        rows: By kind.
        causes: How many findings there are of each cause.
        outcomes: Of findings, by the name of the file.
        digest: Of all files that were read, in their order.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    digest: str = ""

    @property
    def files(self) -> int:
        """How many files were read."""
        return sum(row.files for row in self.rows.values())

    def table(self) -> str:
        """A line for each kind, and one for all."""
        head = f"{'kind':<16}{'files':>7}{'ok':>7}{'refused':>9}{'findings':>10}"
        head += f"{'mean ms':>9}{'slowest ms':>12}{'peak MB':>9}"
        total = Row()
        for row in self.rows.values():
            for name in ("files", "ok", "refused", "findings", "seconds"):
                setattr(total, name, getattr(total, name) + getattr(row, name))
            total.slowest = max(total.slowest, row.slowest)
            total.megabytes = max(total.megabytes, row.megabytes)
        lines = [
            f"{name:<16}{row.files:>7}{row.ok:>7}{row.refused:>9}{row.findings:>10}"
            f"{1000 * row.seconds / max(1, row.files):>9.1f}{1000 * row.slowest:>12.0f}{row.megabytes:>9.0f}"
            for name, row in (*self.rows.items(), ("all", total))
        ]
        return "\n".join((head, *lines))


@dataclass
class _Worker:
    """A process, the file for its traceback if it crashes, what it is to read, and what it is reading since when."""

    process: BaseProcess
    connection: Connection
    last_words: IO[bytes]
    chunk: deque[int] = field(default_factory=deque)
    reading: int | None = None
    since: float = 0.0
    chunks: int = 0


class Run:
    """Reads the files of a corpus in processes of its own, which may crash or hang."""

    def __init__(
        self,
        corpus: Corpus | Replay,
        limits: Limits,
        *,
        workers: int = 2,
        folder: Path | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """folder: where findings are saved; None for nowhere."""
        self.corpus, self.limits, self.folder, self.say = corpus, limits, folder, say
        self._count, self._result = workers, Result()
        self._digests: dict[int, bytes] = {}
        # A forked process has all libraries loaded at once, and so can be replaced in milliseconds.
        self._context = multiprocessing.get_context("fork")

    def read(self, indices: Iterable[int], seconds: float | None = None) -> Result:
        """Read files by their numbers; stop after so many seconds, between two files."""
        waiting = iter(indices)
        deadline = None if seconds is None else time.monotonic() + seconds
        gc.collect()
        gc.freeze()
        workers = [self._started() for _ in range(self._count)]
        try:
            while workers:
                for worker in list(workers):
                    if worker.reading is None and not worker.chunk and not self._give(worker, waiting, deadline):
                        workers.remove(worker)
                        _end(worker)
                ready = wait([worker.connection for worker in workers], timeout=0.5) if workers else ()
                for worker in list(workers):
                    if worker.connection in ready:
                        alive = self._hear(worker)
                    else:
                        alive = worker.reading is None or time.monotonic() - worker.since < self.limits.hard_seconds
                        if not alive:
                            self._lost(worker, Outcome("hang", "killed", f"over {self.limits.hard_seconds:g} s"))
                    if not alive:
                        workers[workers.index(worker)] = self._replaced(worker)
        finally:
            for worker in workers:
                _end(worker)
        self._result.rows = dict(sorted(self._result.rows.items()))
        content = b"".join(self._digests[index] for index in sorted(self._digests))
        self._result.digest = hashlib.sha256(content).hexdigest()[:16]
        return self._result

    def _give(self, worker: _Worker, waiting: Iterable[int], deadline: float | None) -> bool:
        """Give a worker its next files; False where there are none, or no time."""
        if deadline is not None and time.monotonic() > deadline:
            return False
        chunk = deque(islice(waiting, _CHUNK))
        if not chunk:
            return False
        if worker.chunks >= _LIFE:
            _end(worker)
            fresh = self._started()
            worker.process, worker.connection, worker.chunks = fresh.process, fresh.connection, 0
            worker.last_words = fresh.last_words
        worker.chunk, worker.chunks = chunk, worker.chunks + 1
        worker.connection.send(list(chunk))
        return True

    def _hear(self, worker: _Worker) -> bool:
        """Take in what a worker says; False where it has died."""
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            worker.last_words.seek(0)
            trace = worker.last_words.read().decode(errors="replace")
            self._lost(worker, Outcome("crash", cause, f"the process ended with {cause}\n{trace}"))
            return False
        if isinstance(said, int):
            worker.reading, worker.since = said, time.monotonic()
            return True
        index, outcome, digest = said
        self._note(index, outcome, digest)
        worker.chunk.popleft()
        worker.reading = None
        return True

    def _lost(self, worker: _Worker, outcome: Outcome) -> None:
        """Count the file over which a process was lost."""
        if worker.reading is not None:
            data = self.corpus.case(worker.reading).data
            self._note(worker.reading, outcome, hashlib.sha256(data).digest())
            worker.chunk.popleft()

    def _replaced(self, worker: _Worker) -> _Worker:
        """A fresh process that goes on with the files that a lost one has left."""
        _end(worker)
        fresh = self._started()
        if worker.chunk:
            fresh.chunk = worker.chunk
            fresh.connection.send(list(worker.chunk))
        return fresh

    def _note(self, index: int, outcome: Outcome, digest: bytes) -> None:
        self._digests[index] = digest
        self._result.rows.setdefault(self.corpus.kind(index).name, Row()).add(outcome)
        if not outcome.is_finding:
            return
        case = self.corpus.case(index)
        cause = f"{case.kind.name}: {outcome.status}, {outcome.where}"
        self._result.causes[cause] += 1
        self._result.outcomes[case.name] = outcome
        if self.folder is None or self._result.causes[cause] > _MOST_SAVED:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{case.name}{case.kind.suffix}"
        path.write_bytes(case.data)
        about = {"kind": case.kind.name, "status": outcome.status, "where": outcome.where, "detail": outcome.detail}
        Path(f"{path}.about.json").write_text(json.dumps(about, indent=1))
        self.say(f"finding: {cause}; saved as {path}")

    def _started(self) -> _Worker:
        actual, expected = self._context.Pipe()
        last_words = TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        arguments = (self.corpus, self.limits, expected, actual, last_words)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        expected.close()
        return _Worker(process, actual, last_words)


def _end(worker: _Worker) -> None:
    worker.connection.close()
    if worker.process.pid is not None and worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
    worker.last_words.close()


def _work(
    corpus: Corpus | Replay, limits: Limits, connection: Connection, other: Connection, last_words: IO[bytes]
) -> None:
    """The life of a worker: read files, and say which one before and how it went after."""
    other.close()
    faulthandler.enable(last_words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # libraries write what they think of damaged files
    limit_memory(limits)
    while True:
        try:
            chunk = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        for index in chunk:
            connection.send(index)
            case = corpus.case(index)
            outcome = examine(case.kind, case.data, limits)
            connection.send((index, outcome, hashlib.sha256(case.data).digest()))
