"""Worker processes of a batch: start, dispatch, time limits and replacement."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

import torch

from protoformer.batch.jobs import Job, JobFunction, JobReport, JobSetup, WorkerReady
from protoformer.batch.ledger import Ledger, file_stamp
from protoformer.errors import InputError, UntrainedWarning
from protoformer.io.files import system_reason

ATTEMPTS = 3
"""Workers that may die over a video before it is given up: it may well be what kills them."""
LONGEST_WAIT = 3600.0
"""Seconds that are waited at once at most, since a system call takes no number that is much longer."""


class Workers(Protocol):
    """Workers. Whoever begins a job is busy until `wait` tells how it went."""

    def idle(self) -> bool:
        """Whether somebody could begin a job now."""

    def begin(self, job: Job) -> None:
        """Let somebody who is idle begin a job."""

    def wait(self) -> Sequence[tuple[Job, JobReport | None]]:
        """Wait for something to happen; the jobs that have ended, with None where the worker died."""

    def notes(self) -> tuple[str, ...]:
        """What workers had to say when they started."""

    def close(self) -> None:
        """Send everybody home, at once."""


def run_jobs(jobs: Sequence[Job], crew: Workers) -> Iterator[tuple[Job, JobReport]]:
    """Every job and how it went, in the order in which they end.

    A job whose worker died goes to the end of the queue, and a worker first looks whether it is finished after all.
    """
    waiting, busy, deaths = deque(jobs), 0, Counter[str]()
    while waiting or busy:
        while waiting and crew.idle():
            crew.begin(waiting.popleft())
            busy += 1
        for job, report in crew.wait():
            busy -= 1
            if report is not None:
                yield job, report
                continue
            deaths[job.name] += 1
            if deaths[job.name] < ATTEMPTS:
                waiting.append(job)
            else:
                reason = f"{ATTEMPTS} workers died over {job.video}, perhaps for want of memory; try it by itself."
                yield job, JobReport("failed", reason=reason)


@dataclass(frozen=True)
class TimeLimit:
    """How long one video may take. minutes: None for as long as it needs."""

    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"no video is done in {self.minutes:g} minutes; give a number over 0, or no limit.")

    def deadline(self) -> float:
        """When a video that begins now is given up, by the clock of `time.monotonic`."""
        return float("inf") if self.minutes is None else time.monotonic() + 60 * self.minutes

    def report(self, job: Job) -> JobReport:
        """Of a job whose worker was ended at its deadline; it may have been finished in the last moment."""
        assert self.minutes is not None
        finished = Ledger(job.folder).finished(job)
        if finished is not None:
            return replace(finished, status="done")
        reason = (
            f"{job.video} took longer than {self.minutes:g} minutes and was given up; "
            "give a higher --max-minutes-per-video, or try it by itself."
        )
        return JobReport("failed", seconds=60 * self.minutes, reason=reason)


def patience(deadlines: Iterable[float], most: float | None = None) -> float | None:
    """Seconds until the next deadline, or `most` if that is less; None to wait for as long as it takes."""
    first = min(deadlines, default=float("inf"))
    if first == float("inf"):
        return most
    return min(max(0.0, first - time.monotonic()), LONGEST_WAIT if most is None else most)


class WorkerNotes:
    """What started workers say, and a sentence where none of them ever will."""

    def __init__(self) -> None:
        self.said: tuple[str, ...] = ()

    def take(self, ready: WorkerReady) -> None:
        """Listen to a worker; one that refuses speaks for all."""
        if ready.refusal:
            raise InputError(ready.refusal)
        self.said = tuple(dict.fromkeys((*self.said, *ready.notes)))


def prepare_worker(work: JobSetup, sharing: int) -> tuple[JobFunction | None, WorkerReady]:
    """What does a video, and what there is to tell; None where it can be done by no worker."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UntrainedWarning)
        try:
            doing = work.prepare(sharing)
        except InputError as error:
            return None, WorkerReady(refusal=str(error))
    return doing, WorkerReady(tuple(str(each.message) for each in noted))


