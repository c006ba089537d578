"""Workers that are processes of this machine. One that dies, of a video or for want of memory, takes only itself."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType, ModuleType
from typing import Any

import torch

from protoformer.errors import InputError
from protoformer.inference.batch.attempt import attempt, prepared, start_failure
from protoformer.inference.batch.crew import ATTEMPTS, Notes, TimeLimit, patience
from protoformer.inference.batch.jobs import Job, Ready, Report, Work

PATIENCE = 10.0
"""Seconds for a worker to clean up behind itself."""


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    talk: Connection
    ready: bool = False
    job: Job | None = None
    deadline: float = float("inf")

    def bury(self) -> None:
        """Free what is left of a process that died or is about to."""
        self.process.join()
        self.process.close()
        self.talk.close()


class Processes:
    """So many processes, each with a model of its own and its part of the cores.

    A worker that dies over a video, or is ended at the time limit of a video, is replaced; the video answers for that.
    """

    def __init__(self, work: Work, count: int, limit: TimeLimit) -> None:
        self._work, self._count, self._limit, self._notes = work, count, limit, Notes()
        self._spare = ATTEMPTS * count
        """Workers without a job that may still be replaced before the next one is done."""
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
        worker.job, worker.deadline = job, self._limit.deadline()
        with suppress(OSError):
            worker.talk.send(job)

    def wait(self) -> Sequence[tuple[Job, Report | None]]:
        """Until a worker speaks or dies, or a video is at its time limit."""
        ended: list[tuple[Job, Report | None]] = []
        speaking = wait([worker.talk for worker in self._workers], patience(each.deadline for each in self._workers))
        for worker in [each for each in self._workers if each.talk in speaking]:
            try:
                heard = worker.talk.recv()
            except (EOFError, OSError):
                ended.extend((job, None) for job in self._replaced(worker))
                continue
            if isinstance(heard, Ready):
                self._notes.take(heard)
                worker.ready = True
            elif worker.job is not None:
                ended.append((worker.job, heard))
                worker.job, worker.deadline = None, float("inf")
                self._spare = ATTEMPTS * self._count
        late = [each for each in self._workers if each.deadline <= time.monotonic() and not each.talk.poll()]
        for worker in late:
            worker.process.kill()  # what hangs in a decoder does not hear a request to leave
            ended.extend((job, self._limit.report(job)) for job in self._replaced(worker))
        return ended

    def notes(self) -> tuple[str, ...]:
        """Of those that started."""
        return self._notes.said

    def close(self) -> None:
        """Ask them to go, and see to it that they do, even where this is interrupted."""
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.process.terminate()
            until = time.monotonic() + PATIENCE
            for worker in workers:
                worker.process.join(max(0.0, until - time.monotonic()))
        finally:
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                worker.bury()

    def _started(self) -> _Worker:
        if multiprocessing.current_process().daemon:
            raise InputError("a batch needs processes of its own, which a daemonic process has not; call it elsewhere.")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        own = self._count == 1 or "OMP_NUM_THREADS" in os.environ
        threads = None if own else max(1, cores() // self._count)
        process = context.Process(target=_serve, args=(theirs, self._work, self._count, threads), daemon=True)
        with _deaf(), _without_main():
            process.start()
        theirs.close()  # so that its death is the end of what we hear
        return _Worker(process, ours)

    def _replaced(self, worker: _Worker) -> list[Job]:
        """Put another in the place of a worker that died; its job, if it had one."""
        self._workers.remove(worker)
        worker.bury()
        if worker.job is not None:
            self._workers.append(self._started())
            return [worker.job]
        if self._spare:
            self._spare -= 1
            self._workers.append(self._started())
        if not self._workers:
            raise InputError("the workers of this batch die one after another; close other programs, or give --memory.")
        return []


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _serve(talk: Connection, work: Work, sharing: int, threads: int | None) -> None:
    """A worker's life: jobs come, reports go, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it, who will tell
    signal.signal(signal.SIGTERM, _leave)
    if threads is not None:
        torch.set_num_threads(threads)
    threading.Thread(target=_watch, daemon=True).start()
    with suppress(EOFError, BrokenPipeError):
        try:
            doing, ready = prepared(work, sharing)
        except Exception as error:  # the other workers would fail in the same way
            doing, ready = None, Ready(refusal=start_failure(error))
        talk.send(ready)
        while doing is not None:
            talk.send(attempt(doing, talk.recv()))


def _watch() -> None:
    """End the process when the one that started it is gone, also in the middle of a video."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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


@contextmanager
def _without_main() -> Iterator[None]:
    """What is started meanwhile does not run the program that called, which it has no use for.

    The usual start of a process would: the program would then have to be safe to import, which few short ones are.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
