"""Every dataset by its name; the module that reads one is imported when it is opened."""

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protoformer.data.tree import Dataset
from protoformer.errors import InputError, nearest


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


def lazily(place: str) -> Callable[..., Dataset[Any]]:
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
    return DatasetEntry(name, task, tuple(splits.split()), default_split, lazily(f"protoformer.data.{place}"), what)


_ENTRIES = (
    _entry("flyingchairs", "flow", "train val all", "val", "flow:FlyingChairs", "chairs before photographs, 384x512"),
    _entry("flyingthings3d", "flow", "train test", "test", "flow:FlyingThings3D", "flying objects, 540x960"),
    _entry("sintel", "flow", "train test", "train", "flow:Sintel", "an animated film, 436x1024"),
    _entry("kitti-2012", "flow", "train test", "train", "flow_driving:Kitti2012", "streets, sparse truth from laser"),
    _entry("kitti-2015", "flow", "train test", "train", "flow_driving:Kitti2015", "streets with moving cars"),
    _entry("hd1k", "flow", "train test", "train", "flow_driving:Hd1k", "streets at 1080x2560"),
    _entry("vkitti2", "flow", "all", "all", "flow_driving:Vkitti2", "rendered streets, 375x1242"),
    _entry("middlebury", "flow", "all", "all", "flow:Middlebury", "indoor scenes with hidden texture"),
    _entry("own", "flow", "all", "all", "manifest:OwnFlow", "your pairs, listed in a csv or json file"),
    _entry("nyuv2", "depth", "train val test", "test", "depth:NyuV2", "indoor rooms, 480x640"),
    _entry("rgbd", "depth", "all", "all", "depth:Rgbd", "scenes before a depth camera, in millimetres"),
    _entry("kitti-eigen", "depth", "train val test", "test", "depth:KittiEigen", "streets, the Eigen split"),
    _entry("sintel-depth", "depth", "train", "train", "depth:SintelDepth", "an animated film, 436x1024"),
    _entry("vkitti2-depth", "depth", "all", "all", "depth:Vkitti2Depth", "rendered streets, 375x1242"),
    _entry("own-depth", "depth", "all", "all", "manifest:OwnDepth", "your images and depths, listed in a file"),
    _entry("lasot", "track", "train test", "test", "tracking:Lasot", "1,400 long clips of 70 classes"),
    _entry("trackingnet", "track", "train test", "test", "tracking:TrackingNet", "30,000 clips from the web"),
    _entry("otb", "track", "all", "all", "tracking:Otb", "100 short clips"),
    _entry("vot", "track", "all", "all", "tracking:Vot", "short clips of the yearly challenge"),
    _entry("own-track", "track", "all", "all", "manifest:OwnTrack", "your clips and boxes, listed in a file"),
    _entry("deepstab", "stabilize", "all", "all", "stability:DeepStab", "61 pairs of shaky and stable videos"),
    _entry("own-stabilize", "stabilize", "all", "all", "manifest:OwnStability", "your videos, listed in a file"),
)

DATASETS: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}
"""Datasets by their names, by task."""
