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
    leads_out,
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
"""Maximum size of a record, which has under a thousand bytes besides the path of its video."""


class DamagedRecordError(ValueError):
    """A file is not a record; the message is a clause with the reason."""


@dataclass(frozen=True)
class StoredOutput:
    """Name, number of files and total size in bytes of an output."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Record:
    """A finished video.

    Attributes:
        video: Its path.
        stamp: Its size in bytes and modification time in nanoseconds.
        options: Options that the outputs depend on.
        outputs: Outputs, at least one; the first one names the job.
        frames: Number of frames written.
        seconds: Run time.
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
        name: Name of the job.

    Returns:
        The record, or None if there is no file.

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
        record = _parse_record(content)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise DamagedRecordError("its content is not that of a record") from None
    stem = name.removesuffix(PurePosixPath(name).suffix)
    allowed = {f"{stem}{suffix}" for suffix in SUFFIXES}
    if record.outputs[0].name != name or not {each.name for each in record.outputs} <= allowed:
        raise DamagedRecordError("it names outputs of another video")
    return record


def _parse_record(content: Any) -> Record:
    """Convert parsed JSON to a record, or raise one of the errors that wrong types and missing keys cause."""
    _expect(isinstance(content, dict))
    video, options, seconds = content["video"], content["options"], content["seconds"]
    _expect(isinstance(video, str) and isinstance(options, dict) and isinstance(content["outputs"], list))
    _expect(isinstance(seconds, int | float) and not isinstance(seconds, bool))
    _expect(math.isfinite(seconds) and seconds >= 0)
    outputs = tuple(_parse_output(each) for each in content["outputs"])
    _expect(len(outputs) > 0)
    stamp = tuple(_parse_int(each) for each in content["stamp"])
    return Record(video, stamp, options, outputs, _parse_count(content["frames"]), float(seconds))


def _parse_output(content: Any) -> StoredOutput:
    _expect(isinstance(content, dict) and isinstance(content["name"], str))
    return StoredOutput(content["name"], _parse_count(content["files"]), _parse_count(content["bytes"]))


def _expect(condition: bool) -> None:
    if not condition:
        raise ValueError


def _parse_int(value: Any) -> int:
    _expect(isinstance(value, int) and not isinstance(value, bool))
    number: int = value
    return number


def _parse_count(value: Any) -> int:
    number = _parse_int(value)
    _expect(0 <= number < 2**63)
    return number


PRIVATE, SUMMARY = ".batch", "summary.csv"
"""Names that a batch reserves in its folder."""


