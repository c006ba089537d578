"""The record of a finished video: what it holds, and whether a file from a disk is one.

A record decides what is skipped and which earlier outputs are removed, and the folder of a batch may come from anyone.
So it is read as data that may be wrong in any way, and it can only name outputs that its own job would have written.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from protoformer.files.reading import system_reason
from protoformer.files.small_files import UnfitFileError, read_small_file
from protoformer.inference.batch.jobs import SUFFIXES

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
    except (TypeError, ValueError, KeyError):
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
