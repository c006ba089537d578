"""Job, report and worker types of a batch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["waiting", "done", "skipped", "failed"]
"""Of a video: its turn is to come; done now; finished before; it cannot be done."""
SUFFIXES = VIDEO, FLOWS = (".mp4", ".flo")
"""How the names of outputs end: the video of the motion, and the folder of .flo files. A record names no others."""


@dataclass(frozen=True)
class Job:
    """One video, and what is to come of it.

    video, folder: absolute paths of the video and of the folder of the batch, the same on all machines. outputs: what
    will lie in the folder, files or folders of files, relative to it; the first one names the job. options: what the
    outputs depend on besides the video, as json holds it. unread: a sentence where the video is not even opened, since
    it is a pipe, say.
    """

    video: Path
    folder: Path
    outputs: tuple[str, ...]
    options: dict[str, Any] = field(hash=False)
    unread: str = ""

    @property
    def name(self) -> str:
        """That of its first output, which no other job of the folder has."""
        return self.outputs[0]


@dataclass(frozen=True)
class JobReport:
    """How a job went. frames: how many were written. seconds: that it took. reason: a sentence, where it failed."""

    status: Status
    frames: int = 0
    seconds: float = 0.0
    reason: str = ""


JobFunction = Callable[[Path, tuple[Path, ...]], int]
"""Writes what comes of a video: (video, where each output goes for now) to the number of frames written."""


@dataclass(frozen=True)
class WorkerReady:
    """A worker that has started. notes: what a person should know, once. refusal: why no worker can ever start."""

    notes: tuple[str, ...] = ()
    refusal: str = ""


class JobSetup(Protocol):
    """What is done with every video."""

    def prepare(self, sharing: int) -> JobFunction:
        """Load what is needed, once a worker; `sharing` workers have this machine's memory among them."""
