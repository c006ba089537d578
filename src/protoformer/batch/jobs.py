"""Jobs of a batch, their reports, and the function that a worker runs for each."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from protoformer.errors import InputError, UntrainedWarning
from protoformer.io.files import system_reason
from protoformer.io.memory import is_out_of_memory

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


class JobRunner:
    """Runs jobs inside a worker, which is a local process or a Ray actor."""

    def __init__(self) -> None:
        self._function: JobFunction | None = None

    def prepare(self, setup: JobSetup, sharing: int) -> WorkerReady:
        """Load the model; errors become a refusal, because other workers would fail in the same way."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UntrainedWarning)
            try:
                self._function = setup.prepare(sharing)
            except Exception as error:
                return WorkerReady(refusal=str(error) if isinstance(error, InputError) else _start_failure(error))
        return WorkerReady(tuple(str(each.message) for each in caught))

    def run(self, job: Job) -> JobReport:
        """Run a job after `prepare`; see `run_job`."""
        assert self._function is not None
        return run_job(self._function, job)


def run_job(function: JobFunction, job: Job) -> JobReport:
    """Run a job, unless another worker finished it and crashed before it reported that; errors become a report."""
    from protoformer.batch.ledger import Ledger, file_stamp

    ledger = Ledger(job.folder)
    finished = ledger.finished(job)
    if finished is not None:
        return JobReport("done", finished.frames, finished.seconds)
    start = time.perf_counter()
    try:
        ledger.check_inside(job)
        with ledger.scratch(job) as scratch:
            stamp = file_stamp(job.video)
            frames = function(job, tuple(scratch / Path(name).name for name in job.outputs))
            report = JobReport("done", frames, round(time.perf_counter() - start, 3))
            ledger.finish(job, scratch, stamp, report)
            return report
    except Exception as error:  # any error of one video must not stop the others
        return JobReport("failed", seconds=time.perf_counter() - start, reason=_describe_error(job.video, error))


def _start_failure(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory while loading a model; give fewer --workers, or close other programs."
    text = " ".join(str(error).split())[:300]
    return f"no worker could load the model ({type(error).__name__}: {text}); try one video by itself."


def _describe_error(video: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text
    if isinstance(error, OSError):
        return f"the result of {video} could not be written ({system_reason(error)}); check the disk."
    if is_out_of_memory(error):
        return f"out of memory at {video}; give fewer --workers, or smaller videos."
    return f"{video} cannot be processed ({type(error).__name__}: {text[:300]}); try it by itself."
