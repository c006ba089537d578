"""The ledger of a batch: one record per finished video, and the names of outputs."""

import contextlib
import hashlib
import itertools
import json
import math
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from protoformer.batch.jobs import SUFFIXES, Job, JobReport
from protoformer.errors import InputError
from protoformer.io.files import (
    UnfitFileError,
    check_input,
    is_outside,
    make_folder,
    name_key,
    natural_key,
    read_small_file,
    short_name,
    system_reason,
    write_atomically,
)
from protoformer.video.image_sequence import names_like

MAX_BYTES = 2**20
"""A record has under a thousand bytes besides the path of its video; a longer file was not written here."""


class DamagedRecordError(ValueError):
    """A file is not a record; the message is a clause that says why."""


@dataclass(frozen=True)
class StoredOutput:
    """An output: its name in the folder of the batch, how many files it has and how many bytes those have."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Record:
    """A finished video.

    Attributes:
        video: Its path.
        stamp: Its size in bytes and the time it was written, in nanoseconds.
        options: What the outputs depend on besides the video.
        outputs: What was written, at least one; the first one names the job.
        frames: How many were written.
        seconds: How long that took.
    """

    video: str
    stamp: tuple[int, ...]
    options: dict[str, Any]
    outputs: tuple[StoredOutput, ...]
    frames: int
    seconds: float


def read_record(path: Path, name: str) -> Record | None:
    """Read the record of the job `name`.

    Args:
        path: The file of the record.
        name: The first output of the job, relative to the folder of the batch.

    Returns:
        The record, or None where there is no file.

    Raises:
        DamagedRecordError: If the file is not a record, or not of this job.
    """
    try:
        data = read_small_file(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except UnfitFileError as error:
        raise DamagedRecordError(str(error)) from None
    except OSError as error:
        raise DamagedRecordError(f"it cannot be read ({system_reason(error)})") from None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedRecordError("it is not JSON") from None
    try:
        record = _understood(content)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise DamagedRecordError("it does not say what a record must") from None
    stem = name.removesuffix(PurePosixPath(name).suffix)
    allowed = {f"{stem}{suffix}" for suffix in SUFFIXES}
    if record.outputs[0].name != name or not {each.name for each in record.outputs} <= allowed:
        raise DamagedRecordError("it names outputs of another video")
    return record


def _understood(content: Any) -> Record:
    """A record of parsed JSON, or any of the errors that wrong types and missing keys lead to."""
    _expect(isinstance(content, dict))
    video, options, seconds = content["video"], content["options"], content["seconds"]
    _expect(isinstance(video, str) and isinstance(options, dict) and isinstance(content["outputs"], list))
    _expect(isinstance(seconds, int | float) and not isinstance(seconds, bool))
    _expect(math.isfinite(seconds) and seconds >= 0)
    outputs = tuple(_output(each) for each in content["outputs"])
    _expect(len(outputs) > 0)
    stamp = tuple(_whole(each) for each in content["stamp"])
    return Record(video, stamp, options, outputs, _count(content["frames"]), float(seconds))


def _output(content: Any) -> StoredOutput:
    _expect(isinstance(content, dict) and isinstance(content["name"], str))
    return StoredOutput(content["name"], _count(content["files"]), _count(content["bytes"]))


def _expect(right: bool) -> None:
    if not right:
        raise ValueError


def _whole(value: Any) -> int:
    _expect(isinstance(value, int) and not isinstance(value, bool))
    number: int = value
    return number


def _count(value: Any) -> int:
    number = _whole(value)
    _expect(0 <= number < 2**63)
    return number


PRIVATE, SUMMARY = ".batch", "summary.csv"
"""What a batch keeps for itself in its folder; no output has either name."""


class Ledger:
    """The records of a folder, in FOLDER/.batch/ledger, one json file a video; FOLDER/.batch/work holds what is not
    finished. A video is finished if its record names the size and time it has now, the options requested now, and
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
        from protoformer.training.checkpoint import lock_folder

        for path in (self.private, self.records, self.work, self.folder / SUMMARY):
            if path.is_symlink():
                raise InputError(
                    f"{path} is a link, and a batch writes to its own folder only; "
                    "remove the link, or choose another folder."
                )
        make_folder(self.records)
        try:
            with lock_folder(self.folder):
                self._clear()
                try:
                    yield
                finally:
                    self._clear()
        except BlockingIOError:
            raise InputError(f"another batch is writing to {self.folder}; wait for it, or choose another.") from None

    def owners(self) -> dict[str, str]:
        """The video of each job that has a record, by the name of the job."""
        videos = {}
        for folder, _, names in os.walk(self.records):
            for path in (Path(folder, name) for name in names if name.endswith(".json")):
                job = path.relative_to(self.records).as_posix().removesuffix(".json")
                record = self._read(job)
                if record is not None:
                    videos[job] = record.video
        return videos

    def finished(self, job: Job) -> JobReport | None:
        """How a job went that is finished, or None."""
        record = self._read(job.name)
        if record is None or record.video != str(job.video) or record.options != job.options:
            return None
        try:
            same = record.stamp == file_stamp(job.video)
            outputs = tuple(describe_output(job.folder, name) for name in job.outputs)
        except OSError:
            return None
        if not same or record.outputs != outputs:
            return None
        return JobReport("skipped", record.frames, record.seconds)

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
        for root, path in [
            *((self.folder, self.folder / name) for name in job.outputs),
            (self.records, self._path(job.name)),
        ]:
            if is_outside(root, path) or (root == self.folder and not is_outside(self.private, path)):
                raise InputError(f"{path.parent} leads out of {root}; remove the link, or choose another folder.")

    @contextlib.contextmanager
    def scratch(self, job: Job) -> Iterator[Path]:
        """A folder for one go at a job, which is gone with all that is in it when this ends."""
        folder = make_folder(self.work / f"{secrets.token_hex(8)}")
        (folder / "video").write_bytes(os.fsencode(job.video))
        try:
            yield make_folder(folder / "outputs")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, job: Job, scratch: Path, stamp: tuple[int, ...], report: JobReport) -> None:
        """Move the outputs of a job to their places, and then record it. stamp: of the video when the job began.

        Earlier outputs that are no longer wanted are removed where they are still as their record has them.
        """
        self.check_inside(job)
        path = self._path(job.name)
        before = self._read(job.name)
        path.unlink(missing_ok=True)  # from here on the outputs are not those of the old record
        for name in job.outputs:
            target = job.folder / name
            make_folder(target.parent)
            if target.is_dir() and (scratch / target.name).is_dir():
                target.replace(scratch / f"old-{secrets.token_hex(4)}")
            (scratch / target.name).replace(target)
        for old in before.outputs if before else ():
            if old.name not in job.outputs:
                _remove(job.folder, old)
        record = {
            "video": str(job.video),
            "stamp": stamp,
            "options": job.options,
            "outputs": [asdict(describe_output(job.folder, name)) for name in job.outputs],
            "frames": report.frames,
            "seconds": report.seconds,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
        }
        make_folder(path.parent)
        write_atomically(path, json.dumps(record, indent=1).encode())

    def _path(self, job: str) -> Path:
        return self.records / f"{job}.json"

    def _read(self, job: str) -> Record | None:
        """The record of a job, or None where there is none or none that can be used, which `note` then says."""
        path = self._path(job)
        try:
            if is_outside(self.records, path):
                raise DamagedRecordError("it lies elsewhere")
            return read_record(path, job)
        except DamagedRecordError as error:
            self._damaged[path] = str(error)
            return None

    def _clear(self) -> None:
        """Throw away what workers left that did not live to do it."""
        shutil.rmtree(self.work, ignore_errors=True)


