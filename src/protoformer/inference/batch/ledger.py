"""What a folder of outputs knows of itself: a record for every finished video, written after its outputs are whole."""

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from protoformer.errors import InputError
from protoformer.files import write_atomically
from protoformer.files.folders import made_folder
from protoformer.files.names import leads_out
from protoformer.files.reading import system_reason
from protoformer.inference.batch.jobs import Job, Report
from protoformer.inference.batch.records import DamagedRecordError, Record, StoredOutput, read_record

PRIVATE, SUMMARY = ".batch", "summary.csv"
"""What a batch keeps for itself in its folder; no output has either name."""


class Ledger:
    """The records of a folder, in FOLDER/.batch/ledger, one json file a video; FOLDER/.batch/work holds what is not
    finished. A video is finished if its record names the size and time it has now, the options asked for now, and
    outputs that lie there in the size they had.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private = folder / PRIVATE
        self.records = self.private / "ledger"
        self.work = self.private / "work"
        self._damaged: dict[Path, str] = {}

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """The folder, made if need be and held against other batches; nothing unfinished is left when this ends."""
        from protoformer.training.checkpoints import held

        for path in (self.private, self.records, self.work, self.folder / SUMMARY):
            if path.is_symlink():
                raise InputError(
                    f"{path} is a link, and a batch writes to its own folder only; "
                    "remove the link, or choose another folder."
                )
        made_folder(self.records)
        try:
            with held(self.folder):
                self._clear()
                try:
                    yield
                finally:
                    self._clear()
        except BlockingIOError:
            raise InputError(f"another batch is writing to {self.folder}; wait for it, or choose another.") from None

    def owners(self) -> dict[str, str]:
        """The video of each job that has a record, by the name of the job."""
        found = {}
        for folder, _, names in os.walk(self.records):
            for place in (Path(folder, name) for name in names if name.endswith(".json")):
                job = place.relative_to(self.records).as_posix().removesuffix(".json")
                record = self._read(job)
                if record is not None:
                    found[job] = record.video
        return found

    def finished(self, job: Job) -> Report | None:
        """How a job went that is finished, or None."""
        record = self._read(job.name)
        if record is None or record.video != str(job.video) or record.options != job.options:
            return None
        try:
            same = record.stamp == stamp(job.video)
            outputs = tuple(described(job.folder, name) for name in job.outputs)
        except OSError:
            return None
        if not same or record.outputs != outputs:
            return None
        return Report("skipped", record.frames, record.seconds)

    def note(self) -> str:
        """One sentence on the files among the records that are none and were passed over, or an empty text."""
        if not self._damaged:
            return ""
        path, why = min(self._damaged.items())
        advice = "a video without a record is done again."
        if len(self._damaged) == 1:
            return f"the record {path} is ignored, since {why}; {advice}"
        name = path.relative_to(self.records).as_posix()
        return f"{len(self._damaged)} records in {self.records} are ignored, such as {name}, since {why}; {advice}"

    def check_inside(self, job: Job) -> None:
        """Raise `InputError` where an output or the record of a job would be written outside its folder.

        A folder of outputs may come from somebody else, with links in it that lead anywhere.
        """
        for root, place in [
            *((self.folder, self.folder / name) for name in job.outputs),
            (self.records, self._path(job.name)),
        ]:
            if leads_out(root, place) or (root == self.folder and not leads_out(self.private, place)):
                raise InputError(f"{place.parent} leads out of {root}; remove the link, or choose another folder.")

    @contextlib.contextmanager
    def scratch(self, job: Job) -> Iterator[Path]:
        """A folder for one go at a job, which is gone with all that is in it when this ends."""
        folder = made_folder(self.work / f"{secrets.token_hex(8)}")
        (folder / "video").write_bytes(os.fsencode(job.video))
        try:
            yield made_folder(folder / "outputs")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, job: Job, scratch: Path, seen: tuple[int, ...], report: Report) -> None:
        """Move the outputs of a job to their places, and then record it. seen: the stamp of the video when it began.

        Earlier outputs that are no longer wanted are removed where they are still as their record has them.
        """
        self.check_inside(job)
        path = self._path(job.name)
        before = self._read(job.name)
        path.unlink(missing_ok=True)  # from here on the outputs are not those of the old record
        for name in job.outputs:
            target = job.folder / name
            made_folder(target.parent)
            if target.is_dir() and (scratch / target.name).is_dir():
                target.replace(scratch / f"old-{secrets.token_hex(4)}")
            (scratch / target.name).replace(target)
        for old in before.outputs if before else ():
            if old.name not in job.outputs:
                _remove(job.folder, old)
        record = {
            "video": str(job.video),
            "stamp": seen,
            "options": job.options,
            "outputs": [asdict(described(job.folder, name)) for name in job.outputs],
            "frames": report.frames,
            "seconds": report.seconds,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
        }
        made_folder(path.parent)
        write_atomically(path, json.dumps(record, indent=1).encode())

    def _path(self, job: str) -> Path:
        return self.records / f"{job}.json"

    def _read(self, job: str) -> Record | None:
        """The record of a job, or None where there is none or none that can be used, which `note` then says."""
        path = self._path(job)
        try:
            if leads_out(self.records, path):
                raise DamagedRecordError("it lies elsewhere")
            return read_record(path, job)
        except DamagedRecordError as error:
            self._damaged[path] = str(error)
            return None

    def _clear(self) -> None:
        """Throw away what workers left that did not live to do it."""
        shutil.rmtree(self.work, ignore_errors=True)


def stamp(video: Path) -> tuple[int, ...]:
    """What tells a file from what it was: its size in bytes, and when it was written, in nanoseconds."""
    status = video.stat()
    return status.st_size, status.st_mtime_ns


def described(folder: Path, name: str) -> StoredOutput:
    """An output as a record has it: its bytes, or those of all files in it, and how many there are."""
    place = folder / name
    sizes = [each.stat().st_size for each in place.iterdir()] if place.is_dir() else [place.stat().st_size]
    return StoredOutput(name, len(sizes), sum(sizes))


def _remove(folder: Path, output: StoredOutput) -> None:
    """Remove an output of an earlier batch, unless it was changed since: then it is somebody's work."""
    place = folder / output.name
    try:
        if described(folder, output.name) != output:
            return
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"{place} is of an earlier batch and cannot be removed ({system_reason(error)}); remove it yourself."
        ) from None
