"""Base classes of datasets on disk, and helpers that list, check and read their files.

A dataset lists its files when it is opened and reads a sample when it is indexed. A missing folder raises `InputError`
when the dataset is opened; a missing or damaged file does so when its sample is read.
"""

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.io.files import PathLike, is_file, is_folder, natural_key, open_input, system_reason
from protoformer.io.formats import FloatArray, SparseFlow, read_flo, read_pfm_flow, valid_flow
from protoformer.io.image import read_image
from protoformer.synthetic.samples import DepthSample, FlowPair, FlowSample

S = TypeVar("S", covariant=True)

IMAGES = (".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".webp")
"""Suffixes of image files."""


class Dataset(ABC, Generic[S]):
    """Samples of one split of a dataset on disk. The constructor of a subclass lists them and sets `names`.

    Attributes:
        name: Name of the dataset.
        splits: Names of its splits; empty: any.
        root: Folder (or file) of the dataset.
        split: Name of the split.
        names: Name of each sample.
    """

    name: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ()
    root: Path
    split: str
    names: tuple[str, ...]

    def __init__(self, root: PathLike, split: str) -> None:
        self.root, self.split, self.names = Path(root), split, ()
        if self.splits:
            choose("the split", split, self.splits)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> S:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} samples; index {index} is out of range.")
        return self._read(index)

    def __iter__(self) -> Iterator[S]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def _read(self, index: int) -> S:
        """Read one sample, 0 <= index < len(self), or raise `InputError`."""


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """List the files of a folder that match a glob pattern, in natural order, without dotfiles."""
    return _sort_visible(path for path in folder.glob(pattern) if path.is_file())


