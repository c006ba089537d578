"""Workers that are processes of this machine. One that dies, of a video or for want of memory, takes only itself."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any

import torch

from protoformer.errors import InputError
from protoformer.inference.batch.attempt import attempt, prepared
from protoformer.inference.batch.crew import ATTEMPTS, Notes
from protoformer.inference.batch.jobs import Job, Ready, Report, Work

PATIENCE = 10.0
"""Seconds for a worker to clean up behind itself."""


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    talk: Connection
    ready: bool = False
    job: Job | None = None


class Processes:
    """So many processes, each with a model of its own and its part of the cores."""

    def __init__(self, work: Work, count: int) -> None:
        self._work, self._count, self._notes = work, count, Notes()
        self._spare = ATTEMPTS * count
        """Workers that may still be started in place of others."""
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(self._started())
        except BaseException:
            self.close()
            raise

    def idle(self) -> bool:
        """Whether somebody is ready, without a job."""
        return any(worker.ready and worker.job is None for worker in self._workers)

    def begin(self, job: Job) -> None:
        """Hand it to one of them; if that one just died, `wait` will find out."""
        worker = next(each for each in self._workers if each.ready and each.job is None)
        worker.job = job
        with suppress(OSError):
            worker.talk.send(job)

    def wait(self) -> Sequence[tuple[Job, Report | None]]:
        """Until a worker speaks or dies."""
        ended: list[tuple[Job, Report | None]] = []
        speaking = wait([worker.talk for worker in self._workers])
        for worker in [each for each in self._workers if each.talk in speaking]:
            try:
                heard = worker.talk.recv()
            except (EOFError, OSError):
                ended.extend(self._buried(worker))
                continue
            if isinstance(heard, Ready):
                self._notes.take(heard)
                worker.ready = True
            elif worker.job is not None:
                ended.append((worker.job, heard))
                worker.job = None
        return ended

    def notes(self) -> tuple[str, ...]:
        """Of those that started."""
        return self._notes.said

    def close(self) -> None:
        """Ask them to go, and see to it that they do."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
            worker.talk.close()
        self._workers = []

    def _started(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = None if "OMP_NUM_THREADS" in os.environ else max(1, cores() // self._count)
        process = context.Process(target=_serve, args=(theirs, self._work, self._count, threads), daemon=True)
        with _deaf():
            process.start()
        theirs.close()  # so that its death is the end of what we hear
        return _Worker(process, ours)

    def _buried(self, worker: _Worker) -> Iterator[tuple[Job, None]]:
        """Put another in the place of a worker that died; its job, if it had one."""
        self._workers.remove(worker)
        worker.process.join()
        worker.process.close()
        worker.talk.close()
        if self._spare:
            self._spare -= 1
            self._workers.append(self._started())
        if not self._workers:
            raise InputError("the workers of this batch die one after another; close other programs, or give --memory.")
        if worker.job is not None:
            yield worker.job, None


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _serve(talk: Connection, work: Work, sharing: int, threads: int | None) -> None:
    """A worker's life: jobs come, reports go, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it, who will tell
    signal.signal(signal.SIGTERM, _leave)
    if threads is not None:
        torch.set_num_threads(threads)
    with suppress(EOFError, BrokenPipeError):
        doing, ready = prepared(work, sharing)
        talk.send(ready)
        while doing is not None:
            talk.send(attempt(doing, talk.recv()))


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # an exception, so that what is half written goes


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started meanwhile does not hear Ctrl-C from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
