"""One go at a job, by whoever works: nothing that goes wrong with a video gets past it."""

import time
import warnings
from pathlib import Path

from protoformer.errors import InputError
from protoformer.files.reading import system_reason
from protoformer.inference.batch.jobs import Doing, Job, Ready, Report, Work
from protoformer.inference.batch.ledger import Ledger, stamp
from protoformer.inference.loading import UntrainedWarning


def prepared(work: Work, sharing: int) -> tuple[Doing | None, Ready]:
    """What does a video, and what there is to tell; None where it can be done by no worker."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UntrainedWarning)
        try:
            doing = work.prepare(sharing)
        except InputError as error:
            return None, Ready(refusal=str(error))
    return doing, Ready(tuple(str(each.message) for each in noted))


def attempt(doing: Doing, job: Job) -> Report:
    """Do a job that is not finished, by another worker that died before it could tell, say."""
    ledger = Ledger(job.folder)
    before = ledger.finished(job)
    if before is not None:
        return Report("done", before.frames, before.seconds)
    began = time.perf_counter()
    try:
        ledger.check_inside(job)
        with ledger.scratch(job) as scratch:
            seen = stamp(job.video)
            frames = doing(job.video, tuple(scratch / Path(name).name for name in job.outputs))
            report = Report("done", frames, round(time.perf_counter() - began, 3))
            ledger.finish(job, scratch, seen, report)
            return report
    except Exception as error:  # whatever it is, the other videos are to be done
        return Report("failed", seconds=time.perf_counter() - began, reason=_sentence(job.video, error))


def start_failure(error: Exception) -> str:
    """A sentence for an error that is no `InputError`, of a worker that could not load what it needs."""
    text = " ".join(str(error).split())
    if _is_out_of_memory(error, text):
        return "the memory ran out while a model was loaded; give fewer --workers, or close other programs."
    return (
        f"no worker could load the model ({type(error).__name__}: {text[:300]}); try one video with `protoformer flow`."
    )


def _is_out_of_memory(error: Exception, text: str) -> bool:
    return isinstance(error, MemoryError) or any(
        clause in text.lower() for clause in ("out of memory", "can't allocate memory")
    )


def _sentence(video: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, InputError):
        return text
    if isinstance(error, OSError):
        return f"the motion of {video} could not be written ({system_reason(error)}); check the disk."
    if _is_out_of_memory(error, text):
        return f"the memory ran out at {video}; give --memory, or fewer --workers."
    return f"{video} cannot be worked on ({type(error).__name__}: {text[:300]}); try it by itself."
