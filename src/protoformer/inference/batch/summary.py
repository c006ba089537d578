"""summary.csv: a row for every video of a batch, whole at any moment."""

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from protoformer.files import write_atomically
from protoformer.inference.batch.jobs import Job, Report

COLUMNS = ("video", "output", "frames", "seconds", "status", "reason")
EVERY = 2.0
"""Seconds between two writings at least: all of it is written each time."""


class Summary:
    """How the jobs of a batch stand, in their order, and the file that says so."""

    def __init__(self, path: Path, jobs: Sequence[Job]) -> None:
        self.path = path
        self.jobs = tuple(jobs)
        self._reports = {job.name: Report("waiting") for job in jobs}
        self._written = -EVERY

    @property
    def reports(self) -> tuple[Report, ...]:
        """In the order of the jobs."""
        return tuple(self._reports.values())

    def add(self, job: Job, report: Report) -> None:
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
