"""Workers on a Ray cluster: actors that hold the model.

A job is given to one actor at a time. If that dies, with its machine or without, the job goes to another, and a new
actor is requested as a replacement. Actors and not Ray Data, because a batch must know which video a worker had, and
must give work only to workers that have started.
"""

import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from protoformer.batch.jobs import Job, JobReport, JobSetup, WorkerReady
from protoformer.batch.workers import ATTEMPTS, TimeLimit, WorkerNotes, patience, prepare_worker, run_job
from protoformer.errors import InputError

CORES = 4
"""Of a worker without a GPU, at most."""
PATIENCE = 30.0
"""Seconds after which a note says that no worker could start yet."""
TRIES = 3
"""Attempts to connect to a cluster that answers."""
ADDRESS = r"auto|(ray://)?[^/\s]+:[0-9]+"


class _Actor:
    """A worker on some machine of the cluster."""

    def __init__(self, work: JobSetup, sharing: int) -> None:
        self._work, self._sharing = work, sharing

    def ready(self) -> WorkerReady:
        self._doing, ready = prepare_worker(self._work, self._sharing)
        return ready

    def do(self, job: Job) -> JobReport:
        assert self._doing is not None
        return run_job(self._doing, job)


class RayWorkers:
    """Actors on the cluster at an address: "auto", "ray://HOST:PORT" or "HOST:PORT".

    count: how many; None: one a GPU, or, where there is none, one for every four cores. most: there is no use in more.
    on_note: called with notes for the user. limit: of each video, from the moment an actor receives it.
    """

    def __init__(
        self,
        work: JobSetup,
        address: str,
        count: int | None,
        most: int,
        on_note: Callable[[str], None],
        limit: TimeLimit,
    ) -> None:
        self._ray, self._work, self._on_note, self._limit = require_ray(), work, on_note, limit
        self._address, self._notes = address, WorkerNotes()
        self._ours = _connected(self._ray, address)
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Job, float]] = {}
        """What an actor will answer: the actor, its job and when that is given up."""
        self._waited = 0.0
        try:
            with self._lost():
                nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
                self._needs, self._sharing, number = divide_cores(nodes, count)
                self._spare = self._most_spare = ATTEMPTS * number
                for _ in range(min(number, most)):
                    self._start()
        except BaseException:
            self.close()
            raise

    def idle(self) -> bool:
        """Whether somebody has started who has no job."""
        return bool(self._idle)

    def begin(self, job: Job) -> None:
        """Hand it to one of them."""
        actor = self._idle.pop()
        with self._lost():
            self._busy[actor.do.remote(job)] = (actor, job, self._limit.deadline())

    def wait(self) -> Sequence[tuple[Job, JobReport | None]]:
        """Until something happens on the cluster, or for a second."""
        ended: list[tuple[Job, JobReport | None]] = []
        with self._lost():
            seconds = patience((deadline for _, _, deadline in self._busy.values()), 1.0)
            happened, _ = self._ray.wait([*self._starting, *self._busy], num_returns=1, timeout=seconds)
            for each in happened:
                if each in self._starting:
                    self._arrive(each)
                else:
                    ended.append(self._end(each))
            ended.extend(self._given_up())
        self._grumble(bool(happened))
        return ended

    def notes(self) -> tuple[str, ...]:
        """Of those that started."""
        return self._notes.said

    def close(self) -> None:
        """Give back what the cluster lent."""
        actors = [*self._starting.values(), *self._idle, *(actor for actor, _, _ in self._busy.values())]
        with suppress(Exception):  # a cluster that is gone has nothing to take back
            for actor in actors:
                self._ray.kill(actor)
        if self._ours:
            with suppress(Exception):
                self._ray.shutdown()

    def _start(self) -> None:
        actor = self._ray.remote(_Actor).options(**self._needs).remote(self._work, self._sharing)
        self._starting[actor.ready.remote()] = actor

    def _arrive(self, starting: Any) -> None:
        actor = self._starting.pop(starting)
        try:
            ready = self._ray.get(starting)
        except self._ray.exceptions.RayError as error:
            self._replace(actor, error, charged=True)
            return
        self._notes.take(ready)
        self._idle.append(actor)

    def _end(self, ending: Any) -> tuple[Job, JobReport | None]:
        actor, job, _ = self._busy.pop(ending)
        try:
            report: JobReport = self._ray.get(ending)
        except self._ray.exceptions.RayError as error:
            self._replace(actor, error)
            return job, None
        self._idle.append(actor)
        self._spare = self._most_spare
        return job, report

    def _given_up(self) -> list[tuple[Job, JobReport | None]]:
        """End the actors whose videos are at their time limit."""
        late = [each for each, (_, _, deadline) in self._busy.items() if deadline <= time.monotonic()]
        answered, _ = self._ray.wait(late, num_returns=len(late), timeout=0) if late else ([], [])
        ended: list[tuple[Job, JobReport | None]] = []
        for each in late:
            if each not in answered:  # else its report is taken the next time
                actor, job, _ = self._busy.pop(each)
                self._replace(actor, TimeoutError(f"{job.video} hangs"))
                ended.append((job, self._limit.report(job)))
        return ended

    def _replace(self, actor: Any, error: Exception, charged: bool = False) -> None:
        """Another for one that died, or that cannot be reached, which must not come back to its job.

        charged: where it had no job that answers for its death, only so many are started before a job is done.
        """
        with suppress(Exception):
            self._ray.kill(actor)
        if self._spare or not charged:
            self._spare -= charged
            self._start()
        if not (self._starting or self._idle or self._busy):
            why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise InputError(
                f"the workers on the cluster die one after another ({why}); see that protoformer is installed and the "
                "videos are found on all of its machines."
            )

    def _grumble(self, happened: bool) -> None:
        """Say so, once, where nobody has started for long."""
        if happened or self._idle or self._busy:
            self._waited = float("-inf")
        self._waited += 1.0
        if self._waited == PATIENCE:
            self._on_note(f"no worker could start yet: the cluster has no room for {self._needs}; still waiting")

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Turn a lost cluster into a sentence."""
        try:
            yield
        except (ConnectionError, self._ray.exceptions.RaySystemError):
            raise InputError(
                f"the cluster at {self._address} was lost; what is finished is kept, so run the same command again."
            ) from None


def require_ray() -> Any:
    """The package `ray`, or a sentence that says how to get it."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "a cluster needs the package ray; install it with: pip install 'protoformer[cluster]'"
        ) from None
    return ray


