"""Every dataset by its name; the module that reads one is imported when it is opened."""

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protoformer.datasets.tree import Dataset
from protoformer.errors import InputError, nearest
from protoformer.io.image import read_image
from protoformer.synthetic.samples import StabilityPair, TrackSequence


@dataclass(frozen=True)
class DatasetEntry:
    """One dataset.

    task: "flow", "depth", "track" or "stabilize". default_split: the one that evaluation reads. open: takes the root,
    the split and the dataset's own options. what: a line for people.
    """

    name: str
    task: str
    splits: tuple[str, ...]
    default_split: str
    open: Callable[..., Dataset[Any]]
    what: str


def open_dataset(name: str, root: str | os.PathLike[str], split: str | None = None, /, **options: Any) -> Dataset[Any]:
    """Open a dataset by its name; `split` is the entry's default where it is left out."""
    if name not in DATASETS:
        begun = [known for known in DATASETS if name and known.startswith(name)]
        if begun:
            raise InputError(f"there is no dataset {name!r}; choose one of {', '.join(begun)}.")
        raise InputError(f"there is no dataset {name!r}; the nearest known one is {nearest(name, list(DATASETS))!r}.")
    entry = DATASETS[name]
    wanted = entry.default_split if split is None else split
    if wanted not in entry.splits:
        raise InputError(f"{name} has no split {wanted!r}; choose one of {', '.join(entry.splits)}.")
    return entry.open(root, wanted, **options)


def lazy_dataset(place: str) -> Callable[..., Dataset[Any]]:
    """Something that imports the class at "package.module:Class" when it is called, and makes one."""
    module, kind = place.split(":")

    def opened(root: str | os.PathLike[str], split: str, /, **options: Any) -> Dataset[Any]:
        made: Callable[..., Dataset[Any]] = getattr(importlib.import_module(module), kind)
        known = [option for option in inspect.signature(made).parameters if option not in ("root", "split")]
        for option in options:
            if option not in known:
                choices = f"known ones are {', '.join(known)}" if known else "it has none"
                raise InputError(f"{kind} has no option {option!r}; {choices}.")
        return made(root, split, **options)

    return opened


def _entry(name: str, task: str, splits: str, default_split: str, place: str, what: str) -> DatasetEntry:
    return DatasetEntry(
        name, task, tuple(splits.split()), default_split, lazy_dataset(f"protoformer.datasets.{place}"), what
    )


_ENTRIES = (
    _entry("flyingchairs", "flow", "train val all", "val", "flow:FlyingChairs", "chairs before photographs, 384x512"),
    _entry("flyingthings3d", "flow", "train test", "test", "flow:FlyingThings3D", "flying objects, 540x960"),
    _entry("sintel", "flow", "train test", "train", "flow:Sintel", "an animated film, 436x1024"),
    _entry("kitti-2012", "flow", "train test", "train", "flow:Kitti2012", "streets, sparse truth from laser"),
    _entry("kitti-2015", "flow", "train test", "train", "flow:Kitti2015", "streets with moving cars"),
    _entry("hd1k", "flow", "train test", "train", "flow:Hd1k", "streets at 1080x2560"),
    _entry("vkitti2", "flow", "all", "all", "flow:Vkitti2", "rendered streets, 375x1242"),
    _entry("middlebury", "flow", "all", "all", "flow:Middlebury", "indoor scenes with hidden texture"),
    _entry("own", "flow", "all", "all", "manifest:ManifestFlow", "your pairs, listed in a csv or json file"),
    _entry("nyuv2", "depth", "train val test", "test", "depth_indoor:NyuV2", "indoor rooms, 480x640"),
    _entry("rgbd", "depth", "all", "all", "depth_indoor:Rgbd", "scenes before a depth camera, in millimeters"),
    _entry("kitti-eigen", "depth", "train val test", "test", "depth:KittiEigen", "streets, the Eigen split"),
    _entry("sintel-depth", "depth", "train", "train", "depth:SintelDepth", "an animated film, 436x1024"),
    _entry("vkitti2-depth", "depth", "all", "all", "depth:Vkitti2Depth", "rendered streets, 375x1242"),
    _entry("own-depth", "depth", "all", "all", "manifest:ManifestDepth", "your images and depths, listed in a file"),
    _entry("lasot", "track", "train test", "test", "tracking:Lasot", "1,400 long clips of 70 classes"),
    _entry("trackingnet", "track", "train test", "test", "tracking:TrackingNet", "30,000 clips from the web"),
    _entry("otb", "track", "all", "all", "tracking:Otb", "100 short clips"),
    _entry("vot", "track", "all", "all", "tracking:Vot", "short clips of the yearly challenge"),
    _entry("own-track", "track", "all", "all", "manifest:ManifestTracking", "your clips and boxes, listed in a file"),
    _entry("deepstab", "stabilize", "all", "all", "stabilization:DeepStab", "61 pairs of shaky and stable videos"),
    _entry(
        "own-stabilize", "stabilize", "all", "all", "manifest:ManifestStabilization", "your videos, listed in a file"
    ),
)

DATASETS: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}
"""Datasets by their names, by task."""


@dataclass(frozen=True)
class CheckReport:
    """What a dataset on disk is worth.

    found: samples that it lists. read: those that could be read. broken: (name, sentence) of each that could not,
    because a file of it is missing or damaged.
    """

    found: int
    read: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OpenedSplits:
    """The splits of a dataset that are on the disk, and for each of the others a sentence on what is missing."""

    there: dict[str, Dataset[Any]]
    missing: dict[str, str]


def open_splits(name: str, root: str | os.PathLike[str], split: str | None = None, /, **options: Any) -> OpenedSplits:
    """Open one split, or without a name all of them: "all" where a dataset has it. Fails where there is none."""
    if split is None and name in DATASETS:
        known = DATASETS[name].splits
        wanted: tuple[str | None, ...] = ("all",) if "all" in known else known
    else:
        wanted = (split,)
    there, missing, first = {}, {}, None
    for each in wanted:
        try:
            dataset = open_dataset(name, root, each, **options)
            there[dataset.split] = dataset
        except InputError as error:
            first = first or error
            missing[str(each)] = str(error)
    if first is not None and not there:
        raise first
    return OpenedSplits(there, missing)


def check_dataset(dataset: Dataset[Any], progress: Callable[[int, int], object] | None = None) -> CheckReport:
    """Read every sample with all its frames, going on after one that is broken.

    `progress` is called with (done, total) after each.
    """
    broken = []
    for index, name in enumerate(dataset.names):
        try:
            _read_whole(dataset, index)
        except InputError as error:
            broken.append((name, str(error)))
        if progress is not None:
            progress(index + 1, len(dataset))
    return CheckReport(len(dataset), len(dataset) - len(broken), tuple(broken))


def _read_whole(dataset: Dataset[Any], index: int) -> None:
    """Read one sample, and the images that it only names; fails at the first that is broken."""
    # Imported here, as knowing the datasets should not import those who read them.
    from protoformer.datasets.stabilization import count_frames

    sample = dataset[index]
    if isinstance(sample, TrackSequence):
        for frame in sample.frames:
            read_image(frame)
    # A length that was not taken from a header has been counted by decoding every frame.
    if isinstance(sample, StabilityPair) and getattr(dataset, "trust_headers", False):
        for video in (sample.unstable, sample.stable):
            if video is not None and (decoded := count_frames(video)) < sample.frames:
                raise InputError(
                    f"{video} has {decoded} frames that can be read, but {sample.frames} are declared; "
                    "make or download it again, or leave out trust_headers."
                )
