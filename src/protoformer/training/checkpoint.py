"""Crash-safe checkpoints: there is always an intact one, whenever the writer was killed.

A checkpoint is a folder, `step-00001200`, of three files: `tensors.safetensors`, `record.json` and `manifest.json`,
which has the length and the SHA-256 of the other two and of itself. The folder is written under a hidden name, flushed
to disk and then renamed. File names are fixed, links are not followed and nothing is unpickled, so reading an untrusted
checkpoint neither executes anything nor reads other files.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as decode_tensors
from safetensors.torch import save as encode_tensors
from torch import Tensor

from protoformer.errors import InputError, shorten
from protoformer.io.files import make_folder, short_repr, system_reason
from protoformer.models.pretrained import read_tensor_header

FORMAT, VERSION = "protoformer checkpoint", 2
MANIFEST, RECORD, TENSORS = "manifest.json", "record.json", "tensors.safetensors"
MAX_JSON_BYTES = 2**26
MAX_BYTES = 2**33
"""Maximum size of a checkpoint; the largest network with its average and both moments takes half of it."""
_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_HIDDEN = re.compile(r"\.step-\d{8,}.*\.(part|gone)")


class DamagedError(ValueError):
    """A checkpoint differs from what was written; the message is a clause that says how."""


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
class _Manifest:
    """The content of a checkpoint: its step, and (length, SHA-256) of each file."""

    step: int
    files: dict[str, tuple[int, str]]


def save(folder: Path, checkpoint: Checkpoint, *, keep: int = 2, verified: Collection[Path] = ()) -> Path:
    """Write a checkpoint into a folder, which is created if needed.

    Args:
        folder: Folder of the run's checkpoints.
        checkpoint: What to write.
        keep: Number of intact checkpoints to keep; older ones are removed once the new one is on disk.
        verified: Checkpoints that the caller wrote or read itself, which are not verified again.

    Returns:
        Path of the checkpoint.

    Raises:
        InputError: If it cannot be written; the existing checkpoints are then unchanged.
    """
    make_folder(folder)
    _clear_abandoned(folder)
    target = _free_name(folder, checkpoint.step)
    try:
        with _hidden_folder(target) as hidden:
            _write(hidden, checkpoint)
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


def load_newest(folder: Path, on_message: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
    """Load the intact checkpoint of the highest step, verifying each byte once.

    Args:
        folder: Folder of checkpoints.
        on_message: Called with one sentence for each damaged checkpoint that is skipped.

    Returns:
        Path and content of the checkpoint, or None.
    """
    return _find_first(folder, _read, on_message)


def find_newest(folder: Path, on_message: Callable[[str], None]) -> Path | None:
    """Return the path of the checkpoint that `load_newest` loads, without holding it in memory."""
    newest = _find_first(folder, _verify, on_message)
    return None if newest is None else newest[0]


def list_steps(folder: Path) -> list[int]:
    """List the steps of all checkpoints of a folder, intact or not, the highest first."""
    return [int(match[1]) for path in _list_checkpoints(folder) if (match := _NAME.fullmatch(path.name))]


def clear(folder: Path) -> None:
    """Remove every checkpoint of a folder, for a run that starts over."""
    for path in _list_checkpoints(folder):
        _remove(path)
    _clear_abandoned(folder)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write every file of a checkpoint, the manifest last, and flush them to disk."""
    contents = {TENSORS: _encode(checkpoint.tensors), RECORD: json.dumps(checkpoint.record).encode()}
    files = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in contents.items()}
    manifest = {"format": FORMAT, "version": VERSION, "step": checkpoint.step, "files": files}
    contents[MANIFEST] = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1).encode()
    for name, data in contents.items():
        with (folder / name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    _sync_folder(folder)


def _encode(tensors: Mapping[str, Tensor]) -> bytes:
    """Encode tensors as safetensors, which refuses tensors that share storage, as a weight with two names does."""
    content: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        content[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return encode_tensors(content)


def _read(path: Path) -> Checkpoint:
    manifest = _read_manifest(path)
    record, data = (_read_file(path / name, *manifest.files[name]) for name in (RECORD, TENSORS))
    try:
        read_tensor_header(io.BytesIO(data), len(data))
        tensors = decode_tensors(data)
    except (SafetensorError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        raise DamagedError(f"{TENSORS} does not hold tensors ({shorten(error)})") from None
    return Checkpoint(manifest.step, tensors, _parse_json(record, RECORD))


def _verify(path: Path) -> None:
    """Raise `DamagedError` unless all files match the manifest; the tensors are streamed, not loaded."""
    manifest = _read_manifest(path)
    _parse_json(_read_file(path / RECORD, *manifest.files[RECORD]), RECORD)
    length, sha256 = manifest.files[TENSORS]
    with _open_regular(path / TENSORS, length) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise DamagedError(f"{TENSORS} was changed after it was written")


def _read_manifest(folder: Path) -> _Manifest:
    """Read and check the manifest of a checkpoint without reading its other files."""
    content = _parse_json(_read_file(folder / MANIFEST), MANIFEST)
    if content.get("format") != FORMAT:
        raise DamagedError(f"{MANIFEST} is not the manifest of a checkpoint")
    if content.get("version") != VERSION:
        version = short_repr(content.get("version"))
        raise DamagedError(f"it is of version {version}, and this package reads version {VERSION}")
    try:
        if content.pop("sha256", None) != _digest(content):
            raise DamagedError(f"{MANIFEST} was changed after it was written")
        step, listed = content["step"], content["files"]
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in listed.items()}
        is_valid = content.keys() == {"format", "version", "step", "files"} and _is_count(step)
        is_valid &= all(entry.keys() == {"bytes", "sha256"} for entry in listed.values())
        is_valid &= all(_is_count(length) and isinstance(sha256, str) for length, sha256 in files.values())
    except (TypeError, KeyError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise DamagedError(f"{MANIFEST} has missing, unknown or invalid keys")
    if files.keys() != {RECORD, TENSORS}:
        raise DamagedError(f"{MANIFEST} lists other files than a checkpoint has")
    if sum(length for length, _ in files.values()) > MAX_BYTES:
        raise DamagedError(f"its files have more than {MAX_BYTES} bytes, which is too much")
    return _Manifest(step, files)


def _read_file(path: Path, length: int | None = None, sha256: str | None = None) -> bytes:
    """Read a file and compare it with its length and SHA-256; the manifest has none."""
    with _open_regular(path, length) as stream:
        data = stream.read()
    if sha256 is not None and _sha256(data) != sha256:
        raise DamagedError(f"{path.name} was changed after it was written")
    return data


@contextlib.contextmanager
def _open_regular(path: Path, length: int | None) -> Iterator[io.BufferedReader]:
    """Open a regular file of the given length; links, which may lead out of the folder, are refused.

    Errors of the system, also while the file is read, raise `DamagedError`.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path.name} is not a regular file")
        if length is not None and status.st_size != length:
            raise DamagedError(f"{path.name} is {status.st_size} bytes long, not {length}")
        if path.name != TENSORS and status.st_size > MAX_JSON_BYTES:
            raise DamagedError(f"{path.name} is {status.st_size} bytes long, which is too much")
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as stream:
            yield stream
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({system_reason(error)})") from None


def _parse_json(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DamagedError(f"{name} is not a JSON object")
    return content


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    """Hash JSON values independently of key order and whitespace."""
    return _sha256(json.dumps(content, sort_keys=True).encode())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _find_first(
    folder: Path, read: Callable[[Path], Any], on_message: Callable[[str], None]
) -> tuple[Path, Any] | None:
    """Return the newest checkpoint that `read` accepts, and its result."""
    for path in _list_checkpoints(folder):
        try:
            return path, read(path)
        except DamagedError as error:
            on_message(f"the checkpoint {path} is skipped: {error}.")
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
    name, names = f"step-{step:08d}", [path.name for path in _list_checkpoints(folder)]
    suffixes = [int(match[2] or 0) for each in names if (match := _NAME.fullmatch(each)) and int(match[1]) == step]
    return folder / (f"{name}.{max(suffixes) + 1}" if suffixes else name)


def _prune(folder: Path, keep: int, written: Path, verified: Collection[Path]) -> None:
    """Remove checkpoints older than the newest `keep` intact ones, and others of the step just written."""
    num_intact = 0
    for path in _list_checkpoints(folder):
        same_step = path.name.split(".")[0] == written.name.split(".")[0]
        if path != written and (num_intact >= keep or same_step):
            _remove(path)
            continue
        with contextlib.suppress(DamagedError):
            if path != written and path not in verified:
                _verify(path)
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
        with lock_folder(hidden):
            yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _clear_abandoned(folder: Path) -> None:
    """Remove hidden folders that no process writes to."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _HIDDEN.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError), lock_folder(path):
                shutil.rmtree(path)


if sys.platform == "win32":  # which can neither lock nor fsync a folder

    @contextlib.contextmanager
    def lock_folder(folder: Path) -> Iterator[None]:
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
    def lock_folder(folder: Path) -> Iterator[None]:
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
