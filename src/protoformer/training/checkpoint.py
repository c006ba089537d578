"""Checkpoints that live through anything: a reader finds the last one whole, whenever the writer was stopped.

A checkpoint is a folder, `step-00001200`, that is written under a hidden name, reaches the disk, and then takes its
own. It holds json and safetensors and nothing that could run.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import make_folder, system_reason
from protoformer.training.checkpoint_files import (
    MANIFEST,
    RECORD,
    DamagedError,
    Manifest,
    Piece,
    StoredFile,
    StoredTensor,
    check_file,
    pack_tensors,
    part_as_bytes,
    part_name,
    read_manifest,
    read_record,
    read_tensors,
)

_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_HIDDEN = re.compile(r"\.step-\d{8,}.*\.(part|gone)")
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` steps.

    tensors: by flat names such as "model.encoder.weight"; any type that safetensors knows, and any shape. record: what
    json can hold; tuples come back as lists.
    """

    step: int
    tensors: dict[str, Tensor]
    record: dict[str, Any]


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint and where it lies."""

    path: Path
    checkpoint: Checkpoint


def save(
    folder: Path,
    checkpoint: Checkpoint,
    *,
    part_bytes: int | None = None,
    keep: int = 2,
    whole: Collection[Path] = (),
) -> Path:
    """Write a checkpoint into a folder, which is made if need be, and return its path.

    part_bytes: split the tensors into files of at most so many bytes. keep: how many good checkpoints stay; older ones
    are removed once the new one has reached the disk. whole: those that the caller wrote or read itself, which need not
    be checked for that. If it cannot be written, `InputError`, and all is as before.
    """
    pieces = pack_tensors(checkpoint.tensors, part_bytes)
    make_folder(folder)
    _clear_abandoned(folder)
    target = _free_name(folder, checkpoint.step)
    try:
        with _beside(target) as hidden:
            _write(hidden, checkpoint, pieces)
            os.rename(hidden, target)  # noqa: PTH104 - the same call, and the one a test can make fail
        _reach_disk(folder)
    except OSError as error:
        last = find_newest(folder, lambda _: None)
        kept = "there is none before it" if last is None else f"the last one, {last.name}, is whole"
        size = sum(tensor.nbytes for tensor in checkpoint.tensors.values()) / 10**6
        raise InputError(
            f"the checkpoint of step {checkpoint.step} ({size:.1f} MB) could not be written to {folder} "
            f"({system_reason(error)}), but {kept}; free some room there and go on."
        ) from None
    _prune(folder, keep, target, whole)
    return target


def find_newest(folder: Path, told: Callable[[str], None]) -> Path | None:
    """The checkpoint of the highest step that is as it was written, or None.

    told: called with one sentence for each that is passed over because it is not.
    """
    for path in _listed(folder):
        fault = _fault(path)
        if fault is None:
            return path
        told(_passed_over(path, fault))
    return None


def load_newest(folder: Path, told: Callable[[str], None]) -> FoundCheckpoint | None:
    """As `newest`, and its content, each byte of which is read and checked once."""
    for path in _listed(folder):
        try:
            return FoundCheckpoint(path, _read(path))
        except DamagedError as error:
            told(_passed_over(path, str(error)))
    return None


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; `InputError` unless every byte is as it was written. Never runs anything from it."""
    if not path.is_dir():
        raise InputError(f"{path} is not a checkpoint, which is a folder; check the path.")
    try:
        return _read(path)
    except DamagedError as error:
        raise InputError(f"the checkpoint {path} cannot be used: {error}; take another one, or start over.") from None


def list_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints of a folder, good or not, the highest first."""
    return [int(match[1]) for path in _listed(folder) if (match := _NAME.fullmatch(path.name))]


def clear(folder: Path) -> None:
    """Remove every checkpoint of a folder, for a run that starts over."""
    for path in _listed(folder):
        _remove(path)
    _clear_abandoned(folder)


def parse_size(text: str) -> int:
    """Bytes of a size such as 15MB (a million each), 15MiB (1024 x 1024 each) or 500KB."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?i?b)\s*", text, re.IGNORECASE)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise InputError(f"{text!r} is not a size; write a number and B, KB, MB, GB, KiB, MiB or GiB, such as 15MB.")
    return int(float(found[1]) * unit)


