"""Which videos a batch is of, and a name of its own for what comes of each."""

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from protoformer.errors import InputError
from protoformer.files import checked_input
from protoformer.files.folders import natural_key
from protoformer.files.movie_images import names_like
from protoformer.files.names import name_key, short_name
from protoformer.files.reading import system_reason
from protoformer.inference.batch.jobs import Job
from protoformer.inference.batch.ledger import PRIVATE, Ledger

_SIGNS = "*?["
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def video_jobs(
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
    found = {video: each for video, each in _found(sources).items() if not video.is_relative_to(folder.resolve())}
    if not found:
        raise InputError(f"all of these videos lie in {folder}, where the outputs go; choose another folder for them.")
    present = {str(video) for video in found}
    owners = (ledger or Ledger(folder)).owners()
    names = _Names({job: video for job, video in owners.items() if video in present or os.path.exists(video)})  # noqa: PTH110 - Path.exists() raises at a path too long to be one
    jobs = []
    for video, (wanted, unread) in found.items():
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


def _found(sources: Iterable[str | os.PathLike[str]]) -> dict[Path, tuple[str, str]]:
    """Each video by its real path: the name that it would like, and why it is not read if it is not."""
    found: dict[Path, tuple[str, str]] = {}
    for source in [os.fspath(each) for each in sources]:
        if any(sign in source for sign in _SIGNS) and not os.path.exists(source):  # noqa: PTH110
            files = [path for path in names_like(source) if not os.path.isdir(path)]  # noqa: PTH112
            if not files:
                raise InputError(f"no file matches {source}; check the folder and the pattern.")
            base = _beginning(source)
        else:
            path = checked_input(source)
            files, base = [source], path.parent
        for file in sorted(files, key=natural_key):
            unread = _unread(file)
            video = Path(file).absolute() if unread else Path(file).resolve()
            found.setdefault(video, (_name(Path(file).relative_to(base)), unread))
    if not found:
        raise InputError("there is no video to work on; give files or a pattern such as 'videos/*.mp4'.")
    return found


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
    signs = [place for place, part in enumerate(parts) if any(sign in part for sign in _SIGNS)]
    return Path(*parts[: signs[0]])
