"""Crash-safe checkpoints: there is always an intact one, whenever the writer was killed.

A checkpoint is a folder, `step-00001200`, that is written under a hidden name, flushed to disk and then renamed. It
holds JSON and safetensors, and nothing executable.
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


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run.

    Attributes:
        step: Steps done.
        tensors: Tensors by flat names such as "model.encoder.weight", of any shape and safetensors dtype.
        record: JSON values; tuples come back as lists.
    """

    step: int
    tensors: dict[str, Tensor]
    record: dict[str, Any]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint and the folder it was read from."""

    path: Path
    checkpoint: Checkpoint


def save(
    folder: Path,
    checkpoint: Checkpoint,
    *,
    part_bytes: int | None = None,
    keep: int = 2,
    verified: Collection[Path] = (),
) -> Path:
    """Write a checkpoint into a folder, which is created if needed.

    Args:
        folder: Folder of the run's checkpoints.
        checkpoint: What to write.
        part_bytes: Maximum size of a tensor file; None writes one file.
        keep: Number of intact checkpoints to keep; older ones are removed once the new one is on disk.
        verified: Checkpoints that the caller wrote or read itself, which are not verified again.

    Returns:
        Path of the checkpoint.

    Raises:
        InputError: If it cannot be written; the existing checkpoints are then unchanged.
    """
    pieces = pack_tensors(checkpoint.tensors, part_bytes)
    make_folder(folder)
    _clear_abandoned(folder)
    target = _free_name(folder, checkpoint.step)
    try:
        with _hidden_folder(target) as hidden:
            _write(hidden, checkpoint, pieces)
            os.rename(hidden, target)  # noqa: PTH104 - the same call, and the one a test can make fail
        _sync_folder(folder)
    except OSError as error:
        last = find_newest(folder, lambda _: None)
        previous = "there is none before it" if last is None else f"the last one, {last.name}, is intact"
        size = sum(tensor.nbytes for tensor in checkpoint.tensors.values()) / 10**6
        raise InputError(
            f"the checkpoint of step {checkpoint.step} ({size:.1f} MB) could not be written to {folder} "
            f"({system_reason(error)}), but {previous}; free some space there and resume."
        ) from None
    _prune(folder, keep, target, verified)
    return target


def find_newest(folder: Path, report: Callable[[str], None]) -> Path | None:
    """Find the intact checkpoint of the highest step.

    Args:
        folder: Folder of checkpoints.
        report: Called with one sentence for each damaged checkpoint that is skipped.

    Returns:
        Path of the checkpoint, or None.
    """
    for path in _list_checkpoints(folder):
        damage = _find_damage(path)
        if damage is None:
            return path
        report(_describe_skipped(path, damage))
    return None


def load_newest(folder: Path, report: Callable[[str], None]) -> LoadedCheckpoint | None:
    """Load the checkpoint that `find_newest` finds, reading and verifying each byte once."""
    for path in _list_checkpoints(folder):
        try:
            return LoadedCheckpoint(path, _read(path))
        except DamagedError as error:
            report(_describe_skipped(path, str(error)))
    return None


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; nothing in it is executed.

    Raises:
        InputError: If any byte differs from what was written.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a checkpoint, which is a folder; check the path.")
    try:
        return _read(path)
    except DamagedError as error:
        raise InputError(f"the checkpoint {path} cannot be used: {error}; use another one, or start over.") from None


def list_steps(folder: Path) -> list[int]:
    """List the steps of all checkpoints of a folder, intact or not, the highest first."""
    return [int(match[1]) for path in _list_checkpoints(folder) if (match := _NAME.fullmatch(path.name))]


def clear(folder: Path) -> None:
    """Remove every checkpoint of a folder, for a run that starts over."""
    for path in _list_checkpoints(folder):
        _remove(path)
    _clear_abandoned(folder)


def _write(folder: Path, checkpoint: Checkpoint, pieces: list[list[Piece]]) -> None:
    """Write every file of a checkpoint, the manifest last, and flush them to disk."""
    files: list[StoredFile] = []
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(pieces):
        name = part_name(number, len(pieces))
        files.append(_write_file(folder / name, part_as_bytes(checkpoint.tensors, part)))
        for piece in part:
            before = tensors[piece.name].parts if piece.name in tensors else ()
            tensor = checkpoint.tensors[piece.name]
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors[piece.name] = StoredTensor(dtype, tuple(tensor.shape), (*before, name))
    files.append(_write_file(folder / RECORD, json.dumps(checkpoint.record).encode()))
    _write_file(folder / MANIFEST, Manifest(checkpoint.step, tuple(files), tensors).as_bytes())
    _sync_folder(folder)


def _write_file(path: Path, data: bytes) -> StoredFile:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(path.name, len(data), hashlib.sha256(data).hexdigest())


def _read(path: Path) -> Checkpoint:
    manifest = read_manifest(path)
    return Checkpoint(manifest.step, read_tensors(path, manifest), read_record(path, manifest))


def _describe_skipped(path: Path, damage: str) -> str:
    return f"the checkpoint {path} is skipped: {damage}."


def _find_damage(path: Path) -> str | None:
    """Describe the damage of a checkpoint; None if it is intact."""
    try:
        manifest = read_manifest(path)
        for file in manifest.files:
            check_file(path, file)
        read_record(path, manifest)
    except DamagedError as error:
        return str(error)
    return None


def _list_checkpoints(folder: Path) -> list[Path]:
    """List every checkpoint of a folder, intact or not, the highest step first."""
    try:
        matches = [
            (match, path)
            for path in folder.iterdir()
            if (match := _NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()
        ]
    except OSError:
        return []
    matches.sort(key=lambda each: (int(each[0][1]), int(each[0][2] or 0)), reverse=True)
    return [path for _, path in matches]


def _free_name(folder: Path, step: int) -> Path:
    """Choose the path of a checkpoint; one of the same step stays until the new one is written."""
    name = f"step-{step:08d}"
    existing = [path.name for path in _list_checkpoints(folder)]
    suffixes = [int(match[2] or 0) for each in existing if (match := _NAME.fullmatch(each)) and int(match[1]) == step]
    return folder / (f"{name}.{max(suffixes) + 1}" if suffixes else name)


def _prune(folder: Path, keep: int, written: Path, verified: Collection[Path]) -> None:
    """Remove checkpoints older than the newest `keep` intact ones, and others of the step just written."""
    num_intact = 0
    for path in _list_checkpoints(folder):
        same_step = path.name.split(".")[0] == written.name.split(".")[0]
        if path != written and (num_intact >= keep or same_step):
            _remove(path)
        elif path == written or path in verified or _find_damage(path) is None:
            num_intact += 1


def _remove(path: Path) -> None:
    """Remove a checkpoint; it is renamed first, so that no reader sees a part of it."""
    renamed = path.with_name(f".{path.name}.{secrets.token_hex(4)}.gone")
    with contextlib.suppress(OSError):  # a checkpoint that cannot be removed must not stop a run
        os.rename(path, renamed)  # noqa: PTH104
        shutil.rmtree(renamed)


@contextlib.contextmanager
def _hidden_folder(target: Path) -> Iterator[Path]:
    """Create a hidden folder next to `target`, locked while it is written and removed unless it was renamed."""
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    hidden.mkdir()
    try:
        with held(hidden):
            yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _clear_abandoned(folder: Path) -> None:
    """Remove hidden folders that no process writes to."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _HIDDEN.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError), held(path):
                shutil.rmtree(path)


if sys.platform == "win32":  # which can neither lock nor fsync a folder

    @contextlib.contextmanager
    def held(folder: Path) -> Iterator[None]:
        """Do nothing."""
        yield

    def _sync_folder(folder: Path) -> None:
        pass

else:
    import fcntl

    _HANDLES: set[int] = set()

    def _release_in_child() -> None:
        """Release the locks in a forked worker, which may outlive the process that holds them."""
        for handle in _HANDLES:
            os.close(handle)
        _HANDLES.clear()

    os.register_at_fork(after_in_child=_release_in_child)

    @contextlib.contextmanager
    def held(folder: Path) -> Iterator[None]:
        """Lock a folder; the lock ends with the process.

        Raises:
            BlockingIOError: If another process holds the lock.
        """
        handle = os.open(folder, os.O_RDONLY)
        _HANDLES.add(handle)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # a file system without locks is used unlocked
                if isinstance(error, BlockingIOError):
                    raise
            yield
        finally:
            if handle in _HANDLES:
                _HANDLES.remove(handle)
                os.close(handle)

    def _sync_folder(folder: Path) -> None:
        """Flush the entries of a folder to disk."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
