"""Workers of a batch on a Ray cluster: actors that hold the model.

Actors and not Ray Data, because the video of a worker that fails must be identified, and jobs must be given only to
workers that are ready.
"""

import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from protoformer.batch.jobs import Job, JobReport, JobSetup, WorkerReady
from protoformer.batch.workers import JobRunner
from protoformer.errors import InputError, install_command

CORES_PER_WORKER = 4
"""Maximum number of cores of a worker without a GPU."""
CONNECT_SECONDS = 30.0
"""Time limit of a connection to the address of a cluster."""
CONNECT_ATTEMPTS = 3
"""Attempts to connect to a cluster that answers."""
ADDRESS = r"auto|(ray://)?[^/\s]+:[0-9]+"


class RayWorker:
    """A worker on some machine of the cluster."""

    def __init__(self, ray: Any, setup: JobSetup, sharing: int, resources: dict[str, Any]) -> None:
        self._ray = ray
        self._actor = ray.remote(JobRunner).options(**resources).remote()
        self.ready: Future[WorkerReady] = self._actor.prepare.remote(setup, sharing).future()

    def submit(self, job: Job) -> "Future[JobReport]":
        """Start a job."""
        future: Future[JobReport] = self._actor.run.remote(job).future()
        return future

    def kill(self) -> None:
        """End the actor; one that only became unreachable must not return to its job."""
        with suppress(Exception):  # a lost cluster has no actors
            self._ray.kill(self._actor)


class RayPool:
    """Actors on the cluster at an address: "auto", "ray://HOST:PORT" or "HOST:PORT".

    Attributes:
        num_workers: Number of actors: one per GPU, or, without a GPU, one for every four cores.
        slow_start: Note for the user if the cluster has no room for an actor.
    """

    def __init__(self, setup: JobSetup, address: str, num_workers: int | None, max_workers: int) -> None:
        """Connect to the cluster.

        Args:
            setup: Prepares a worker.
            address: Address of the cluster.
            num_workers: Number of actors; None: as many as fit.
            max_workers: Maximum number of actors.
        """
        self._ray, self._setup, self._address = require_ray(), setup, address
        self._is_owner = _connect(self._ray, address)
        self._workers: list[RayWorker] = []
        try:
            with self._translate_errors():
                nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._resources, self._sharing, count = divide_cores(nodes, num_workers)
        except BaseException:
            self.close()
            raise
        self.num_workers = min(count, max_workers)
        self.slow_start = f"no worker is ready: the cluster has no room for {self._resources}; still waiting"

    def start(self) -> RayWorker:
        """Start an actor."""
        with self._translate_errors():
            self._workers.append(RayWorker(self._ray, self._setup, self._sharing, self._resources))
        return self._workers[-1]

    def check_crash(self, error: BaseException) -> None:
        """Raise `InputError` if the cluster was lost, and not only a worker."""
        if isinstance(error, (ConnectionError, self._ray.exceptions.RaySystemError)):
            raise self._lost_error() from None

    def crash_error(self, error: BaseException) -> InputError:
        """Return the error if actors crash before they are ready."""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        return InputError(
            f"the workers on the cluster crash one after another ({reason}); check that protoformer and the videos are "
            "available on all of its machines."
        )

    def close(self) -> None:
        """End all actors, and disconnect."""
        for worker in self._workers:
            worker.kill()
        if self._is_owner:
            with suppress(Exception):
                self._ray.shutdown()

    def _lost_error(self) -> InputError:
        return InputError(
            f"the connection to the cluster at {self._address} was lost; finished videos are kept, and the same "
            "command continues from there."
        )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionError, self._ray.exceptions.RaySystemError):
            raise self._lost_error() from None


def require_ray() -> Any:
    """Import `ray`, or raise `InputError`."""
    try:
        import ray
    except ImportError:
        raise InputError(f"a cluster needs the package ray; install it with: {install_command('cluster')}.") from None
    return ray


def divide_cores(nodes: Sequence[dict[str, float]], count: int | None) -> tuple[dict[str, Any], int, int]:
    """Divide the resources of the machines among workers.

    Args:
        nodes: Resources of each machine.
        count: Number of workers; None: as many as fit.

    Returns:
        Resources of a worker, maximum number of workers that share a machine, and number of workers.
    """
    num_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if num_gpus:
        max_sharing = max(int(node.get("GPU", 0)) for node in nodes)
        return {"num_gpus": 1, "num_cpus": 1, "max_restarts": 0}, max_sharing, min(count or num_gpus, num_gpus)
    machines = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    if not machines:
        raise InputError("the cluster has neither a GPU nor a core for workers; start it with --num-cpus.")
    cores = min(CORES_PER_WORKER, *machines)
    if count is not None:
        cores = max(1, min(cores, sum(machines) // count))
    max_workers = sum(machine // cores for machine in machines)
    resources = {"num_cpus": cores, "num_gpus": 0, "max_restarts": 0}
    return resources, max(machines) // cores, min(count or max_workers, max_workers)


def _connect(ray: Any, address: str) -> bool:
    """Connect to a cluster; return False if the program is connected already."""
    if not re.fullmatch(ADDRESS, address):
        raise InputError(f"a cluster is auto, ray://HOST:PORT or HOST:PORT, not {address!r}; give one of these.")
    if ray.is_initialized():
        return False
    try:
        if address != "auto":
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()  # ray tries for minutes
        with _keep_signal_handler():
            _init_ray(ray, address)
    except (RuntimeError, ValueError, OSError, OverflowError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0].rstrip(".:")
        raise InputError(f"there is no Ray cluster at {address} ({reason}); start one with: ray start --head") from None
    return True


def _init_ray(ray: Any, address: str) -> None:
    """Connect to a cluster; a busy one may not answer in time, so several attempts are made."""
    for remaining in reversed(range(CONNECT_ATTEMPTS)):
        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
            return
        except ConnectionAbortedError as error:  # the traceback of the server
            if not remaining:
                raise RuntimeError(str(error).strip().splitlines()[-1]) from None


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM, which ray replaces."""
    previous: Any = signal.getsignal(signal.SIGTERM)
    yield
    if previous is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, previous)