def folders_in(folder: Path) -> list[Path]:
    """List the folders in a folder, in natural order, without dotfiles."""
    try:
        return _sort_visible(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({system_reason(error)}); check its permissions.") from None


def numbered_files(folder: Path, suffixes: Collection[str] = IMAGES) -> dict[int, Path]:
    """Map the last number in each file name (2 for frame_0002.png) to its path, in ascending order."""
    files = {}
    for path in files_in(folder):
        numbers = re.findall(r"[0-9]+", path.stem)
        if numbers and path.suffix.lower() in suffixes:
            files[int(numbers[-1])] = path
    return dict(sorted(files.items()))


def select_folders(folders: list[Path], names: str | Sequence[str] | None, parent: Path) -> list[Path]:
    """Select folders of `parent` by their names, a sequence or one comma-separated string; None selects all."""
    if names is None:
        return folders
    requested = _split_commas(names)
    available = [folder.name for folder in folders]
    for name in requested:
        if name not in available:
            raise InputError(f"{parent} holds no {name}; choose among {', '.join(available)}.")
    return [folder for folder in folders if folder.name in requested]


def read_text(path: Path) -> str:
    """Read a UTF-8 text file, dropping a byte order mark and replacing bytes that cannot be decoded."""
    with open_input(path) as file:
        return file.read().decode("utf-8-sig", errors="replace")


def choose(option: str, value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise raise an `InputError` that lists them."""
    if value not in choices:
        raise InputError(f"{option} is {value!r}; choose one of {', '.join(choices)}.")
    return value


def parse_integers(option: str, value: str | int | Sequence[str | int]) -> list[int]:
    """Parse non-negative integers from a comma-separated string, a single number or a sequence."""
    words = [str(value)] if isinstance(value, int) else _split_commas(value)
    if not words or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(f"{option} is {value!r}; give whole numbers with commas between them, such as 0,3.")
    return [int(word) for word in words]


def parse_bool(option: str, value: str | bool) -> bool:
    """Parse a boolean option that may be given as "true", "false", "1" or "0"."""
    return choose(option, str(value).strip().lower(), ("true", "false", "1", "0")) in ("true", "1")


def expect_folder(path: PathLike, what: str, root: Path | None = None) -> Path:
    """Return the path of an existing folder, or raise `InputError`.

    Args:
        path: The folder.
        what: What the folder holds, for the error message.
        root: Root of the dataset, for the hint in the error message.
    """
    folder = Path(path)
    if not is_folder(folder):
        _expect_root(root, f"{_relative_path(folder, root)}/", what)
        state = "is a file" if is_file(folder) else "does not exist"
        raise InputError(
            f"{folder} {state}, but {what} was expected there as a folder; {_root_hint(folder, root, '/')}."
        )
    return folder


def expect_file(path: PathLike, what: str, root: Path | None = None) -> Path:
    """Return the path of an existing file, or raise `InputError`; arguments as in `expect_folder`."""
    file = Path(path)
    if not is_file(file):
        _expect_root(root, str(_relative_path(file, root)), what)
        state = "is a folder" if is_folder(file) else "does not exist"
        raise InputError(
            f"{file} {state}, but {what} was expected there as a file; put it there, or {_root_hint(file, root)}."
        )
    return file


def expect_equal_counts(counts: Mapping[str, int], where: Path) -> None:
    """Raise `InputError` unless all counts, such as {"images": 10, "flows": 9}, are equal."""
    if len(set(counts.values())) > 1:
        listing = " but ".join(f"{count} {what}" for what, count in counts.items())
        raise InputError(f"{where} holds {listing}, which belong together one to one; download or copy it again.")


def expect_matching_files(files: Mapping[str, Iterable[str]], where: Path) -> None:
    """Raise `InputError` unless every stem exists with every ending.

    Args:
        files: Stems by ending, such as {"img1.ppm": stems, "img2.ppm": stems}; a file is named `<stem>_<ending>`.
        where: The folder, for the error message.
    """
    stems = {ending: set(names) for ending, names in files.items()}
    for stem in sorted(set().union(*stems.values()), key=natural_key):
        for ending, names in stems.items():
            if stem not in names:
                partner = next(other for other, others in stems.items() if stem in others)
                counts = " but ".join(f"{len(each)} files *_{other}" for other, each in stems.items())
                raise InputError(
                    f"{where} holds {counts}, which belong together one to one: {stem}_{ending} is missing beside "
                    f"{stem}_{partner}; download or copy it again."
                )


def expect_files(count: int, what: str, where: Path) -> None:
    """Raise `InputError` if a listing of `what` in `where` is empty."""
    if not count:
        raise InputError(f"{where} holds no {what}; check that the whole dataset was unpacked there.")


def _expect_root(root: Path | None, below: str, what: str) -> None:
    """Raise `InputError` if a path below the root is missing because the root itself does not exist."""
    if root is not None and below not in (".", "./") and not root.is_dir():
        state = "is a file" if root.is_file() else "does not exist"
        raise InputError(
            f"{root} {state}; point --root at the folder where the dataset was unpacked, which holds {below} ({what})."
        )


def _root_hint(path: Path, root: Path | None, ending: str = "") -> str:
    """Return a hint on which folder to pass as `--root`."""
    below = _relative_path(path, root)
    if below == Path():
        return "point --root at the folder where it was unpacked"
    return f"point --root, which is {root}, at the folder that holds {below}{ending}"


def _relative_path(path: Path, root: Path | None) -> Path:
    """Return a path relative to the root; the empty path if it is the root or lies outside it."""
    return path.relative_to(root) if root is not None and path.is_relative_to(root) else Path()


def _split_commas(value: str | Sequence[str | int]) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    return [str(part).strip() for part in parts]


def _sort_visible(paths: Iterator[Path]) -> list[Path]:
    return sorted((path for path in paths if not path.name.startswith(".")), key=lambda path: natural_key(path.name))


Names = str | Sequence[str] | None
"""Names to select, or one comma-separated string; None selects all."""


def variant_folders(root: PathLike, scenes: Names, variants: Names) -> list[Path]:
    """List the folders `Scene01/<variant>` of Virtual KITTI 2, scene by scene."""
    base = expect_folder(root, "the folder of Scene01, Scene02 and others")
    folders = [folder for folder in folders_in(base) if re.fullmatch(r"Scene[0-9]+", folder.name)]
    expect_files(len(folders), "folders Scene01, Scene02 and so on", base)
    return [
        variant
        for scene in select_folders(folders, scenes, base)
        for variant in select_folders(folders_in(scene), variants, scene)
    ]


Sample = TypeVar("Sample")
NUM_READERS = 8
"""Number of threads that decode samples in parallel."""


class InMemory(Dataset[Sample]):
    """A dataset whose samples are decoded once and kept in memory, bit-identical to the original.

    Each field of the samples is stored in one tensor, which worker processes started later share; 8-bit images are
    stored as uint8. A sample that cannot be read, or differs in size from the first one, is read from the original
    dataset each time.

    Args:
        dataset: The original dataset.
        first: A sample of it, which defines the fields and their shapes.
    """

    def __init__(self, dataset: Dataset[Sample], first: Sample) -> None:
        super().__init__(dataset.root, dataset.split)
        self.name = dataset.name  # type: ignore[misc]
        self.dataset, self.names, self._template = dataset, dataset.names, first
        self._fields = {
            name: torch.zeros(len(dataset), *packed.shape, dtype=packed.dtype) for name, packed in _pack(first).items()
        }
        with ThreadPoolExecutor(NUM_READERS) as executor:
            self._in_memory: Sequence[bool] = tuple(executor.map(self._store, range(len(dataset))))

    def _read(self, index: int) -> Sample:
        if not self._in_memory[index]:
            return self.dataset[index]
        fields = {name: _unpack(stored[index]) for name, stored in self._fields.items()}
        sample: Sample = dataclasses.replace(self._template, **fields, names=(self.names[index],))  # type: ignore[type-var]
        return sample

    def _store(self, index: int) -> bool:
        """Read a sample into memory; return False if it cannot be read or has a different layout."""
        try:
            packed = _pack(self.dataset[index])
        except (OSError, ValueError):  # InputError is a ValueError; indexing raises it again
            return False
        layout = {name: (part.shape, part.dtype) for name, part in packed.items()}
        if layout != {name: (stored.shape[1:], stored.dtype) for name, stored in self._fields.items()}:
            return False
        for name, part in packed.items():
            self._fields[name][index] = part
        return True


def in_memory(dataset: Dataset[Sample], budget: int) -> Dataset[Sample]:
    """Return an in-memory copy of a dataset if it takes at most `budget` bytes; otherwise the dataset itself."""
    first = _first_readable(dataset) if budget else None
    if first is None:
        return dataset
    sample_bytes = sum(part.numel() * part.element_size() for part in _pack(first).values())
    return InMemory(dataset, first) if sample_bytes * len(dataset) <= budget else dataset


def _first_readable(dataset: Dataset[Sample]) -> Sample | None:
    """Return the first sample that can be read, or None."""
    for index in range(len(dataset)):
        try:
            return dataset[index]
        except (OSError, ValueError):
            continue
    return None


def _pack(sample: Any) -> dict[str, Tensor]:
    """Return the tensors of a sample by field; images in [0, 1] become uint8 where that is lossless."""
    packed = {}
    for field in dataclasses.fields(sample):
        value = getattr(sample, field.name)
        if isinstance(value, Tensor):
            steps = (value * 255).round().clamp(0, 255).to(torch.uint8) if field.name == "image" else value
            packed[field.name] = steps if field.name != "image" or torch.equal(_unpack(steps), value) else value
    return packed


def _unpack(stored: Tensor) -> Tensor:
    """Invert `_pack` for one field; only images are uint8."""
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored.clone()


class FlowReader(Protocol):
    """Reads a flow file: (u right, v down) in pixels, and the valid mask."""

    def __call__(self, path: Path, /) -> SparseFlow: ...


@dataclass(frozen=True, kw_only=True)
class PairFiles:
    """Files of one pair; optional files are None where the dataset has none.

    Attributes:
        name: Name of the pair.
        first: First image.
        second: Second image.
        flow: Flow from the first to the second image; None if the ground truth is not public.
        occlusion: Mask, white where a pixel is occluded. Pixels that leave the image are added when it is read.
        valid: Mask, white where the flow is valid.
        invalid: Mask, white where the flow is not valid.
    """

    name: str
    first: Path
    second: Path
    flow: Path | None = None
    occlusion: Path | None = None
    valid: Path | None = None
    invalid: Path | None = None


class FlowDataset(Dataset[FlowPair]):
    """Image pairs with flow (`FlowSample`), or without (`FlowPair`) where the ground truth is not public.

    The constructor of a subclass calls `_set_pairs`.

    Attributes:
        read_flow: Reader of the flow files.
        pairs: Files of each pair.
    """

    read_flow: ClassVar[FlowReader]
    pairs: tuple[PairFiles, ...]

    def _set_pairs(self, pairs: Iterable[PairFiles]) -> None:
        self.pairs = tuple(pairs)
        self.names = tuple(pair.name for pair in self.pairs)

    def _read(self, index: int) -> FlowPair:
        pair = self.pairs[index]
        for path, what in (
            (pair.first, "first image"),
            (pair.second, "second image"),
            (pair.flow, "flow"),
            (pair.occlusion, "occlusion"),
            (pair.valid, "mask of valid pixels"),
            (pair.invalid, "mask of invalid pixels"),
        ):
            if path is not None:
                expect_file(path, f"the {what} of {pair.name}", self.root)
        return read_pair(pair, type(self).read_flow)


def read_pair(pair: PairFiles, read_flow: FlowReader) -> FlowPair:
    """Read a pair with its flow and masks, as far as they exist: a `FlowSample`, or a `FlowPair` without flow."""
    first = image_tensor(pair.first)
    size = (first.shape[2], first.shape[3])
    second = image_tensor(pair.second)
    _expect_size(second, size, pair.second, pair.first)
    if pair.flow is None:
        return FlowPair(first=first, second=second, names=(pair.name,))
    stored = read_flow(pair.flow)
    flow = torch.from_numpy(stored.flow).permute(2, 0, 1)[None].contiguous()
    _expect_size(flow, size, pair.flow, pair.first)
    valid = torch.from_numpy(stored.valid)[None, None].clone()
    if pair.valid is not None:
        valid &= _read_mask(pair.valid, size, pair.first)
    if pair.invalid is not None:
        valid &= ~_read_mask(pair.invalid, size, pair.first)
    flow = torch.where(valid, flow, 0.0)
    occlusion = None
    if pair.occlusion is not None:
        # Masks on disk, such as those of Sintel, need not mark pixels that leave the image; those of a sample do.
        leaves_image = valid & ~inside_image(pixel_grid(*size) + flow, *size)
        occlusion = _read_mask(pair.occlusion, size, pair.first) | leaves_image
    return FlowSample(
        first=first,
        second=second,
        flow=flow,
        valid=valid,
        occlusion=occlusion,
        names=(pair.name,),
    )


def image_tensor(path: Path) -> Tensor:
    """Read an image: 1 x 3 x H x W, float RGB in [0, 1]."""
    return torch.from_numpy(read_image(path)).permute(2, 0, 1)[None].contiguous()


def mask_tensor(path: Path) -> Tensor:
    """Read a binary mask: 1 x 1 x H x W, bool, True where the image is white."""
    return torch.from_numpy(read_image(path).max(axis=2) >= 0.5)[None, None]


def read_dense_flo(path: Path) -> SparseFlow:
    """Read a `.flo` file and its valid mask."""
    return _split_valid(read_flo(path))


def read_dense_pfm(path: Path) -> SparseFlow:
    """Read the first two channels of a `.pfm` file and their valid mask."""
    return _split_valid(read_pfm_flow(path))


def _split_valid(flow: FloatArray) -> SparseFlow:
    """Split an HxWx2 flow, unknown where it is not finite or beyond 1e9, into flow and valid mask."""
    valid = valid_flow(flow)
    return SparseFlow(np.where(valid[..., None], flow, np.float32(0)), valid)


def _read_mask(path: Path, size: tuple[int, int], image: Path) -> Tensor:
    mask = mask_tensor(path)
    _expect_size(mask, size, path, image)
    return mask


def _expect_size(tensor: Tensor, size: tuple[int, int], path: Path, image: Path) -> None:
    height, width = tensor.shape[2:]
    if (height, width) != size:
        raise InputError(
            f"{path} is {width}x{height} but {image} is {size[1]}x{size[0]}; the files of a pair must have one size: "
            "download or make them again."
        )


def depth_record(
    name: str,
    image: FloatArray,
    depth: FloatArray,
    intrinsics: Tensor | None,
    farthest: float = float("inf"),
) -> DepthSample:
    """Build a depth sample. Depth is valid where it is finite, positive and below `farthest`, and 0 elsewhere.

    `image` is H x W x 3 in [0, 1]; `depth` is H x W, in meters; `intrinsics` are 3 x 3, in pixels, or None.
    """
    if image.shape[:2] != depth.shape:
        raise InputError(
            f"the image of {name} is {image.shape[1]}x{image.shape[0]} but its depth is "
            f"{depth.shape[1]}x{depth.shape[0]}; download or copy both again."
        )
    meters = torch.from_numpy(np.ascontiguousarray(depth, dtype=np.float32))[None, None]
    valid = meters.isfinite() & (meters > 0) & (meters < farthest)
    return DepthSample(
        image=torch.from_numpy(image).permute(2, 0, 1)[None].contiguous(),
        depth=meters.where(valid, 0.0),
        valid=valid,
        intrinsics=None if intrinsics is None else intrinsics.float()[None],
        names=(name,),
    )


def pinhole(fx: float, fy: float, cx: float, cy: float) -> Tensor:
    """Return intrinsics, 3 x 3 in pixels, with the center of the first pixel at (0, 0)."""
    return torch.tensor([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])


def pair_names(folder: Path, root: Path) -> list[str]:
    """List the stems of rgb/*.jpg and depth/*.png; reading a sample fails if one of its two files is missing."""
    images = files_in(expect_folder(folder / "rgb", "the folder of images", root), "*.jpg")
    depths = files_in(expect_folder(folder / "depth", "the folder of depths", root), "*.png")
    expect_files(len(images), "images rgb/*.jpg", folder)
    return sorted({path.stem for path in images + depths}, key=natural_key)