def _write(folder: Path, checkpoint: Checkpoint, pieces: list[list[Piece]]) -> None:
    """Write every file of a checkpoint, the manifest last, so that they have reached the disk."""
    files: list[StoredFile] = []
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(pieces):
        name = part_name(number, len(pieces))
        files.append(_written(folder / name, part_as_bytes(checkpoint.tensors, part)))
        for piece in part:
            before = tensors[piece.name].parts if piece.name in tensors else ()
            tensor = checkpoint.tensors[piece.name]
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors[piece.name] = StoredTensor(dtype, tuple(tensor.shape), (*before, name))
    files.append(_written(folder / RECORD, json.dumps(checkpoint.record).encode()))
    _written(folder / MANIFEST, Manifest(checkpoint.step, tuple(files), tensors).as_bytes())
    _reach_disk(folder)


def _written(path: Path, data: bytes) -> StoredFile:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(path.name, len(data), hashlib.sha256(data).hexdigest())


def _read(path: Path) -> Checkpoint:
    manifest = read_manifest(path)
    return Checkpoint(manifest.step, read_tensors(path, manifest), read_record(path, manifest))


def _passed_over(path: Path, fault: str) -> str:
    return f"the checkpoint {path} is passed over: {fault}."


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint; None where nothing is."""
    try:
        manifest = read_manifest(path)
        for file in manifest.files:
            check_file(path, file)
        read_record(path, manifest)
    except DamagedError as error:
        return str(error)
    return None


def _listed(folder: Path) -> list[Path]:
    """Every checkpoint of a folder, good or not, the highest step first."""
    try:
        found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    except OSError:
        return []
    found.sort(key=lambda each: (int(each[0][1]), int(each[0][2] or 0)), reverse=True)
    return [path for _, path in found]


def _free_name(folder: Path, step: int) -> Path:
    """Where a checkpoint goes: one of the same step stays until the new one is there, so it needs another name."""
    name = f"step-{step:08d}"
    taken = [path.name for path in _listed(folder)]
    again = [int(match[2] or 0) for each in taken if (match := _NAME.fullmatch(each)) and int(match[1]) == step]
    return folder / (f"{name}.{max(again) + 1}" if again else name)


def _prune(folder: Path, keep: int, written: Path, whole: Collection[Path]) -> None:
    """Remove what is older than the newest `keep` good ones, and whatever else is there of the step just written."""
    good = 0
    for path in _listed(folder):
        same_step = path.name.split(".")[0] == written.name.split(".")[0]
        if path != written and (good >= keep or same_step):
            _remove(path)
        elif path == written or path in whole or _fault(path) is None:
            good += 1


def _remove(path: Path) -> None:
    """Take a checkpoint away at once, so that nobody sees half of it, and then its files."""
    gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}.gone")
    with contextlib.suppress(OSError):  # an old checkpoint too many is no reason to stop a run
        os.rename(path, gone)  # noqa: PTH104
        shutil.rmtree(gone)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A hidden folder beside, held while it is written to, and gone afterwards unless it was renamed."""
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    hidden.mkdir()
    try:
        with held(hidden):
            yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _clear_abandoned(folder: Path) -> None:
    """Remove hidden folders that nobody writes to any more."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _HIDDEN.fullmatch(path.name) and path.is_dir():
            with contextlib.suppress(OSError), held(path):
                shutil.rmtree(path)


if sys.platform == "win32":  # which neither locks folders nor brings them to the disk

    @contextlib.contextmanager
    def held(folder: Path) -> Iterator[None]:
        """Nothing."""
        yield

    def _reach_disk(folder: Path) -> None:
        pass

else:
    import fcntl

    _HANDLES: set[int] = set()

    def _let_go() -> None:
        """A worker holds nothing: it may live a moment longer than the process that does."""
        for handle in _HANDLES:
            os.close(handle)
        _HANDLES.clear()

    os.register_at_fork(after_in_child=_let_go)

    @contextlib.contextmanager
    def held(folder: Path) -> Iterator[None]:
        """Hold a folder; BlockingIOError where somebody else has it. A process that dies lets go."""
        handle = os.open(folder, os.O_RDONLY)
        _HANDLES.add(handle)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # on a disk that knows no locks, one writer a folder is taken on trust
                if isinstance(error, BlockingIOError):
                    raise
            yield
        finally:
            if handle in _HANDLES:
                _HANDLES.remove(handle)
                os.close(handle)

    def _reach_disk(folder: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
