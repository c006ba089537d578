"""Who works: hands jobs to workers, and takes care of those that die."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from protoformer.errors import InputError
from protoformer.inference.batch.attempt import attempt, prepared
from protoformer.inference.batch.jobs import Job, Ready, Report, Work

ATTEMPTS = 3
"""Workers that may die over a video before it is given up: it may well be what kills them."""


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


class Alone:
    """One worker, which is the process itself."""

    def __init__(self, work: Work) -> None:
        doing, self._ready = prepared(work, 1)
        if doing is None:
            raise InputError(self._ready.refusal)
        self._doing = doing
        self._job: Job | None = None

    def idle(self) -> bool:
        """Whether it has no job."""
        return self._job is None

    def begin(self, job: Job) -> None:
        """It is done when somebody waits for it."""
        self._job = job

    def wait(self) -> Sequence[tuple[Job, Report | None]]:
        """Do the job."""
        job, self._job = self._job, None
        return [] if job is None else [(job, attempt(self._doing, job))]

    def notes(self) -> tuple[str, ...]:
        """Of the model."""
        return self._ready.notes

    def close(self) -> None:
        """Nobody to send home."""


class Notes:
    """What started workers say, and a sentence where none of them ever will."""

    def __init__(self) -> None:
        self.said: tuple[str, ...] = ()

    def take(self, ready: Ready) -> None:
        """Listen to a worker; one that refuses speaks for all."""
        if ready.refusal:
            raise InputError(ready.refusal)
        self.said = tuple(dict.fromkeys((*self.said, *ready.notes)))
