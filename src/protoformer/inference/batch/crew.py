"""Who works: hands jobs to workers, and takes care of those that die."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from protoformer.errors import InputError
from protoformer.inference.batch.jobs import Job, Ready, Report
from protoformer.inference.batch.ledger import Ledger

ATTEMPTS = 3
"""Workers that may die over a video before it is given up: it may well be what kills them."""
LONGEST_WAIT = 3600.0
"""Seconds that are waited at once at most, since a system call takes no number that is much longer."""


class Crew(Protocol):
    """Workers. Whoever begins a job is busy until `wait` tells how it went."""

    def idle(self) -> bool:
        """Whether somebody could begin a job now."""

    def begin(self, job: Job) -> None:
        """Let somebody who is idle begin a job."""

    def wait(self) -> Sequence[tuple[Job, Report | None]]:
        """Wait for something to happen; the jobs that have ended, with None where the worker died."""

    def notes(self) -> tuple[str, ...]:
        """What workers had to say when they started."""

    def close(self) -> None:
        """Send everybody home, at once."""


def carried_out(jobs: Sequence[Job], crew: Crew) -> Iterator[tuple[Job, Report]]:
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
                yield job, Report("failed", reason=reason)


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

    def report(self, job: Job) -> Report:
        """Of a job whose worker was ended at its deadline; it may have been finished in the last moment."""
        assert self.minutes is not None
        finished = Ledger(job.folder).finished(job)
        if finished is not None:
            return replace(finished, status="done")
        reason = (
            f"{job.video} took longer than {self.minutes:g} minutes and was given up; "
            "give a higher --max-minutes-per-video, or try it by itself."
        )
        return Report("failed", seconds=60 * self.minutes, reason=reason)


def patience(deadlines: Iterable[float], most: float | None = None) -> float | None:
    """Seconds until the next deadline, or `most` if that is less; None to wait for as long as it takes."""
    first = min(deadlines, default=float("inf"))
    if first == float("inf"):
        return most
    return min(max(0.0, first - time.monotonic()), LONGEST_WAIT if most is None else most)


class Notes:
    """What started workers say, and a sentence where none of them ever will."""

    def __init__(self) -> None:
        self.said: tuple[str, ...] = ()

    def take(self, ready: Ready) -> None:
        """Listen to a worker; one that refuses speaks for all."""
        if ready.refusal:
            raise InputError(ready.refusal)
        self.said = tuple(dict.fromkeys((*self.said, *ready.notes)))
