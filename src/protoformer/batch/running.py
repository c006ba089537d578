"""A batch from its first video to its last."""

import csv
import io
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from protoformer.batch.cluster import RayPool
from protoformer.batch.jobs import Job, JobReport, JobSetup
from protoformer.batch.ledger import SUMMARY, Ledger
from protoformer.batch.workers import ProcessPool, TimeLimit, WorkerPool, core_count, run_jobs
from protoformer.errors import InputError, UntrainedWarning
from protoformer.io.files import write_atomically

COLUMNS = ("video", "output", "frames", "seconds", "status", "reason")
WRITE_SECONDS = 2.0
"""Minimum time between two updates of the summary, which is written as a whole."""
CORES_PER_WORKER = 4
"""Cores per worker on a machine without a GPU; the network does not use more of them efficiently."""


class Summary:
    """Table of the jobs of a batch, in a csv file.

    Attributes:
        path: The file.
        jobs: The jobs in order.
    """

    def __init__(self, path: Path, jobs: Sequence[Job]) -> None:
        self.path = path
        self.jobs = tuple(jobs)
        self._reports = {job.name: JobReport("waiting") for job in jobs}
        self._last_write = -WRITE_SECONDS

    @property
    def reports(self) -> tuple[JobReport, ...]:
        """Reports in the order of the jobs."""
        return tuple(self._reports.values())

    def add(self, job: Job, report: JobReport) -> None:
        """Store the report of a job, and write the file unless it was written a moment ago."""
        self._reports[job.name] = replace(report, seconds=round(report.seconds, 3))
        if time.monotonic() - self._last_write >= WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        """Write all rows; `output` is relative to the folder of the file."""
        text = io.StringIO(newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for job, each in zip(self.jobs, self.reports, strict=True):
            rows.writerow((job.video, job.name, each.frames, each.seconds, each.status, each.reason))
        write_atomically(self.path, text.getvalue().encode(errors="surrogateescape"))
        self._last_write = time.monotonic()


def _ignore(*_: object) -> None:
    pass


def _warn(note: str) -> None:
    warnings.warn(note, UserWarning, stacklevel=2)


@dataclass(frozen=True)
class BatchCallback:
    """Callbacks of a running batch.

    Attributes:
        job: Called with a job, its report, the number of jobs that have ended, and the number of all jobs.
        note: Called with notes for the user; by default they are warnings.
    """

    job: Callable[[Job, JobReport, int, int], None] = _ignore
    note: Callable[[str], None] = _warn


@dataclass(frozen=True)
class Batch:
    """How a batch is run.

    Attributes:
        workers: Number of processes or actors; None: as many as fit.
        device: "cpu", "cuda" or None, of the model.
        cluster: Ray cluster, "auto" or "ray://HOST:PORT"; None: this machine.
        limit: Time limit of each video.
    """

    workers: int | None = None
    device: str | None = None
    cluster: str | None = None
    limit: TimeLimit = field(default_factory=TimeLimit)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"a batch cannot have {self.workers} workers; give 1 or more.")

    def make_pool(self, setup: JobSetup, num_jobs: int) -> WorkerPool:
        """Create the pool of workers."""
        if self.cluster is not None:
            return RayPool(setup, self.cluster, self.workers, num_jobs)
        use_gpu = torch.cuda.is_available() if self.device is None else not self.device.startswith("cpu")
        default = 1 if use_gpu else max(1, core_count() // CORES_PER_WORKER)
        return ProcessPool(setup, min(self.workers or default, num_jobs))


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch.

    Attributes:
        jobs: All jobs in order.
        reports: Their reports.
        summary: The table of them, a csv file.
        failures: Error messages of the videos that failed.
    """

    jobs: tuple[Job, ...]
    reports: tuple[JobReport, ...]
    summary: Path
    failures: dict[Path, str] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.jobs, self.reports, strict=True)
        object.__setattr__(self, "failures", {job.video: each.reason for job, each in pairs if each.status == "failed"})

    def count(self, status: str) -> int:
        """Count the videos with a status."""
        return sum(each.status == status for each in self.reports)


def run_batch(
    folder: Path, list_jobs: Callable[[Ledger], Sequence[Job]], setup: JobSetup, batch: Batch, callback: BatchCallback
) -> BatchResult:
    """Run the jobs of a folder that are not finished; an interruption leaves the outputs, the ledger and the summary.

    Args:
        folder: Folder of the outputs.
        list_jobs: Returns the jobs, once the folder is locked; their names depend on its ledger.
        setup: Prepares a worker.
        batch: How to run the jobs.
        callback: Callbacks for progress and notes.
    """
    ledger = Ledger(folder.absolute())
    with ledger.locked():
        jobs = list_jobs(ledger)
        summary, num_ended, unfinished = Summary(ledger.folder / SUMMARY, jobs), 0, []

        def end(job: Job, report: JobReport) -> None:
            nonlocal num_ended
            num_ended += 1
            summary.add(job, report)
            callback.job(job, report, num_ended, len(jobs))

        for job in jobs:
            report = JobReport("failed", reason=job.unread) if job.unread else ledger.finished(job)
            if report is None:
                unfinished.append(job)
            else:
                end(job, report)
        note = ledger.note()
        if note:
            callback.note(note)
        try:
            if unfinished:
                with closing(batch.make_pool(setup, len(unfinished))) as pool:
                    summary.write()
                    for job, report in run_jobs(unfinished, pool, batch.limit, _warn_untrained, callback.note):
                        end(job, report)
        finally:
            summary.write()
    return BatchResult(summary.jobs, summary.reports, summary.path)


def _warn_untrained(text: str) -> None:
    warnings.warn(text, UntrainedWarning, stacklevel=2)
