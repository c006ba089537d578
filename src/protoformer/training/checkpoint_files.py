"""The files of a checkpoint: tensors packed into parts, a record, and a manifest that tells whether all is as written.

The manifest lists every file with its length and SHA-256, every tensor with its type, its shape and the parts that hold
it, and ends with the SHA-256 of itself. Names in it are those that the format itself would give, and nothing is
followed out of the folder, so that a checkpoint from anywhere can be read without running or reading anything else.
"""

import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as tensors_to
from torch import Tensor

from protoformer.errors import InputError, shortened
from protoformer.io.files import shown, system_reason
from protoformer.models.pretrained import read_tensor_header

FORMAT, VERSION = "protoformer checkpoint", 1
MANIFEST, RECORD = "manifest.json", "record.json"
LEAST_PART = 4096
"""Bytes of the smallest part that tensors are split into."""
_LONGEST_JSON = 2**26  # bytes; a file that says it is longer was not written here
MAX_BYTES = 2**33
"""Of all files of a checkpoint; the largest network, its average and two moments of each weight have half of it."""


class DamagedError(ValueError):
    """Something about a checkpoint is not as it was written; the message is a clause that says what."""


@dataclass(frozen=True)
class StoredFile:
    """A file, its length and its SHA-256 in hexadecimal letters."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, and the parts that hold it; where there are several, each holds a run of its flattened elements."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """All that a checkpoint consists of."""

    step: int
    files: tuple[StoredFile, ...]
    tensors: dict[str, StoredTensor]

    def as_bytes(self) -> bytes:
        """The manifest's file."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps({**content, "sha256": _digest(content)}, indent=1).encode()


@dataclass(frozen=True)
class Piece:
    """Elements start .. stop - 1 of a flattened tensor; None for all of it, in its own shape."""

    name: str
    span: tuple[int, int] | None = None


def check_part_bytes(part_bytes: int | None) -> None:
    """Raise `InputError` where files of at most so many bytes would be too small; None is no limit."""
    if part_bytes is not None and part_bytes < LEAST_PART:
        raise InputError(f"parts of {part_bytes} bytes are too small; make them at least {LEAST_PART} bytes.")


