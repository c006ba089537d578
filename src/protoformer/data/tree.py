"""What every dataset on disk is, and how a folder is listed and checked.

A dataset lists its files when it is opened and reads them when they are asked for. Opening fails with one sentence
where a folder that the layout promises is not there; a file that is missing or damaged fails when it is read.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from protoformer.errors import InputError

S = TypeVar("S", covariant=True)


class Dataset(ABC, Generic[S]):
    """Samples of one split of a dataset under `root`; a constructor lists them and fills `names`, one per sample."""

    name: ClassVar[str]
    root: Path
    split: str
    names: tuple[str, ...]

    def __init__(self, root: str | os.PathLike[str], split: str) -> None:
        self.root = Path(root)
        self.split = split
        self.names = ()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> S:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} samples; there is no number {index}.")
        return self._read(index)

    def __iter__(self) -> Iterator[S]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def _read(self, index: int) -> S:
        """Read one sample, 0 <= index < len(self), or raise `InputError`."""


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts frame_2 before frame_10; names equal as numbers (1, 01) go by their letters."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), text


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """The files of a folder that match a pattern, in natural order; hidden ones are left out."""
    return _listed(path for path in folder.glob(pattern) if path.is_file())


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, in natural order; hidden ones are left out."""
    return _listed(path for path in folder.iterdir() if path.is_dir())


def expect_folder(path: str | os.PathLike[str], what: str, root: Path | None = None) -> Path:
    """Return the path of a folder, or raise `InputError` that says `what` was expected there."""
    folder = Path(path)
    if not folder.is_dir():
        found = "is a file" if folder.is_file() else "does not exist"
        raise InputError(f"{folder} {found}, but {what} was expected there as a folder; {_advice(folder, root)}/.")
    return folder


def expect_file(path: str | os.PathLike[str], what: str, root: Path | None = None) -> Path:
    """Return the path of a file, or raise `InputError` that says `what` was expected there."""
    file = Path(path)
    if not file.is_file():
        found = "is a folder" if file.is_dir() else "does not exist"
        raise InputError(
            f"{file} {found}, but {what} was expected there as a file; put it there, or {_advice(file, root)}."
        )
    return file


def expect_equal_counts(counts: Mapping[str, int], where: Path) -> None:
    """Raise `InputError` where things that belong together are not equally many: {"images": 10, "flows": 9}."""
    if len(set(counts.values())) > 1:
        found = " but ".join(f"{count} {what}" for what, count in counts.items())
        raise InputError(f"{where} holds {found}, which belong together one to one; download or copy it again.")


def expect_some(found: int, what: str, where: Path) -> None:
    """Raise `InputError` where a listing found nothing."""
    if not found:
        raise InputError(f"{where} holds no {what}; check that the whole dataset was unpacked there.")


def _advice(path: Path, root: Path | None) -> str:
    """Say what `--root` should hold for `path` to be found."""
    below = path.relative_to(root) if root is not None and path.is_relative_to(root) else Path(path.name)
    return f"point --root at the folder that holds {below}"


def _listed(paths: Iterator[Path]) -> list[Path]:
    return sorted((path for path in paths if not path.name.startswith(".")), key=lambda path: natural_key(path.name))
