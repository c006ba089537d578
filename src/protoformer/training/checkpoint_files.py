"""The files of a checkpoint: tensors packed into parts, a JSON record, and a manifest with checksums.

The manifest lists every file with its length and SHA-256, every tensor with its dtype, shape and parts, and the SHA-256
of itself. File names are fixed by the format and links are not followed, so that reading an untrusted checkpoint
neither executes anything nor reads other files.
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

from protoformer.errors import InputError, shorten
from protoformer.io.files import short_repr, system_reason
from protoformer.models.pretrained import read_tensor_header

FORMAT, VERSION = "protoformer checkpoint", 1
MANIFEST, RECORD = "manifest.json", "record.json"
MIN_PART_BYTES = 4096
"""Minimum size of a tensor file, bytes."""
_MAX_JSON_BYTES = 2**26  # this package writes none that are larger
MAX_BYTES = 2**33
"""Maximum size of a checkpoint; the largest network with its average and both moments takes half of it."""


class DamagedError(ValueError):
    """A checkpoint differs from what was written; the message is a clause that says how."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint.

    Attributes:
        name: File name.
        bytes: Length.
        sha256: Hexadecimal digest.
    """

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint.

    Attributes:
        dtype: Name of the dtype, without "torch.".
        shape: Shape of the tensor.
        parts: Files that hold it; each of several holds consecutive elements of the flattened tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint."""

    step: int
    files: tuple[StoredFile, ...]
    tensors: dict[str, StoredTensor]

    def as_bytes(self) -> bytes:
        """Encode the manifest as JSON with its own checksum."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps({**content, "sha256": _digest(content)}, indent=1).encode()


@dataclass(frozen=True)
class Piece:
    """A tensor or a part of one.

    Attributes:
        name: Name of the tensor.
        span: (start, stop) of the flattened tensor; None is the whole tensor in its own shape.
    """

    name: str
    span: tuple[int, int] | None = None


def check_part_bytes(part_bytes: int | None) -> None:
    """Raise `InputError` if the maximum size of a tensor file is too small; None is no limit."""
    if part_bytes is not None and part_bytes < MIN_PART_BYTES:
        raise InputError(f"parts of {part_bytes} bytes are too small; make them at least {MIN_PART_BYTES} bytes.")


def pack_tensors(tensors: Mapping[str, Tensor], part_bytes: int | None) -> list[list[Piece]]:
    """Distribute tensors, sorted by name, over files of at most `part_bytes`; None puts all into one file."""
    if part_bytes is None:
        return [[Piece(name) for name in sorted(tensors)]] if tensors else []
    check_part_bytes(part_bytes)
    parts: list[list[Piece]] = [[]]
    room = part_bytes - _HEADER_BYTES
    for name in sorted(tensors):
        tensor, entry = tensors[name], _entry_bytes(name, tensors[name].dim())
        if entry + tensor.nbytes > room and parts[-1]:
            parts.append([])
            room = part_bytes - _HEADER_BYTES
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


_HEADER_BYTES = 24  # bytes of a part besides its tensors: a length, two braces, and what fills up to a multiple of 8


def _entry_bytes(name: str, dimensions: int) -> int:
    """Return an upper bound of the header's size for one tensor."""
    return len(json.dumps(name)) + 96 + 21 * max(1, dimensions)


def part_name(number: int, of: int) -> str:
    """Return the file name of part `number`, from 0 on, of `of` parts."""
    return f"tensors-{number + 1:05d}-of-{of:05d}.safetensors"


