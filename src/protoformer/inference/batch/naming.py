"""Which videos a batch is of, and a name of its own for what comes of each."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.files import checked_input
from protoformer.files.folders import natural_key
from protoformer.files.movie_images import names_like
from protoformer.inference.batch.jobs import Job
from protoformer.inference.batch.ledger import Ledger

_SIGNS = "*?["


def video_jobs(
    sources: Iterable[str | os.PathLike[str]], folder: Path, suffixes: tuple[str, ...], options: dict[str, Any]
) -> list[Job]:
    """A job for every video among files and patterns such as 'videos/**/*.mp4', each once, clip 2 before clip 10.

    suffixes: of the outputs, which stand in `folder` by the name of the video; below the folder where a pattern begins
    its folders are kept. Of two videos with one name the later one's has a number that its whole path gives; a name
    that the ledger has for another video, which is still there, is taken. What lies in `folder` is no input.
    """
    folder = folder.absolute()
    names = {video: name for video, name in _named(sources).items() if not video.is_relative_to(folder.resolve())}
    if not names:
        raise InputError(f"all of these videos lie in {folder}, where the outputs go; choose another folder for them.")
    taken = {name: video for name, video in Ledger(folder).owners().items() if video in names or video.exists()}
    jobs = []
    for video, name in names.items():
        number = hashlib.sha256(str(video).encode()).hexdigest()
        for each in (name, f"{name}-{number[:8]}", f"{name}-{number}"):
            if taken.setdefault(f"{each}{suffixes[0]}", video) == video:
                jobs.append(Job(video, folder, tuple(f"{each}{suffix}" for suffix in suffixes), options))
                break
    return jobs


def _named(sources: Iterable[str | os.PathLike[str]]) -> dict[Path, str]:
    """Each video by its real path, and the name that it would like: its path below a pattern's folder, no suffix."""
    found: dict[Path, str] = {}
    for source in [os.fspath(each) for each in sources]:
        if any(sign in source for sign in _SIGNS) and not Path(source).exists():
            files = [path for path in names_like(source) if Path(path).is_file()]
            if not files:
                raise InputError(f"no file matches {source}; check the folder and the pattern.")
            base = _beginning(source)
        else:
            path = checked_input(source)
            files, base = [source], path.parent
        for file in sorted(files, key=natural_key):
            name = Path(file).relative_to(base).with_suffix("").as_posix()
            found.setdefault(Path(file).resolve(), name)
    if not found:
        raise InputError("there is no video to work on; give files or a pattern such as 'videos/*.mp4'.")
    return found


def _beginning(pattern: str) -> Path:
    """The folders of a pattern before the first that is one."""
    parts = Path(pattern).parts
    signs = [place for place, part in enumerate(parts) if any(sign in part for sign in _SIGNS)]
    return Path(*parts[: signs[0]])
