"""What every dataset on disk is, and how a folder is listed and checked.

A dataset lists its files when it is opened and reads them when they are asked for. Opening fails with one sentence
where a folder that the layout promises is not there; a file that is missing or damaged fails when it is read.
"""

import dataclasses
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import natural_key, open_input, system_reason

S = TypeVar("S", covariant=True)

IMAGES = (".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".webp")
"""How the names of images end."""


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


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """The files of a folder that match a pattern, in natural order; hidden ones are left out."""
    return _listed(path for path in folder.glob(pattern) if path.is_file())


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, in natural order; hidden ones are left out."""
    try:
        return _listed(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({system_reason(error)}); check its permissions.") from None


def numbered_files(folder: Path, suffixes: Collection[str] = IMAGES) -> dict[int, Path]:
    """The files of a folder by the last number in their names (frame_0002.png is 2), in order of the numbers."""
    found = {}
    for path in files_in(folder):
        numbers = re.findall(r"[0-9]+", path.stem)
        if numbers and path.suffix.lower() in suffixes:
            found[int(numbers[-1])] = path
    return dict(sorted(found.items()))


def named_files(folders: list[Path], names: str | Sequence[str] | None, where: Path) -> list[Path]:
    """The folders of these names, also given as one string with commas, or all where `names` is None."""
    if names is None:
        return folders
    wanted = _words(names)
    there = [folder.name for folder in folders]
    for name in wanted:
        if name not in there:
            raise InputError(f"{where} holds no {name}; choose among {', '.join(there)}.")
    return [folder for folder in folders if folder.name in wanted]


def read_text(path: Path) -> str:
    """Read a text file; one with a byte order mark or with letters of another encoding is still read."""
    with open_input(path) as file:
        return file.read().decode("utf-8-sig", errors="replace")


def choose(option: str, value: str, choices: Sequence[str]) -> str:
    """Return a value that is among the choices, or raise `InputError` that lists them."""
    if value not in choices:
        raise InputError(f"{option} is {value!r}; choose one of {', '.join(choices)}.")
    return value


def whole_numbers(option: str, value: str | int | Sequence[str | int]) -> list[int]:
    """The numbers, from 0 on, that an option gives as one string with commas, or one by one."""
    words = [str(value)] if isinstance(value, int) else _words(value)
    if not words or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(f"{option} is {value!r}; give whole numbers with commas between them, such as 0,3.")
    return [int(word) for word in words]


def yes_or_no(option: str, value: str | bool) -> bool:
    """The truth that an option gives, also as a word."""
    return choose(option, str(value).strip().lower(), ("true", "false", "1", "0")) in ("true", "1")


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path; there is none where the system does not take the path."""
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long, which `Path` does not pass over
        return False


def is_regular(path: Path) -> bool:
    """Whether there is a file at a path; there is none where the system does not take the path."""
    try:
        return path.is_file()
    except OSError:
        return False


def expect_folder(path: str | os.PathLike[str], what: str, root: Path | None = None) -> Path:
    """Return the path of a folder, or raise `InputError` that says `what` was expected there."""
    folder = Path(path)
    if not is_folder(folder):
        _expect_root(root, f"{_below(folder, root)}/", what)
        found = "is a file" if is_regular(folder) else "does not exist"
        raise InputError(f"{folder} {found}, but {what} was expected there as a folder; {_advice(folder, root, '/')}.")
    return folder


def expect_file(path: str | os.PathLike[str], what: str, root: Path | None = None) -> Path:
    """Return the path of a file, or raise `InputError` that says `what` was expected there."""
    file = Path(path)
    if not is_regular(file):
        _expect_root(root, str(_below(file, root)), what)
        found = "is a folder" if is_folder(file) else "does not exist"
        raise InputError(
            f"{file} {found}, but {what} was expected there as a file; put it there, or {_advice(file, root)}."
        )
    return file


def expect_equal_counts(counts: Mapping[str, int], where: Path) -> None:
    """Raise `InputError` where things that belong together are not equally many: {"images": 10, "flows": 9}."""
    if len(set(counts.values())) > 1:
        found = " but ".join(f"{count} {what}" for what, count in counts.items())
        raise InputError(f"{where} holds {found}, which belong together one to one; download or copy it again.")


def expect_matching_files(files: Mapping[str, Iterable[str]], where: Path) -> None:
    """Raise `InputError` where a file lacks its partner: {"img1.ppm": stems, "img2.ppm": stems}, "_" between both."""
    stems = {ending: set(found) for ending, found in files.items()}
    for stem in sorted(set().union(*stems.values()), key=natural_key):
        for ending, found in stems.items():
            if stem not in found:
                partner = next(other for other, others in stems.items() if stem in others)
                counts = " but ".join(f"{len(each)} files *_{other}" for other, each in stems.items())
                raise InputError(
                    f"{where} holds {counts}, which belong together one to one: {stem}_{ending} is missing beside "
                    f"{stem}_{partner}; download or copy it again."
                )


def expect_files(found: int, what: str, where: Path) -> None:
    """Raise `InputError` where a listing found nothing."""
    if not found:
        raise InputError(f"{where} holds no {what}; check that the whole dataset was unpacked there.")


def _expect_root(root: Path | None, below: str, what: str) -> None:
    """Where nothing is right below a root since it is not there itself, say so of what was given."""
    if root is not None and below not in (".", "./") and not root.is_dir():
        found = "is a file" if root.is_file() else "does not exist"
        raise InputError(
            f"{root} {found}; point --root at the folder where the dataset was unpacked, which holds {below} ({what})."
        )


def _advice(path: Path, root: Path | None, ending: str = "") -> str:
    """Say what `--root` should hold for `path` to be found."""
    below = _below(path, root)
    if below == Path():
        return "point --root at the folder where it was unpacked"
    return f"point --root, which is {root}, at the folder that holds {below}{ending}"


def _below(path: Path, root: Path | None) -> Path:
    """Where a path lies below the root; the empty path where it is the root, or somewhere else."""
    return path.relative_to(root) if root is not None and path.is_relative_to(root) else Path()


def _words(value: str | Sequence[str | int]) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return [str(part).strip() for part in parts]


def _listed(paths: Iterator[Path]) -> list[Path]:
    return sorted((path for path in paths if not path.name.startswith(".")), key=lambda path: natural_key(path.name))


Names = str | Sequence[str] | None
"""Names to take, also as one string with commas; None takes all that are there."""


def variant_folders(root: str | os.PathLike[str], scenes: Names, variants: Names) -> list[Path]:
    """The folders `Scene01/<variant>`, scene by scene."""
    base = expect_folder(root, "the folder of Scene01, Scene02 and others")
    found = [folder for folder in folders_in(base) if re.fullmatch(r"Scene[0-9]+", folder.name)]
    expect_files(len(found), "folders Scene01, Scene02 and so on", base)
    return [
        variant
        for scene in named_files(found, scenes, base)
        for variant in named_files(folders_in(scene), variants, scene)
    ]


Sample = TypeVar("Sample")
READERS = 8
"""Samples that are decoded at once."""


class InMemory(Dataset[Sample]):
    """The samples of another dataset, decoded when it is made and the same to the last bit.

    Samples lie one after another in one tensor for each of their fields, which processes that are started later share;
    8-bit images stay 8-bit there. A sample that cannot be read, or is of another size than the first one, is left where
    it is, and asked for from the dataset each time.
    """

    def __init__(self, dataset: Dataset[Sample], first: Sample) -> None:
        super().__init__(dataset.root, dataset.split)
        self.name = dataset.name  # type: ignore[misc]
        self.dataset, self.names, self._like = dataset, dataset.names, first
        self._fields = {
            name: torch.zeros(len(dataset), *packed.shape, dtype=packed.dtype)
            for name, packed in _packed(first).items()
        }
        with ThreadPoolExecutor(READERS) as readers:
            self._here: Sequence[bool] = tuple(readers.map(self._kept, range(len(dataset))))

    def _read(self, index: int) -> Sample:
        if not self._here[index]:
            return self.dataset[index]
        fields = {name: _unpacked(stored[index]) for name, stored in self._fields.items()}
        sample: Sample = dataclasses.replace(self._like, **fields, names=(self.names[index],))  # type: ignore[type-var]
        return sample

    def _kept(self, index: int) -> bool:
        """Whether a sample could be read and laid down."""
        try:
            packed = _packed(self.dataset[index])
        except (OSError, ValueError):  # an InputError is a ValueError; whoever asks for it later is told
            return False
        layout = {name: (part.shape, part.dtype) for name, part in packed.items()}
        if layout != {name: (stored.shape[1:], stored.dtype) for name, stored in self._fields.items()}:
            return False
        for name, part in packed.items():
            self._fields[name][index] = part
        return True


def in_memory(dataset: Dataset[Sample], budget: int) -> Dataset[Sample]:
    """The dataset kept in memory, if that takes no more than so many bytes; else the dataset itself."""
    first = _first(dataset) if budget else None
    if first is None:
        return dataset
    each = sum(part.numel() * part.element_size() for part in _packed(first).values())
    return InMemory(dataset, first) if each * len(dataset) <= budget else dataset


def _first(dataset: Dataset[Sample]) -> Sample | None:
    """The first sample that can be read."""
    for index in range(len(dataset)):
        try:
            return dataset[index]
        except (OSError, ValueError):
            continue
    return None


def _packed(sample: Any) -> dict[str, Tensor]:
    """The tensors of a sample by field, images in [0, 1] as 8 bits where these hold all of them."""
    found = {}
    for field in dataclasses.fields(sample):
        value = getattr(sample, field.name)
        if isinstance(value, Tensor):
            steps = (value * 255).round().clamp(0, 255).to(torch.uint8) if field.name == "image" else value
            found[field.name] = steps if field.name != "image" or torch.equal(_unpacked(steps), value) else value
    return found


def _unpacked(stored: Tensor) -> Tensor:
    """The inverse for one field; only images are of 8 bits."""
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored.clone()