class Ledger:
    """Records of the finished videos of a folder.

    There is one JSON file per video in FOLDER/.batch/ledger, and not one for all, because workers on several machines
    write them. FOLDER/.batch/work holds temporary outputs. A video is finished if its record has the current size and
    modification time of the video, the requested options, and outputs that exist with their recorded sizes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private = folder / PRIVATE
        self.records = self.private / "ledger"
        self.work = self.private / "work"
        self._damaged: dict[Path, str] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it against other batches; temporary outputs are removed at both ends."""
        from protoformer.training.checkpoint import held

        for path in (self.private, self.records, self.work, self.folder / SUMMARY):
            if path.is_symlink():
                raise InputError(
                    f"{path} is a link, and a batch writes to its own folder only; "
                    "remove the link, or choose another folder."
                )
        make_folder(self.records)
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
        """Return the video of each job that has a record, by the name of the job."""
        videos = {}
        for folder, _, names in os.walk(self.records):
            for path in (Path(folder, name) for name in names if name.endswith(".json")):
                job = path.relative_to(self.records).as_posix().removesuffix(".json")
                record = self._read(job)
                if record is not None:
                    videos[job] = record.video
        return videos

    def finished(self, job: Job) -> JobReport | None:
        """Return the report of a finished job, or None."""
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
        """Return a note about damaged records that were ignored, or an empty text."""
        if not self._damaged:
            return ""
        path, reason = min(self._damaged.items())
        advice = "a video without a record is processed again."
        if len(self._damaged) == 1:
            return f"the record {path} is ignored, because {reason}; {advice}"
        name = path.relative_to(self.records).as_posix()
        return f"{len(self._damaged)} records in {self.records} are ignored, such as {name}, because {reason}; {advice}"

    def check_inside(self, job: Job) -> None:
        """Raise `InputError` if an output or the record of a job would be written outside its folder.

        A folder of outputs may be from another user and contain links.
        """
        for root, path in [
            *((self.folder, self.folder / name) for name in job.outputs),
            (self.records, self._path(job.name)),
        ]:
            if leads_out(root, path) or (root == self.folder and not leads_out(self.private, path)):
                raise InputError(f"{path.parent} leads out of {root}; remove the link, or choose another folder.")

    @contextlib.contextmanager
    def scratch(self, job: Job) -> Iterator[Path]:
        """Create a temporary folder for the outputs of a job, which is deleted at the end."""
        folder = make_folder(self.work / f"{secrets.token_hex(8)}")
        (folder / "video").write_bytes(os.fsencode(job.video))
        try:
            yield make_folder(folder / "outputs")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, job: Job, scratch: Path, stamp: tuple[int, ...], report: JobReport) -> None:
        """Move the outputs of a job to their final paths, and then write its record.

        Outputs of an earlier run that are no longer requested are removed if they are unchanged.

        Args:
            job: The job.
            scratch: The temporary folder.
            stamp: Stamp of the video when the job started.
            report: Report of the job.
        """
        self.check_inside(job)
        path = self._path(job.name)
        previous = self._read(job.name)
        path.unlink(missing_ok=True)  # the outputs are about to differ from the old record
        for name in job.outputs:
            target = job.folder / name
            make_folder(target.parent)
            if target.is_dir() and (scratch / target.name).is_dir():
                target.replace(scratch / f"old-{secrets.token_hex(4)}")
            (scratch / target.name).replace(target)
        for old in previous.outputs if previous else ():
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
        """Read the record of a job; None if there is none, or a damaged one, which `note` then reports."""
        path = self._path(job)
        try:
            if leads_out(self.records, path):
                raise DamagedRecordError("it is in another folder")
            return read_record(path, job)
        except DamagedRecordError as error:
            self._damaged[path] = str(error)
            return None

    def _clear(self) -> None:
        """Remove the temporary outputs of crashed workers."""
        shutil.rmtree(self.work, ignore_errors=True)


def file_stamp(video: Path) -> tuple[int, ...]:
    """Return the size of a file in bytes and its modification time in nanoseconds."""
    status = video.stat()
    return status.st_size, status.st_mtime_ns


def describe_output(folder: Path, name: str) -> StoredOutput:
    """Describe an output, a file or a folder of files, for its record."""
    path = folder / name
    sizes = [each.stat().st_size for each in path.iterdir()] if path.is_dir() else [path.stat().st_size]
    return StoredOutput(name, len(sizes), sum(sizes))


def _remove(folder: Path, output: StoredOutput) -> None:
    """Remove an output of an earlier batch, unless it was changed since."""
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
            f"{path} was written by an earlier batch and cannot be removed ({system_reason(error)}); remove it first."
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
    """List a job for every video among files and patterns such as 'videos/**/*.mp4'.

    Each video has one job, in natural order (clip2 before clip10). Outputs are named after the video, in the folders
    that a pattern matched. If two videos have the same name, the later one gets a hash of its path as suffix; names of
    other existing videos in the ledger are not reused. Names that differ only in case or in the composition of
    accents count as equal, so that the folder can be copied to any file system. Files in `folder` are not inputs. A
    match that is not a regular file has a job that reports it.

    Args:
        sources: Files and patterns.
        folder: Folder of the batch.
        suffixes: Suffixes of the outputs.
        options: Options that the outputs depend on, as JSON values.
        ledger: Ledger of the folder.
    """
    folder = folder.absolute()
    videos = {
        video: each for video, each in _find_videos(sources).items() if not video.is_relative_to(folder.resolve())
    }
    if not videos:
        raise InputError(f"all of these videos are in {folder}, the output folder; choose another folder for them.")
    present = {str(video) for video in videos}
    owners = (ledger or Ledger(folder)).owners()
    names = _Names({job: video for job, video in owners.items() if video in present or os.path.exists(video)})  # noqa: PTH110 - Path.exists() raises at a path too long to be one
    jobs = []
    for video, (default_name, unread) in videos.items():
        for name in _candidates(default_name, video):
            outputs = tuple(f"{name}{suffix}" for suffix in suffixes)
            if names.take(outputs, str(video)):
                jobs.append(Job(video, folder, outputs, options, unread))
                break
    return jobs