def run_job(doing: JobFunction, job: Job) -> JobReport:
    """Do a job that is not finished, by another worker that died before it could tell, say."""
    ledger = Ledger(job.folder)
    before = ledger.finished(job)
    if before is not None:
        return JobReport("done", before.frames, before.seconds)
    began = time.perf_counter()
    try:
        ledger.check_inside(job)
        with ledger.scratch(job) as scratch:
            stamp = file_stamp(job.video)
            frames = doing(job.video, tuple(scratch / Path(name).name for name in job.outputs))
            report = JobReport("done", frames, round(time.perf_counter() - began, 3))
            ledger.finish(job, scratch, stamp, report)
            return report
    except Exception as error:  # whatever it is, the other videos are to be done
        return JobReport("failed", seconds=time.perf_counter() - began, reason=_sentence(job.video, error))


def start_failure(error: Exception) -> str:
    """A sentence for an error that is no `InputError`, of a worker that could not load what it needs."""
    text = " ".join(str(error).split())
    if _is_out_of_memory(error, text):
        return "the memory ran out while a model was loaded; give fewer --workers, or close other programs."
    return (
        f"no worker could load the model ({type(error).__name__}: {text[:300]}); try one video with `protoformer flow`."
    )


def _is_out_of_memory(error: Exception, text: str) -> bool:
    return isinstance(error, MemoryError) or any(
        clause in text.lower() for clause in ("out of memory", "can't allocate memory")
    )


def _sentence(video: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text
    if isinstance(error, OSError):
        return f"the motion of {video} could not be written ({system_reason(error)}); check the disk."
    if _is_out_of_memory(error, text):
        return f"the memory ran out at {video}; give --memory, or fewer --workers."
    return f"{video} cannot be worked on ({type(error).__name__}: {text[:300]}); try it by itself."


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


class ProcessWorkers:
    """So many processes, each with a model of its own and its part of the cores.

    A worker that dies over a video, or is ended at the time limit of a video, is replaced; the video answers for that.
    """

    def __init__(self, work: JobSetup, count: int, limit: TimeLimit) -> None:
        self._work, self._count, self._limit, self._notes = work, count, limit, WorkerNotes()
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

    def wait(self) -> Sequence[tuple[Job, JobReport | None]]:
        """Until a worker speaks or dies, or a video is at its time limit."""
        ended: list[tuple[Job, JobReport | None]] = []
        speaking = wait([worker.talk for worker in self._workers], patience(each.deadline for each in self._workers))
        for worker in [each for each in self._workers if each.talk in speaking]:
            try:
                heard = worker.talk.recv()
            except (EOFError, OSError):
                ended.extend((job, None) for job in self._replaced(worker))
                continue
            if isinstance(heard, WorkerReady):
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
        parent_end, worker_end = context.Pipe()
        own = self._count == 1 or "OMP_NUM_THREADS" in os.environ
        threads = None if own else max(1, core_count() // self._count)
        process = context.Process(target=_serve, args=(worker_end, self._work, self._count, threads), daemon=True)
        with _deaf(), _without_main():
            process.start()
        worker_end.close()  # so that the connection ends when the worker dies
        return _Worker(process, parent_end)

    def _replaced(self, worker: _Worker) -> list[Job]:
        """Replace a worker that died; return its job, if it had one."""
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


def core_count() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _serve(talk: Connection, work: JobSetup, sharing: int, threads: int | None) -> None:
    """A worker's life: jobs come, reports go, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it, who will tell
    signal.signal(signal.SIGTERM, _leave)
    if threads is not None:
        torch.set_num_threads(threads)
    threading.Thread(target=_watch, daemon=True).start()
    with suppress(EOFError, BrokenPipeError):
        try:
            doing, ready = prepare_worker(work, sharing)
        except Exception as error:  # the other workers would fail in the same way
            doing, ready = None, WorkerReady(refusal=start_failure(error))
        talk.send(ready)
        while doing is not None:
            talk.send(run_job(doing, talk.recv()))


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
