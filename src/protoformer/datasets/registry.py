"""Registry of datasets by name. The module of a dataset is imported when the dataset is opened."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protoformer.datasets.tree import Dataset
from protoformer.errors import InputError, closest_name
from protoformer.io.files import PathLike
from protoformer.io.image import read_image
from protoformer.synthetic.samples import StabilityPair, TrackSequence


@dataclass(frozen=True)
class DatasetEntry:
    """Description of one dataset.

    Attributes:
        name: Name of the dataset.
        task: "flow", "depth", "track", "stabilize" or "segment".
        splits: Names of the splits.
        default_split: Split that evaluation uses.
        open: Opens the dataset from the root, the split and the options of the dataset.
        description: One-line description.
    """

    name: str
    task: str
    splits: tuple[str, ...]
    default_split: str
    open: Callable[..., Dataset[Any]]
    description: str


def open_dataset(name: str, root: PathLike, split: str | None = None, /, **options: Any) -> Dataset[Any]:
    """Open a dataset by name.

    Args:
        name: A key of `DATASETS`.
        root: Folder of the dataset.
        split: Name of the split; None selects the default split.
        **options: Options of the dataset, such as `render_pass`.
    """
    if name not in DATASETS:
        matches = [known for known in DATASETS if name and known.startswith(name)]
        if matches:
            raise InputError(f"there is no dataset {name!r}; choose one of {', '.join(matches)}.")
        raise InputError(
            f"there is no dataset {name!r}; the nearest known one is {closest_name(name, list(DATASETS))!r}."
        )
    entry = DATASETS[name]
    split_name = entry.default_split if split is None else split
    if split_name not in entry.splits:
        raise InputError(f"{name} has no split {split_name!r}; choose one of {', '.join(entry.splits)}.")
    return entry.open(root, split_name, **options)


def lazy_dataset(target: str) -> Callable[..., Dataset[Any]]:
    """Return a function that imports the dataset class "package.module:Class" when called, and instantiates it."""
    module, class_name = target.split(":")

    def open_lazily(root: PathLike, split: str, /, **options: Any) -> Dataset[Any]:
        dataset_class: Callable[..., Dataset[Any]] = getattr(importlib.import_module(module), class_name)
        known_options = [
            option for option in inspect.signature(dataset_class).parameters if option not in ("root", "split")
        ]
        for option in options:
            if option not in known_options:
                choices = f"known ones are {', '.join(known_options)}" if known_options else "it has none"
                raise InputError(f"{class_name} has no option {option!r}; {choices}.")
        return dataset_class(root, split, **options)

    return open_lazily


def _entry(name: str, task: str, splits: str, default_split: str, target: str, what: str) -> DatasetEntry:
    return DatasetEntry(
        name, task, tuple(splits.split()), default_split, lazy_dataset(f"protoformer.datasets.{target}"), what
    )


_ENTRIES = (
    _entry("flyingchairs", "flow", "train val all", "val", "flow:FlyingChairs", "chairs over photographs, 384x512"),
    _entry("flyingthings3d", "flow", "train test", "test", "flow:FlyingThings3D", "flying objects, 540x960"),
    _entry("sintel", "flow", "train test", "train", "flow:Sintel", "animated short, 436x1024"),
    _entry("kitti-2012", "flow", "train test", "train", "flow:Kitti2012", "streets, sparse lidar ground truth"),
    _entry("kitti-2015", "flow", "train test", "train", "flow:Kitti2015", "streets with moving cars"),
    _entry("hd1k", "flow", "train test", "train", "flow:Hd1k", "streets at 1080x2560"),
    _entry("vkitti2", "flow", "all", "all", "flow:Vkitti2", "rendered streets, 375x1242"),
    _entry("middlebury", "flow", "all", "all", "flow:Middlebury", "indoor scenes with hidden texture"),
    _entry("own", "flow", "all", "all", "manifest:ManifestFlow", "your pairs, listed in a csv or json file"),
    _entry("nyuv2", "depth", "train val test", "test", "depth_indoor:NyuV2", "indoor rooms, 480x640"),
    _entry("rgbd", "depth", "all", "all", "depth_indoor:Rgbd", "depth camera, 16-bit millimeters"),
    _entry("kitti-eigen", "depth", "train val test", "test", "depth:KittiEigen", "streets, the Eigen split"),
    _entry("sintel-depth", "depth", "train", "train", "depth:SintelDepth", "animated short, 436x1024"),
    _entry("vkitti2-depth", "depth", "all", "all", "depth:Vkitti2Depth", "rendered streets, 375x1242"),
    _entry("own-depth", "depth", "all", "all", "manifest:ManifestDepth", "your images and depths, listed in a file"),
    _entry("lasot", "track", "train test", "test", "tracking:Lasot", "1,400 long clips, 70 classes"),
    _entry("trackingnet", "track", "train test", "test", "tracking:TrackingNet", "30,000 clips from the web"),
    _entry("otb", "track", "all", "all", "tracking:Otb", "100 short clips"),
    _entry("vot", "track", "all", "all", "tracking:Vot", "short clips of the yearly challenge"),
    _entry("own-track", "track", "all", "all", "manifest:ManifestTracking", "your clips and boxes, listed in a file"),
    _entry("deepstab", "stabilize", "all", "all", "stabilization:DeepStab", "61 pairs of shaky and stable videos"),
    _entry("davis-2016", "segment", "train val all", "val", "segmentation:Davis2016", "50 clips, one foreground mask"),
    _entry("davis-2017", "segment", "train val all", "val", "segmentation:Davis2017", "90 clips, several objects"),
    _entry(
        "own-stabilize", "stabilize", "all", "all", "manifest:ManifestStabilization", "your videos, listed in a file"
    ),
)

DATASETS: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}
"""Datasets by name, grouped by task."""


@dataclass(frozen=True)
class CheckReport:
    """Result of `check_dataset`: numbers of samples, and (name, error message) of each broken one."""

    found: int
    read: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OpenedSplits:
    """Result of `open_splits`: the opened splits, and the error message of each missing one, by name."""

    opened: dict[str, Dataset[Any]]
    missing: dict[str, str]


def open_splits(name: str, root: PathLike, split: str | None = None, /, **options: Any) -> OpenedSplits:
    """Open one split of a dataset, or all of its splits.

    Args:
        name: A key of `DATASETS`.
        root: Folder of the dataset.
        split: Name of the split; None opens "all" if the dataset has it, otherwise every split.
        **options: Options of the dataset.
    """
    if split is None and name in DATASETS:
        splits = DATASETS[name].splits
        requested: tuple[str | None, ...] = ("all",) if "all" in splits else splits
    else:
        requested = (split,)
    opened, missing, first_error = {}, {}, None
    for split_name in requested:
        try:
            dataset = open_dataset(name, root, split_name, **options)
            opened[dataset.split] = dataset
        except InputError as error:
            first_error = first_error or error
            missing[str(split_name)] = str(error)
    if first_error is not None and not opened:
        raise first_error
    return OpenedSplits(opened, missing)


def check_dataset(dataset: Dataset[Any], progress: Callable[[int, int], object] | None = None) -> CheckReport:
    """Read every sample with all its frames, continuing after errors; progress gets (done, total) after each."""
    broken = []
    for index, name in enumerate(dataset.names):
        try:
            _read_all_frames(dataset, index)
        except InputError as error:
            broken.append((name, str(error)))
        if progress is not None:
            progress(index + 1, len(dataset))
    return CheckReport(len(dataset), len(dataset) - len(broken), tuple(broken))


def _read_all_frames(dataset: Dataset[Any], index: int) -> None:
    """Read one sample, including the frames that it refers to by path."""
    # Imported here, so that the registry does not import the dataset readers.
    from protoformer.datasets.segmentation import MaskSequence, read_labels
    from protoformer.datasets.stabilization import count_frames

    sample = dataset[index]
    if isinstance(sample, (TrackSequence, MaskSequence)):
        for frame in sample.frames:
            read_image(frame)
    if isinstance(sample, MaskSequence):
        for mask in sample.masks:
            if mask is not None:
                read_labels(mask)
    # Without trust_headers the frames were counted by decoding all of them.
    if isinstance(sample, StabilityPair) and getattr(dataset, "trust_headers", False):
        for video in (sample.unstable, sample.stable):
            if video is not None and (decoded := count_frames(video)) < sample.frames:
                raise InputError(
                    f"{video} has {decoded} frames that can be read, but {sample.frames} are declared; "
                    "make or download it again, or leave out trust_headers."
                )