class _Names:
    """Output names of a folder, and the videos to which they belong."""

    def __init__(self, owners: dict[str, str]) -> None:
        """Start with the videos of recorded jobs, by the names of the jobs."""
        self._owners = owners
        self._taken: dict[str, str] = {}
        self._folders: set[str] = set()
        for job, video in owners.items():
            self._add((job,), video)

    def take(self, outputs: tuple[str, ...], video: str) -> bool:
        """Reserve outputs for a video; return False if they collide with those of another."""
        keys = _keys(outputs)
        parents = {folder for key in keys for folder in _parents(key)}
        free = all(self._taken.get(key, video) == video for key in keys)
        if self._owners.get(outputs[0]) != video and not (free and keys.isdisjoint(self._folders)):
            return False
        if not parents.isdisjoint(self._taken):
            return False
        self._add(outputs, video)
        return True

    def _add(self, outputs: tuple[str, ...], video: str) -> None:
        for key in _keys(outputs):
            self._taken[key] = video
            self._folders.update(_parents(key))


def _keys(outputs: tuple[str, ...]) -> set[str]:
    """Return the keys of the outputs of a job and of its record, whose name is derived from the first output."""
    return {name_key(name) for name in (*outputs, f"{outputs[0]}.json")}


def _parents(key: str) -> list[str]:
    return [str(folder) for folder in PurePosixPath(key).parents][:-1]


def _candidates(name: str, video: Path) -> Iterator[str]:
    """Yield the default name of a video, and then names with hashes of its path, the later ones without folders."""
    path = os.fsencode(video)
    yield name
    yield f"{name}-{hashlib.sha256(path).hexdigest()[:8]}"
    for number in itertools.count():
        yield f"{PurePosixPath(name).name}-{hashlib.sha256(path + b'#%d' % number).hexdigest()[:8]}"


def _find_videos(sources: Iterable[str | os.PathLike[str]]) -> dict[Path, tuple[str, str]]:
    """Find the videos: the default name of each, and the reason if it cannot be read, by its real path."""
    videos: dict[Path, tuple[str, str]] = {}
    for source in [os.fspath(each) for each in sources]:
        if any(sign in source for sign in _SIGNS) and not os.path.exists(source):  # noqa: PTH110
            files = [path for path in names_like(source) if not os.path.isdir(path)]  # noqa: PTH112
            if not files:
                raise InputError(f"no file matches {source}; check the folder and the pattern.")
            base = _literal_base(source)
        else:
            path = check_input(source)
            files, base = [source], path.parent
        for file in sorted(files, key=natural_key):
            unread = _unread_reason(file)
            video = Path(file).absolute() if unread else Path(file).resolve()
            videos.setdefault(video, (_default_name(Path(file).relative_to(base)), unread))
    if not videos:
        raise InputError("there is no video to process; give files or a pattern such as 'videos/*.mp4'.")
    return videos


def _unread_reason(file: str) -> str:
    """Return why a file is not opened, since reading a pipe could block forever; empty for a regular file."""
    try:
        kind = stat.S_IFMT(os.stat(file).st_mode)  # noqa: PTH116
    except FileNotFoundError:
        return f"{file} was not read, because it is a link to a file that does not exist; restore the file."
    except OSError as error:
        return f"{file} was not read, because the system refuses it ({system_reason(error)}); check the path."
    if kind == stat.S_IFREG:
        return ""
    kind_name = _KINDS.get(kind, "not a regular file")
    return f"{file} was not read, because it is {kind_name}; save its content to a file, or narrow the pattern."


def _default_name(path: Path) -> str:
    """Return the name of a video's outputs without a suffix: inside the folder, and short enough for file systems."""
    parts = [part for part in (*path.parent.parts, path.stem) if part not in ("", ".", "..")]
    if len(parts) > 1 and name_key(parts[0]) == PRIVATE:
        parts[0] = PRIVATE.lstrip(".")
    return "/".join(map(short_name, parts)) or "video"


def _literal_base(pattern: str) -> Path:
    """Return the folders of a pattern before the first with a wildcard."""
    parts = Path(pattern).parts
    signs = [index for index, part in enumerate(parts) if any(sign in part for sign in _SIGNS)]
    return Path(*parts[: signs[0]])
