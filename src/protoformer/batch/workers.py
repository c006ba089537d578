"""Workers of a batch: the loop that gives them jobs, and local worker processes.

A worker is an executor with a single process (or an actor on a cluster), and not one of several processes of a common
`ProcessPoolExecutor`: that breaks as a whole if one process crashes, and cannot end a single job at its time limit.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for_processes
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn, Protocol

import torch

from protoformer.batch.jobs import Job, JobFunction, JobReport, JobSetup, WorkerReady
from protoformer.batch.ledger import Ledger, file_stamp
from protoformer.errors import InputError, UntrainedWarning
from protoformer.io.files import system_reason
from protoformer.io.memory import is_out_of_memory

ATTEMPTS = 3
"""Number of workers that may crash while processing a video before it fails."""
MAX_WAIT = 3600.0
"""Maximum time of one wait in seconds, because the system does not accept arbitrary numbers."""


class Worker(Protocol):
    """A process or an actor that runs one job at a time.

    Attributes:
        ready: Completes when the worker has loaded the model.
    """

    ready: "Future[WorkerReady]"

    def submit(self, job: Job) -> "Future[JobReport]":
        """Start a job; the future raises an exception if the worker crashes."""

    def kill(self) -> None:
        """End the worker at once."""


class WorkerPool(Protocol):
    """Starts workers.

    Attributes:
        num_workers: Number of workers to run.
        slow_start: Note for the user if no worker is ready after `START_SECONDS`; empty: none.
    """

    num_workers: int
    slow_start: str

    def start(self) -> Worker:
        """Start a worker."""

    def check_crash(self, error: BaseException) -> None:
        """Raise `InputError` if an error of a worker means that no other worker can run."""

    def crash_error(self, error: BaseException) -> InputError:
        """Return the error if workers crash before they are ready."""

    def close(self) -> None:
        """End all workers."""


@dataclass(frozen=True)
class TimeLimit:
    """Time limit of a video in minutes; None: unlimited."""

    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"a time limit of {self.minutes:g} minutes is not possible; give a number over 0.")

    def deadline(self) -> float:
        """Return the deadline of a job that starts now, by `time.monotonic`."""
        return float("inf") if self.minutes is None else time.monotonic() + 60 * self.minutes

    def report(self, job: Job) -> JobReport:
        """Return the report of a job whose worker was killed at the deadline; it may have been finished just before."""
        assert self.minutes is not None
        finished = Ledger(job.folder).finished(job)
        if finished is not None:
            return replace(finished, status="done")
        reason = (
            f"{job.video} took longer than {self.minutes:g} minutes and was stopped; "
            "give a higher --max-minutes-per-video, or try it by itself."
        )
        return JobReport("failed", seconds=60 * self.minutes, reason=reason)


START_SECONDS = 30.0
"""Time after which a note is given if no worker is ready."""


@dataclass(frozen=True, eq=False)
class _Task:
    """What a worker is doing: it runs a job until a deadline, or starts if there is no job."""

    worker: Worker
    job: Job | None = None
    deadline: float = float("inf")


def run_jobs(
    jobs: Sequence[Job],
    pool: WorkerPool,
    limit: TimeLimit,
    warn: Callable[[str], object],
    note: Callable[[str], object] = lambda _: None,
) -> Iterator[tuple[Job, JobReport]]:
    """Run jobs and yield them with their reports, in the order in which they end.

    A crashed worker is replaced, and its job goes to the end of the queue until `ATTEMPTS` workers crashed with it.

    Args:
        jobs: The jobs in order.
        pool: Starts the workers.
        limit: Time limit of each job.
        warn: Called with each distinct warning of the workers.
        note: Called with a note if the workers start slowly.

    Raises:
        InputError: No worker can be started.
    """
    queue, crashes, warnings_seen = deque(jobs), Counter[str](), set[str]()
    idle: list[Worker] = []
    max_start_crashes = start_crashes_left = ATTEMPTS * pool.num_workers
    tasks: dict[Future[Any], _Task] = {}
    slow_start = time.monotonic() + START_SECONDS if pool.slow_start else float("inf")

    def start_worker() -> None:
        worker = pool.start()
        tasks[worker.ready] = _Task(worker)

    for _ in range(min(pool.num_workers, len(jobs))):
        start_worker()
    while queue or any(task.job for task in tasks.values()):
        while queue and idle:
            worker, job = idle.pop(), queue.popleft()
            tasks[worker.submit(job)] = _Task(worker, job, limit.deadline())
        next_event = min(slow_start, *(task.deadline for task in tasks.values()))
        wait_for_futures(tasks, min(MAX_WAIT, max(0.0, next_event - time.monotonic())), FIRST_COMPLETED)
        for future, task in list(tasks.items()):
            worker, job_ended = task.worker, task.job
            if not future.done():
                if job_ended is not None and task.deadline <= time.monotonic():
                    del tasks[future]
                    worker.kill()
                    if queue:
                        start_worker()
                    yield job_ended, limit.report(job_ended)
                continue
            del tasks[future]
            error = future.exception()
            if error is not None:
                pool.check_crash(error)
                worker.kill()
                if job_ended is None:
                    if start_crashes_left:
                        start_crashes_left -= 1
                        start_worker()
                    elif not (tasks or idle):
                        raise pool.crash_error(error)
                    continue
                crashes[job_ended.name] += 1
                if crashes[job_ended.name] < ATTEMPTS:
                    queue.append(job_ended)
                if queue:
                    start_worker()
                if crashes[job_ended.name] == ATTEMPTS:
                    reason = f"{ATTEMPTS} workers crashed at {job_ended.video}, maybe out of memory; try it by itself."
                    yield job_ended, JobReport("failed", reason=reason)
                continue
            idle.append(worker)
            slow_start = float("inf")
            if job_ended is not None:
                start_crashes_left = max_start_crashes
                yield job_ended, future.result()
                continue
            ready: WorkerReady = future.result()
            if ready.refusal:
                raise InputError(ready.refusal)
            for text in ready.notes:
                if text not in warnings_seen:
                    warnings_seen.add(text)
                    warn(text)
        if time.monotonic() >= slow_start:
            note(pool.slow_start)
            slow_start = float("inf")


SHUTDOWN_SECONDS = 10.0
"""Time for a worker process to clean up before it is killed."""


class ProcessWorker:
    """A worker process."""

    def __init__(self, setup: JobSetup, sharing: int, num_threads: int | None) -> None:
        """Start the process; `num_threads` is the number of threads of torch (None: its default)."""
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(1, context, initializer=_initialize, initargs=(num_threads,))
        with _ignore_interrupts(), _without_main():
            self.ready = self._executor.submit(_call, "prepare", setup, sharing)
        # Executors before Python 3.14 have no public way to kill their processes.
        (self.process,) = self._executor._processes.values()

    def submit(self, job: Job) -> "Future[JobReport]":
        """Start a job."""
        return self._executor.submit(_call, "run", job)

    def terminate(self) -> None:
        """Ask the process to clean up and exit."""
        self.process.terminate()

    def kill(self) -> None:
        """End the process at once; a hanging decoder does not react to a request."""
        self.process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)


class ProcessPool:
    """Worker processes on this machine, which share its cores.

    Attributes:
        num_workers: Number of processes.
    """

    slow_start = ""

    def __init__(self, setup: JobSetup, num_workers: int) -> None:
        if multiprocessing.current_process().daemon:
            raise InputError("a batch starts processes, which a daemonic process cannot; call it elsewhere.")
        self.num_workers = num_workers
        self._setup = setup
        keep_default = num_workers == 1 or "OMP_NUM_THREADS" in os.environ
        self._num_threads = None if keep_default else max(1, core_count() // num_workers)
        self._workers: list[ProcessWorker] = []

    def start(self) -> ProcessWorker:
        """Start a process."""
        self._workers = [worker for worker in self._workers if worker.process.is_alive()]
        self._workers.append(ProcessWorker(self._setup, self.num_workers, self._num_threads))
        return self._workers[-1]

    def check_crash(self, error: BaseException) -> None:
        """Do nothing: a crash of a process does not concern the others."""

    def crash_error(self, error: BaseException) -> InputError:
        """Return the error if processes crash before they are ready."""
        return InputError("the workers of this batch crash one after another; close programs, or give fewer --workers.")

    def close(self) -> None:
        """End all processes, also if this is interrupted."""
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.terminate()
            end = time.monotonic() + SHUTDOWN_SECONDS
            for worker in workers:
                wait_for_processes([worker.process.sentinel], max(0.0, end - time.monotonic()))
        finally:
            for worker in workers:
                worker.kill()


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class JobRunner:
    """Runs jobs inside a worker, which is a local process or a Ray actor."""

    def __init__(self) -> None:
        self._function: JobFunction | None = None

    def prepare(self, setup: JobSetup, sharing: int) -> WorkerReady:
        """Load the model; errors become a refusal, because other workers would fail in the same way."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UntrainedWarning)
            try:
                self._function = setup.prepare(sharing)
            except Exception as error:
                return WorkerReady(refusal=str(error) if isinstance(error, InputError) else _start_failure(error))
        return WorkerReady(tuple(str(each.message) for each in caught))

    def run(self, job: Job) -> JobReport:
        """Run a job after `prepare`; see `run_job`."""
        assert self._function is not None
        return run_job(self._function, job)