def divide_cores(nodes: Sequence[dict[str, float]], count: int | None) -> tuple[dict[str, Any], int, int]:
    """What a worker asks for, how many share a machine at most, and how many there are, by the machines' resources."""
    cards = sum(int(node.get("GPU", 0)) for node in nodes)
    if cards:
        most = max(int(node.get("GPU", 0)) for node in nodes)
        return {"num_gpus": 1, "num_cpus": 1, "max_restarts": 0}, most, min(count or cards, cards)
    machines = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    if not machines:
        raise InputError("the cluster has neither a GPU nor a core to lend; start it with --num-cpus.")
    each = min(CORES, *machines)
    if count is not None:
        each = max(1, min(each, sum(machines) // count))
    places = sum(machine // each for machine in machines)
    needs = {"num_cpus": each, "num_gpus": 0, "max_restarts": 0}
    return needs, max(machines) // each, min(count or places, places)


def _connected(ray: Any, address: str) -> bool:
    """Join a cluster; False where the program is in one already."""
    if not re.fullmatch(ADDRESS, address):
        raise InputError(f"a cluster is auto, ray://HOST:PORT or HOST:PORT, not {address!r}; give one of these.")
    if ray.is_initialized():
        return False
    try:
        if address != "auto":
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE).close()  # ray itself would try for minutes
        with _own_signals():
            _join(ray, address)
    except (RuntimeError, ValueError, OSError, OverflowError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0].rstrip(".:")
        raise InputError(
            f"there is no Ray cluster to join at {address} ({why}); start one with: ray start --head"
        ) from None
    return True


def _join(ray: Any, address: str) -> None:
    """Connect to a cluster; a busy one may not answer in time, so several attempts are made."""
    for left in reversed(range(TRIES)):
        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
            return
        except ConnectionAbortedError as error:  # the server's traceback, whose last line says why
            if not left:
                raise RuntimeError(str(error).strip().splitlines()[-1]) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """What happens on a request to terminate stays as it was, which ray would change."""
    before: Any = signal.getsignal(signal.SIGTERM)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