def file_stamp(video: Path) -> tuple[int, ...]:
    """What tells a file from what it was: its size in bytes, and when it was written, in nanoseconds."""
    status = video.stat()
    return status.st_size, status.st_mtime_ns


def describe_output(folder: Path, name: str) -> StoredOutput:
    """An output as a record has it: its bytes, or those of all files in it, and how many there are."""
    path = folder / name
    sizes = [each.stat().st_size for each in path.iterdir()] if path.is_dir() else [path.stat().st_size]
    return StoredOutput(name, len(sizes), sum(sizes))


def _remove(folder: Path, output: StoredOutput) -> None:
    """Remove an output of an earlier batch, unless it was changed since: then it is somebody's work."""
    path = folder / output.name
    try:
        if describe_output(folder, output.name) != output:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"{path} is of an earlier batch and cannot be removed ({system_reason(error)}); remove it yourself."
        ) from None


_SIGNS = "*?["
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def list_jobs(
    sources: Iterable[str | os.PathLike[str]],
    folder: Path,
    suffixes: tuple[str, ...],
    options: dict[str, Any],
    ledger: Ledger | None = None,
) -> list[Job]:
    """A job for every video among files and patterns such as 'videos/**/*.mp4', each once, clip 2 before clip 10.

    suffixes: of the outputs, which stand in `folder` by the name of the video; below the folder where a pattern begins
    its folders are kept. Of two videos with one name the later one's has a number that its whole path gives; a name
    that the ledger has for another video, which is still there, is taken. Names that differ in case or in the
    composition of accents are one name, whatever the disk of the folder says, so that it can be copied to any other.
    What lies in `folder` is no input. What a pattern finds that is no regular file has a job too, which says so.
    """
    folder = folder.absolute()
    videos = {
        video: each for video, each in _find_videos(sources).items() if not video.is_relative_to(folder.resolve())
    }
    if not videos:
        raise InputError(f"all of these videos lie in {folder}, where the outputs go; choose another folder for them.")
    present = {str(video) for video in videos}
    owners = (ledger or Ledger(folder)).owners()
    names = _Names({job: video for job, video in owners.items() if video in present or os.path.exists(video)})  # noqa: PTH110 - Path.exists() raises at a path too long to be one
    jobs = []
    for video, (wanted, unread) in videos.items():
        for name in _candidates(wanted, video):
            outputs = tuple(f"{name}{suffix}" for suffix in suffixes)
            if names.take(outputs, str(video)):
                jobs.append(Job(video, folder, outputs, options, unread))
                break
    return jobs


