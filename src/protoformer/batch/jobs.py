"""Jobs of a batch, their reports, and the function that a worker runs for each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["waiting", "done", "skipped", "failed"]
"""Status of a video: not processed yet, processed now, finished by an earlier batch, or failed."""
SUFFIXES = VIDEO, FLOWS, NPY, MASKS, CSV, PAGE = (".mp4", ".flo", ".npy", ".png", ".csv", ".html")
"""Suffixes of outputs: a video, folders of .flo, .npy and .png files, a table and a page. A record names no others."""


@dataclass(frozen=True)
class Job:
    """A video to process.

    Attributes:
        video: Absolute path of the video, the same on all machines.
        folder: Absolute path of the folder of the batch, the same on all machines.
        outputs: Files or folders to write, relative to `folder`; the first one names the job.
        options: Options that the outputs depend on, as JSON values.
        unread: Error message if the video cannot be processed, for example because it is a pipe.
    """

    video: Path
    folder: Path
    outputs: tuple[str, ...]
    options: dict[str, Any] = field(hash=False)
    unread: str = ""

    @property
    def name(self) -> str:
        """Name of the first output, which is unique in the folder."""
        return self.outputs[0]


@dataclass(frozen=True)
class JobReport:
    """Outcome of a job.

    Attributes:
        status: Status of the video.
        frames: Number of frames written.
        seconds: Run time.
        reason: Error message of a failed job.
    """

    status: Status
    frames: int = 0
    seconds: float = 0.0
    reason: str = ""


JobFunction = Callable[[Job, tuple[Path, ...]], int]
"""Processes a video: receives its job and a temporary path for each output, and returns the number of frames."""


class JobSetup(Protocol):
    """Prepares a worker."""

    def prepare(self, sharing: int) -> JobFunction:
        """Load the model; `sharing` is the number of workers that share the memory of the machine."""


@dataclass(frozen=True)
class WorkerReady:
    """Result of preparing a worker.

    Attributes:
        notes: Warnings for the user.
        refusal: Error message if no worker can be prepared.
    """

    notes: tuple[str, ...] = ()
    refusal: str = ""
