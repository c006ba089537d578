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

from protoformer.batch.cluster import RayWorkers
from protoformer.batch.jobs import Job, JobReport, JobSetup
from protoformer.batch.ledger import SUMMARY, Ledger
from protoformer.batch.workers import ProcessWorkers, TimeLimit, Workers, core_count, run_jobs
from protoformer.errors import InputError, UntrainedWarning
from protoformer.io.files import write_atomically

COLUMNS = ("video", "output", "frames", "seconds", "status", "reason")
EVERY = 2.0
"""Seconds between two writings at least: all of it is written each time."""


class Summary:
    """How the jobs of a batch stand, in their order, and the file that says so."""

    def __init__(self, path: Path, jobs: Sequence[Job]) -> None:
        self.path = path
        self.jobs = tuple(jobs)
        self._reports = {job.name: JobReport("waiting") for job in jobs}
        self._written = -EVERY

    @property
    def reports(self) -> tuple[JobReport, ...]:
        """In the order of the jobs."""
        return tuple(self._reports.values())

    def add(self, job: Job, report: JobReport) -> None:
        """Note how a job went, and write it unless that was done a moment ago."""
        self._reports[job.name] = replace(report, seconds=round(report.seconds, 3))
        if time.monotonic() - self._written >= EVERY:
            self.write()

    def write(self) -> None:
        """Write all rows; `output` is relative to the folder of the file."""
        text = io.StringIO(newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for job, each in zip(self.jobs, self.reports, strict=True):
            rows.writerow((job.video, job.name, each.frames, each.seconds, each.status, each.reason))
        write_atomically(self.path, text.getvalue().encode(errors="surrogateescape"))
        self._written = time.monotonic()


CORES = 4
"""Of a worker on a machine without a GPU: a network this small does not keep more of them busy."""


def _silent(*_: object) -> None:
    pass


def _warned(note: str) -> None:
    warnings.warn(note, UserWarning, stacklevel=2)


@dataclass(frozen=True)
class BatchCallback:
    """Callbacks while a batch runs. job: a job, how it went, and how many of how many are over. note: a remark.

    That a model's weights are random is an `UntrainedWarning`, as it is where one is loaded.
    """

    job: Callable[[Job, JobReport, int, int], None] = _silent
    note: Callable[[str], None] = _warned


@dataclass(frozen=True)
class Batch:
    """Where a batch is done. workers: processes, or actors of the cluster (None: as many as fit). device: "cpu",
    "cuda" or None, of the model. cluster: "auto", "ray://HOST:PORT" or None for this machine. limit: of each video.
    """

    workers: int | None = None
    device: str | None = None
    cluster: str | None = None
    limit: TimeLimit = field(default_factory=TimeLimit)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"{self.workers} workers cannot do anything; give 1 or more.")


@dataclass(frozen=True)
class BatchResult:
    """What came of a batch. jobs, reports: of every video, in their order. summary: the table of them, a csv file."""

    jobs: tuple[Job, ...]
    reports: tuple[JobReport, ...]
    summary: Path
    failures: dict[Path, str] = field(init=False)
    """Why a video could not be done."""

    def __post_init__(self) -> None:
        pairs = zip(self.jobs, self.reports, strict=True)
        object.__setattr__(self, "failures", {job.video: each.reason for job, each in pairs if each.status == "failed"})

    def count(self, status: str) -> int:
        """How many videos have this status."""
        return sum(each.status == status for each in self.reports)


FindJobs = Callable[[Ledger], Sequence[Job]]
"""Says which jobs there are in a folder with this ledger."""


def run_batch(folder: Path, jobs: FindJobs, work: JobSetup, batch: Batch, callback: BatchCallback) -> BatchResult:
    """Do the jobs of a folder that are not finished. An interruption leaves the outputs, the ledger and the summary.

    jobs: makes them when the folder is held, since their names depend on what its ledger has.
    """
    ledger = Ledger(folder.absolute())
    with ledger.taken():
        all_jobs = jobs(ledger)
        summary = Summary(ledger.folder / SUMMARY, all_jobs)
        to_do, over = [], 0
        for job in all_jobs:
            report = JobReport("failed", reason=job.unread) if job.unread else ledger.finished(job)
            if report is None:
                to_do.append(job)
                continue
            over += 1
            summary.add(job, report)
            callback.job(job, report, over, len(all_jobs))
        note = ledger.note()
        if note:
            callback.note(note)
        try:
            if to_do:
                with closing(_crew(work, batch, len(to_do), callback.note)) as crew:
                    _carry_out(to_do, crew, summary, callback, over)
        finally:
            summary.write()
    return BatchResult(summary.jobs, summary.reports, summary.path)


def _carry_out(jobs: Sequence[Job], crew: Workers, summary: Summary, callback: BatchCallback, over: int) -> None:
    summary.write()
    noted: set[str] = set()
    for number, (job, report) in enumerate(run_jobs(jobs, crew), over + 1):
        for note in crew.notes():
            if note not in noted:
                noted.add(note)
                warnings.warn(note, UntrainedWarning, stacklevel=2)
        summary.add(job, report)
        callback.job(job, report, number, len(summary.jobs))


def _crew(work: JobSetup, batch: Batch, jobs: int, note: Callable[[str], None]) -> Workers:
    if batch.cluster is not None:
        return RayWorkers(work, batch.cluster, batch.workers, jobs, note, batch.limit)
    return ProcessWorkers(work, min(batch.workers or _usual(batch.device), jobs), batch.limit)


def _usual(device: str | None) -> int:
    """How many workers this machine has when nobody says: one for a GPU, else one for every few cores."""
    on_card = torch.cuda.is_available() if device is None else not device.startswith("cpu")
    return 1 if on_card else max(1, core_count() // CORES)
