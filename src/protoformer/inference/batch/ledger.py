"""What a folder of outputs knows of itself: a record for every finished video, written after its outputs are whole."""

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.files import write_atomically
from protoformer.files.folders import made_folder
from protoformer.files.reading import system_reason
from protoformer.inference.batch.jobs import Job, Report


class Ledger:
    """The records of a folder, in FOLDER/.batch/ledger, one json file a video; FOLDER/.batch/work holds what is not
    finished. A video is finished if its record names the size and time it has now, the options asked for now, and
    outputs that lie there in the size they had.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / ".batch" / "ledger"
        self.work = folder / ".batch" / "work"

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """The folder, made if need be and held against other batches; nothing unfinished is left when this ends."""
        from protoformer.training.checkpoints import held

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

    def owners(self) -> dict[str, Path]:
        """The video of each job that has a record, by the name of the job."""
        found = (self._read(path) for path in self.records.rglob("*.json"))
        return {record["outputs"][0]["name"]: Path(record["video"]) for record in found if record}

    def finished(self, job: Job) -> Report | None:
        """How a job went that is finished, or None."""
        record = self._read(self._path(job))
        if record is None or record["video"] != str(job.video) or record["options"] != job.options:
            return None
        try:
            same = record["stamp"] == stamp(job.video)
            outputs = [described(job.folder, name) for name in job.outputs]
        except OSError:
            return None
        if not same or record["outputs"] != outputs:
            return None
        return Report("skipped", record["frames"], record["seconds"])

    @contextlib.contextmanager
    def scratch(self, job: Job) -> Iterator[Path]:
        """A folder for one go at a job, which is gone with all that is in it when this ends."""
        folder = made_folder(self.work / f"{secrets.token_hex(8)}")
        (folder / "video").write_text(str(job.video), encoding="utf-8")
        try:
            yield made_folder(folder / "outputs")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, job: Job, scratch: Path, seen: list[int], report: Report) -> None:
        """Move the outputs of a job to their places, and then record it. seen: the stamp of the video when it began."""
        path = self._path(job)
        before = self._read(path)
        path.unlink(missing_ok=True)  # from here on the outputs are not those of the old record
        for name in job.outputs:
            target = job.folder / name
            made_folder(target.parent)
            if target.is_dir() and (scratch / target.name).is_dir():
                target.replace(scratch / f"old-{secrets.token_hex(4)}")
            (scratch / target.name).replace(target)
        for old in before["outputs"] if before else ():
            if old["name"] not in job.outputs:
                _remove(job.folder / old["name"])
        record = {
            "video": str(job.video),
            "stamp": seen,
            "options": job.options,
            "outputs": [described(job.folder, name) for name in job.outputs],
            "frames": report.frames,
            "seconds": report.seconds,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
        }
        made_folder(path.parent)
        write_atomically(path, json.dumps(record, indent=1).encode())

    def _path(self, job: Job) -> Path:
        return self.records / f"{job.name}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        """A record, or None where there is none that can be read."""
        try:
            record = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        whole = isinstance(record, dict) and {"video", "stamp", "options", "outputs", "frames"} <= record.keys()
        return record if whole else None

    def _clear(self) -> None:
        """Throw away what workers left that did not live to do it."""
        shutil.rmtree(self.work, ignore_errors=True)


def stamp(video: Path) -> list[int]:
    """What tells a file from what it was: its size in bytes, and when it was written, in nanoseconds."""
    status = video.stat()
    return [status.st_size, status.st_mtime_ns]


def described(folder: Path, name: str) -> dict[str, Any]:
    """An output as a record has it: its bytes, or those of all files in it, and how many there are."""
    place = folder / name
    sizes = [each.stat().st_size for each in place.iterdir()] if place.is_dir() else [place.stat().st_size]
    return {"name": name, "files": len(sizes), "bytes": sum(sizes)}


def _remove(place: Path) -> None:
    try:
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{place} is of an earlier batch and cannot be removed ({system_reason(error)}); remove it yourself."
        ) from None