def pack_tensors(tensors: Mapping[str, Tensor], part_bytes: int | None) -> list[list[Piece]]:
    """Divide tensors, in the order of their names, among files of at most part_bytes; None puts all into one."""
    if part_bytes is None:
        return [[Piece(name) for name in sorted(tensors)]] if tensors else []
    check_part_bytes(part_bytes)
    parts: list[list[Piece]] = [[]]
    room = part_bytes - _HEADER
    for name in sorted(tensors):
        tensor, entry = tensors[name], _entry_bytes(name, tensors[name].dim())
        if entry + tensor.nbytes > room and parts[-1]:
            parts.append([])
            room = part_bytes - _HEADER
        if entry + tensor.nbytes <= room:
            parts[-1].append(Piece(name))
            room -= entry + tensor.nbytes
            continue
        count = max(1, (room - entry) // tensor.element_size())
        for start in range(0, tensor.numel(), count):
            stop = min(start + count, tensor.numel())
            parts[-1].append(Piece(name, (start, stop)))
            if stop < tensor.numel():
                parts.append([])
            else:
                room -= entry + (stop - start) * tensor.element_size()
    return [part for part in parts if part]


_HEADER = 24  # bytes of a part besides its tensors: a length, two braces, and what fills up to a multiple of 8


def _entry_bytes(name: str, dimensions: int) -> int:
    """At least as many bytes as the header of a part needs for a tensor."""
    return len(json.dumps(name)) + 96 + 21 * max(1, dimensions)


def part_name(number: int, of: int) -> str:
    """The name of part `number`, from 0 on."""
    return f"tensors-{number + 1:05d}-of-{of:05d}.safetensors"


def part_as_bytes(tensors: Mapping[str, Tensor], pieces: list[Piece]) -> bytes:
    """The file of one part."""
    content: dict[str, Tensor] = {}
    seen: set[int] = set()
    for piece in pieces:
        tensor = tensors[piece.name].detach()
        tensor = tensor if piece.span is None else tensor.reshape(-1)[slice(*piece.span)]
        tensor = tensor.cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        # The format wants memory of its own for each tensor; a weight that is used under two names has one.
        content[piece.name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return tensors_to(content)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, whatever its other files hold; `DamagedError` if it is not one."""
    content = _parsed(_bytes_of(folder / MANIFEST), MANIFEST)
    kind, version = content.get("format"), content.get("version")
    if kind != FORMAT:
        raise DamagedError(f"{MANIFEST} is not of a checkpoint")
    if version != VERSION:
        raise DamagedError(f"it is of version {shown(version)}, and this package reads version {VERSION}")
    try:
        if content.pop("sha256", None) != _digest(content):
            raise DamagedError(f"{MANIFEST} was changed after it was written")
        manifest = _understood(content)
    except DamagedError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        raise DamagedError(f"{MANIFEST} does not say what a manifest must") from None
    count = len(manifest.files) - 1
    if [file.name for file in manifest.files] != [*(part_name(number, count) for number in range(count)), RECORD]:
        raise DamagedError(f"{MANIFEST} lists other files than a checkpoint has")
    if sum(file.bytes for file in manifest.files) > MAX_BYTES:
        raise DamagedError(f"its files have more than {MAX_BYTES} bytes, which is too much")
    return manifest


def check_file(folder: Path, file: StoredFile) -> None:
    """Raise `DamagedError` unless the file is as the manifest has it. Takes no memory to speak of."""
    with _opened(folder / file.name, file.bytes) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.sha256:
        raise DamagedError(f"{file.name} was changed after it was written")


def check_bytes(folder: Path, file: StoredFile) -> bytes:
    """The content of a file, which is as the manifest has it."""
    data = _bytes_of(folder / file.name, file.bytes)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedError(f"{file.name} was changed after it was written")
    return data


def read_record(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """The record of a checkpoint."""
    return _parsed(check_bytes(folder, manifest.files[-1]), RECORD)


def read_tensors(folder: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, on the CPU; at any moment there are at most two copies of each."""
    found: dict[str, list[Tensor]] = {name: [] for name in manifest.tensors}
    for file in manifest.files[:-1]:
        for name, tensor in _part(folder, file):
            stored = manifest.tensors.get(name)
            place = len(found.get(name, ()))
            if stored is None or stored.parts[place : place + 1] != (file.name,):
                raise DamagedError(f"{file.name} holds {shortened(name)}, which the manifest does not say")
            found[name].append(tensor)
    return {name: _joined(name, found.pop(name), stored) for name, stored in manifest.tensors.items()}


def _part(folder: Path, file: StoredFile) -> Iterator[tuple[str, Tensor]]:
    try:
        data = check_bytes(folder, file)
        read_tensor_header(io.BytesIO(data), len(data))
        tensors = tensors_from(data)
    except (SafetensorError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{file.name} does not hold tensors ({shortened(error)})") from None
    yield from tensors.items()


def _joined(name: str, pieces: list[Tensor], stored: StoredTensor) -> Tensor:
    """A tensor of its pieces, each a run of its elements."""
    whole = pieces[0] if len(pieces) == 1 else None
    fits = len(pieces) == len(stored.parts) > 0
    fits = fits and all(str(piece.dtype).removeprefix("torch.") == stored.dtype for piece in pieces)
    if whole is None:
        fits = fits and all(piece.dim() == 1 and piece.numel() for piece in pieces)
        fits = fits and sum(piece.numel() for piece in pieces) == math.prod(stored.shape)
    else:
        fits = fits and tuple(whole.shape) == stored.shape
    if not fits:
        raise DamagedError(f"{shortened(name)} is not of the type and shape that the manifest says")
    return torch.cat(pieces).view(stored.shape) if whole is None else whole


def _understood(content: Mapping[str, Any]) -> Manifest:
    """A manifest of parsed json, or any of the errors that wrong types and missing or unknown keys lead to."""
    _expect(content.keys() == {"format", "version", "step", "files", "tensors"} and _whole(content["step"]))
    files = tuple(StoredFile(**each) for each in content["files"])
    _expect(all(_whole(file.bytes) and isinstance(file.sha256, str) for file in files))
    tensors = {}
    for name, each in content["tensors"].items():
        stored = StoredTensor(**{**each, "shape": tuple(each["shape"]), "parts": tuple(each["parts"])})
        _expect(isinstance(stored.dtype, str) and all(_whole(side) for side in stored.shape))
        tensors[name] = stored
    return Manifest(content["step"], files, tensors)


def _expect(right: bool) -> None:
    if not right:
        raise ValueError


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _digest(content: Mapping[str, Any]) -> str:
    """Of json values, whatever the order of their keys and the spaces between them."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DamagedError(f"{name} is not json of keys and values")
    return content


def _bytes_of(path: Path, expected: int | None = None) -> bytes:
    with _opened(path, expected) as stream:
        return stream.read()


@contextmanager
def _opened(path: Path, expected: int | None = None) -> Iterator[io.BufferedReader]:
    """Open a regular file of the expected length; a link, which may lead out of the folder, is none.

    What the system refuses, also while the file is read, is damage.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path.name} is not a regular file")
        if expected is not None and status.st_size != expected:
            raise DamagedError(f"{path.name} is {status.st_size} bytes long, not {expected}")
        if expected is None and status.st_size > _LONGEST_JSON:
            raise DamagedError(f"{path.name} is {status.st_size} bytes long, which is too much")
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as stream:
            yield stream
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({system_reason(error)})") from None