def run_job(function: JobFunction, job: Job) -> JobReport:
    """Run a job, unless another worker finished it and crashed before it reported that; errors become a report."""
    ledger = Ledger(job.folder)
    finished = ledger.finished(job)
    if finished is not None:
        return JobReport("done", finished.frames, finished.seconds)
    start = time.perf_counter()
    try:
        ledger.check_inside(job)
        with ledger.scratch(job) as scratch:
            stamp = file_stamp(job.video)
            frames = function(job, tuple(scratch / Path(name).name for name in job.outputs))
            report = JobReport("done", frames, round(time.perf_counter() - start, 3))
            ledger.finish(job, scratch, stamp, report)
            return report
    except Exception as error:  # any error of one video must not stop the others
        return JobReport("failed", seconds=time.perf_counter() - start, reason=_describe_error(job.video, error))


def _start_failure(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory while loading a model; give fewer --workers, or close other programs."
    text = " ".join(str(error).split())[:300]
    return f"no worker could load the model ({type(error).__name__}: {text}); try one video by itself."


def _describe_error(video: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text
    if isinstance(error, OSError):
        return f"the result of {video} could not be written ({system_reason(error)}); check the disk."
    if is_out_of_memory(error):
        return f"out of memory at {video}; give fewer --workers, or smaller videos."
    return f"{video} cannot be processed ({type(error).__name__}: {text[:300]}); try it by itself."


_runner = JobRunner()
"""The runner of this worker process."""


def _initialize(num_threads: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    signal.signal(signal.SIGTERM, _exit)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _call(method: str, *arguments: Any) -> Any:
    """Call a method of the runner; a request to exit ends the process, and not only the call."""
    try:
        return getattr(_runner, method)(*arguments)
    except SystemExit as request:
        os._exit(int(str(request.code)))


def _exit_with_parent() -> None:
    """End the process when its parent ends, also in the middle of a video."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # an exception, so that temporary files are removed


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Make a process that is started in this context ignore Ctrl-C from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _without_main() -> Iterator[None]:
    """Make a process that is started in this context not import the main program, which may lack a main guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
