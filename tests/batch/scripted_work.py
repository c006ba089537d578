"""Work for the workers of a batch that crashes, hangs or succeeds; it is imported in their processes."""

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from protoformer.batch.jobs import Job

with suppress(ImportError):  # on Windows
    import resource


class Scripted:
    """Work that does with a video what its name says."""

    def prepare(self, sharing: int) -> Callable[[Job, tuple[Path, ...]], int]:
        return _do


def _do(job: Job, targets: tuple[Path, ...]) -> int:
    video = job.video
    action = video.stem.split("-")[0]
    if action == "abort":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core is dumped, which takes long
        os.abort()
    if action == "exit":
        os._exit(3)
    if action == "loop":
        while True:
            pass
    if action == "block":
        video.with_suffix(".blocked").touch()
        _block_in_c()
    targets[0].write_bytes(video.read_bytes())
    return 1


def _block_in_c() -> None:
    """Wait in a system call that no signal but the last ends, as a decoder of a broken disk may."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a signal would end the sleep
    ctypes.PyDLL(None).sleep(600)  # holds the lock of the interpreter


class Broken:
    """Work that no worker can do."""

    def prepare(self, sharing: int) -> Callable[[Job, tuple[Path, ...]], int]:
        raise RuntimeError("no driver")