class _Names:
    """The outputs of a folder and the videos that they belong to."""

    def __init__(self, owners: dict[str, str]) -> None:
        """owners: the path of the video of each recorded job, by the name of the job."""
        self._owners = owners
        self._taken: dict[str, str] = {}
        self._folders: set[str] = set()
        for job, video in owners.items():
            self._add((job,), video)

    def take(self, outputs: tuple[str, ...], video: str) -> bool:
        """Reserve outputs for a video; False where they would meet those of another."""
        keys = _keys(outputs)
        above = {folder for key in keys for folder in _above(key)}
        free = all(self._taken.get(key, video) == video for key in keys)
        if self._owners.get(outputs[0]) != video and not (free and keys.isdisjoint(self._folders)):
            return False
        if not above.isdisjoint(self._taken):
            return False
        self._add(outputs, video)
        return True

    def _add(self, outputs: tuple[str, ...], video: str) -> None:
        for key in _keys(outputs):
            self._taken[key] = video
            self._folders.update(_above(key))


def _keys(outputs: tuple[str, ...]) -> set[str]:
    """Of the outputs of a job and of its record, which stands by the same name among records."""
    return {name_key(name) for name in (*outputs, f"{outputs[0]}.json")}


def _above(key: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(key).parents][:-1]


def _candidates(name: str, video: Path) -> Iterator[str]:
    """The name that a video would like, and others that its whole path decides, the later ones outside all folders."""
    path = os.fsencode(video)
    yield name
    yield f"{name}-{hashlib.sha256(path).hexdigest()[:8]}"
    for number in itertools.count():
        yield f"{PurePosixPath(name).name}-{hashlib.sha256(path + b'#%d' % number).hexdigest()[:8]}"


def _find_videos(sources: Iterable[str | os.PathLike[str]]) -> dict[Path, tuple[str, str]]:
    """Each video by its real path: the name that it would like, and why it is not read if it is not."""
    videos: dict[Path, tuple[str, str]] = {}
    for source in [os.fspath(each) for each in sources]:
        if any(sign in source for sign in _SIGNS) and not os.path.exists(source):  # noqa: PTH110
            files = [path for path in names_like(source) if not os.path.isdir(path)]  # noqa: PTH112
            if not files:
                raise InputError(f"no file matches {source}; check the folder and the pattern.")
            base = _beginning(source)
        else:
            path = check_input(source)
            files, base = [source], path.parent
        for file in sorted(files, key=natural_key):
            unread = _unread(file)
            video = Path(file).absolute() if unread else Path(file).resolve()
            videos.setdefault(video, (_name(Path(file).relative_to(base)), unread))
    if not videos:
        raise InputError("there is no video to work on; give files or a pattern such as 'videos/*.mp4'.")
    return videos


def _unread(file: str) -> str:
    """Why a file is not opened, which could wait for a writer for ever; empty for a regular file."""
    try:
        kind = stat.S_IFMT(os.stat(file).st_mode)  # noqa: PTH116
    except FileNotFoundError:
        return f"{file} was not read, since it is a link to a file that does not exist; restore the file."
    except OSError as error:
        return f"{file} was not read, since the system refuses it ({system_reason(error)}); check the path."
    if kind == stat.S_IFREG:
        return ""
    what = _KINDS.get(kind, "no regular file")
    return f"{file} was not read, since it is {what}; save its content to a file, or narrow the pattern."


def _name(path: Path) -> str:
    """The name of a video's outputs, without a suffix: inside their folder and short enough for a file system."""
    parts = [part for part in (*path.parent.parts, path.stem) if part not in ("", ".", "..")]
    if len(parts) > 1 and name_key(parts[0]) == PRIVATE:
        parts[0] = PRIVATE.lstrip(".")
    return "/".join(map(short_name, parts)) or "video"


def _beginning(pattern: str) -> Path:
    """The folders of a pattern before the first that is one."""
    parts = Path(pattern).parts
    signs = [index for index, part in enumerate(parts) if any(sign in part for sign in _SIGNS)]
    return Path(*parts[: signs[0]])