def part_as_bytes(tensors: Mapping[str, Tensor], pieces: list[Piece]) -> bytes:
    """Encode one part as safetensors."""
    content: dict[str, Tensor] = {}
    storages: set[int] = set()
    for piece in pieces:
        tensor = tensors[piece.name].detach()
        tensor = tensor if piece.span is None else tensor.reshape(-1)[slice(*piece.span)]
        tensor = tensor.cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share storage, as a weight with two names does.
        content[piece.name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return tensors_to(content)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint without reading its other files.

    Raises:
        DamagedError: If the manifest is missing, changed or not valid.
    """
    content = _parse_json(_read_bytes(folder / MANIFEST), MANIFEST)
    kind, version = content.get("format"), content.get("version")
    if kind != FORMAT:
        raise DamagedError(f"{MANIFEST} is not the manifest of a checkpoint")
    if version != VERSION:
        raise DamagedError(f"it is of version {short_repr(version)}, and this package reads version {VERSION}")
    try:
        if content.pop("sha256", None) != _digest(content):
            raise DamagedError(f"{MANIFEST} was changed after it was written")
        manifest = _parse_manifest(content)
    except DamagedError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        raise DamagedError(f"{MANIFEST} has missing, unknown or invalid keys") from None
    count = len(manifest.files) - 1
    if [file.name for file in manifest.files] != [*(part_name(number, count) for number in range(count)), RECORD]:
        raise DamagedError(f"{MANIFEST} lists other files than a checkpoint has")
    if sum(file.bytes for file in manifest.files) > MAX_BYTES:
        raise DamagedError(f"its files have more than {MAX_BYTES} bytes, which is too much")
    return manifest


def check_file(folder: Path, file: StoredFile) -> None:
    """Raise `DamagedError` unless the file matches the manifest; the file is streamed, not loaded."""
    with _open_regular(folder / file.name, file.bytes) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.sha256:
        raise DamagedError(f"{file.name} was changed after it was written")


def read_verified(folder: Path, file: StoredFile) -> bytes:
    """Read a file; raises `DamagedError` unless it matches the manifest."""
    data = _read_bytes(folder / file.name, file.bytes)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DamagedError(f"{file.name} was changed after it was written")
    return data


def read_record(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Read the record of a checkpoint."""
    return _parse_json(read_verified(folder, manifest.files[-1]), RECORD)


def read_tensors(folder: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Read every tensor of a checkpoint to the CPU, with at most two copies of each in memory."""
    pieces: dict[str, list[Tensor]] = {name: [] for name in manifest.tensors}
    for file in manifest.files[:-1]:
        for name, tensor in _read_part(folder, file):
            stored = manifest.tensors.get(name)
            index = len(pieces.get(name, ()))
            if stored is None or stored.parts[index : index + 1] != (file.name,):
                raise DamagedError(f"{file.name} holds {shorten(name)}, which the manifest does not list there")
            pieces[name].append(tensor)
    return {name: _join_pieces(name, pieces.pop(name), stored) for name, stored in manifest.tensors.items()}


def _read_part(folder: Path, file: StoredFile) -> Iterator[tuple[str, Tensor]]:
    try:
        data = read_verified(folder, file)
        read_tensor_header(io.BytesIO(data), len(data))
        tensors = tensors_from(data)
    except (SafetensorError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        if isinstance(error, DamagedError):
            raise
        raise DamagedError(f"{file.name} does not hold tensors ({shorten(error)})") from None
    yield from tensors.items()


def _join_pieces(name: str, pieces: list[Tensor], stored: StoredTensor) -> Tensor:
    """Join the pieces of a tensor, each with consecutive elements."""
    whole = pieces[0] if len(pieces) == 1 else None
    fits = len(pieces) == len(stored.parts) > 0
    fits = fits and all(str(piece.dtype).removeprefix("torch.") == stored.dtype for piece in pieces)
    if whole is None:
        fits = fits and all(piece.dim() == 1 and piece.numel() for piece in pieces)
        fits = fits and sum(piece.numel() for piece in pieces) == math.prod(stored.shape)
    else:
        fits = fits and tuple(whole.shape) == stored.shape
    if not fits:
        raise DamagedError(f"{shorten(name)} does not have the dtype and shape of the manifest")
    return torch.cat(pieces).view(stored.shape) if whole is None else whole


def _parse_manifest(content: Mapping[str, Any]) -> Manifest:
    """Build a manifest from JSON values; wrong types and keys raise various errors, which the caller catches."""
    _expect(content.keys() == {"format", "version", "step", "files", "tensors"} and _is_count(content["step"]))
    files = tuple(StoredFile(**each) for each in content["files"])
    _expect(all(_is_count(file.bytes) and isinstance(file.sha256, str) for file in files))
    tensors = {}
    for name, each in content["tensors"].items():
        stored = StoredTensor(**{**each, "shape": tuple(each["shape"]), "parts": tuple(each["parts"])})
        _expect(isinstance(stored.dtype, str) and all(_is_count(side) for side in stored.shape))
        tensors[name] = stored
    return Manifest(content["step"], files, tensors)


def _expect(condition: bool) -> None:
    if not condition:
        raise ValueError


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _digest(content: Mapping[str, Any]) -> str:
    """Hash JSON values independently of key order and whitespace."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _parse_json(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DamagedError(f"{name} is not a JSON object")
    return content


def _read_bytes(path: Path, expected: int | None = None) -> bytes:
    with _open_regular(path, expected) as stream:
        return stream.read()


@contextmanager
def _open_regular(path: Path, expected: int | None = None) -> Iterator[io.BufferedReader]:
    """Open a regular file of the expected length; links, which may lead out of the folder, are refused.

    Errors of the system, also while the file is read, raise `DamagedError`.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path.name} is not a regular file")
        if expected is not None and status.st_size != expected:
            raise DamagedError(f"{path.name} is {status.st_size} bytes long, not {expected}")
        if expected is None and status.st_size > _MAX_JSON_BYTES:
            raise DamagedError(f"{path.name} is {status.st_size} bytes long, which is too much")
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as stream:
            yield stream
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({system_reason(error)})") from None
