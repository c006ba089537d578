"""Registry of datasets by name, and results of other methods on them, for comparison in evaluation tables.

The module of a dataset is imported when the dataset is opened.
"""

import importlib
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from protoformer.datasets.base import Dataset
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
    _entry("nyuv2", "depth", "train val test", "test", "depth:NyuV2", "indoor rooms, 480x640"),
    _entry("rgbd", "depth", "all", "all", "depth:Rgbd", "depth camera, 16-bit millimeters"),
    _entry("kitti-eigen", "depth", "train val test", "test", "depth:KittiEigen", "streets, the Eigen split"),
    _entry("sintel-depth", "depth", "train", "train", "depth:SintelDepth", "animated short, 436x1024"),
    _entry("vkitti2-depth", "depth", "all", "all", "depth:Vkitti2Depth", "rendered streets, 375x1242"),
    _entry("own-depth", "depth", "all", "all", "manifest:ManifestDepth", "your images and depths, listed in a file"),
    _entry("lasot", "track", "train test", "test", "video:Lasot", "1,400 long clips, 70 classes"),
    _entry("trackingnet", "track", "train test", "test", "video:TrackingNet", "30,000 clips from the web"),
    _entry("otb", "track", "all", "all", "video:Otb", "100 short clips"),
    _entry("vot", "track", "all", "all", "video:Vot", "short clips of the yearly challenge"),
    _entry("own-track", "track", "all", "all", "manifest:ManifestTracking", "your clips and boxes, listed in a file"),
    _entry("deepstab", "stabilize", "all", "all", "video:DeepStab", "61 pairs of shaky and stable videos"),
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
    """Result of `check_dataset`.

    Attributes:
        num_samples: Number of samples of the dataset.
        read: Number of samples that could be read.
        broken: (name, error message) of each sample that could not.
    """

    num_samples: int
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
    from protoformer.datasets.video import count_frames

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


@dataclass(frozen=True)
class PublishedResult:
    """Scores of another method; those that were not reported are None.

    Attributes:
        label: Name of the method.
        measured_on: What it was evaluated on.
    """

    label: str
    measured_on: str


@dataclass(frozen=True)
class PublishedFlow(PublishedResult):
    """End-point error, pixels, and outliers, percent, each over all pixels and averaged per image first."""

    epe: float | None = None
    epe_per_image: float | None = None
    fl: float | None = None
    fl_per_image: float | None = None


@dataclass(frozen=True)
class PublishedDepth(PublishedResult):
    """Depth errors; row: "metric", or "not stated" if the source does not say whether depths were aligned first."""

    abs_rel: float | None = None
    sq_rel: float | None = None
    rmse: float | None = None
    delta1: float | None = None
    row: str = "metric"


@dataclass(frozen=True)
class PublishedTracking(PublishedResult):
    """Area under the success curve, and precision at 20 pixels, 0 to 1."""

    success: float | None = None
    precision: float | None = None


@dataclass(frozen=True)
class PublishedStabilization(PublishedResult):
    """Distortion and stability, 0 to 1."""

    distortion: float
    stability: float


Row = TypeVar("Row", bound=PublishedResult)


def _sintel(*rows: tuple[str, float]) -> tuple[PublishedFlow, ...]:
    """Build rows for Sintel, where the end-point error is averaged over pixels."""
    return tuple(PublishedFlow(label, "whole set", epe=epe) for label, epe in rows)


def _kitti(*rows: tuple[str, float, float]) -> tuple[PublishedFlow, ...]:
    """Build rows for KITTI, where the end-point error is averaged per image and Fl over pixels."""
    return tuple(PublishedFlow(label, "whole set", epe_per_image=epe, fl=fl) for label, epe, fl in rows)


PUBLISHED: dict[tuple[str, str], tuple[PublishedFlow, ...]] = {
    ("sintel", "clean"): _sintel(
        ("ProtoFormer, published (C+T)", 1.04),
        ("ProtoFormer, published (mix, trained on these)", 0.48),
        ("FlowFormer, published (C+T)", 1.01),
        ("RAFT, published (C+T)", 1.43),
    ),
    ("sintel", "final"): _sintel(
        ("ProtoFormer, published (C+T)", 2.43),
        ("ProtoFormer, published (mix, trained on these)", 0.69),
        ("FlowFormer, published (C+T)", 2.40),
        ("RAFT, published (C+T)", 2.71),
    ),
    ("kitti-2015", "all"): _kitti(
        ("ProtoFormer, published (C+T)", 4.08, 14.6),
        ("ProtoFormer, published (mix, trained on these)", 0.50, 1.09),
        ("FlowFormer, published (C+T)", 4.09, 14.7),
        ("RAFT, published (C+T)", 5.04, 17.4),
    ),
}
"""Results on the training set by (dataset, group), over all valid pixels including occluded ones."""


PUBLISHED_DEPTH: dict[str, tuple[PublishedDepth, ...]] = {
    "kitti-eigen": (PublishedDepth("ProtoFormer, published", "Eigen split", abs_rel=0.062, rmse=2.716, delta1=0.949),),
    "sintel-depth": (
        PublishedDepth(
            "ProtoFormer, published (alignment not stated)",
            "training set",
            abs_rel=0.594,
            sq_rel=0.538,
            rmse=0.486,
            row="not stated",
        ),
    ),
    "nyuv2": (
        PublishedDepth("Eigen 2014, published", "654 images", abs_rel=0.215, rmse=0.907, delta1=0.611),
        PublishedDepth("FastDepth, published", "654 images", rmse=0.604, delta1=0.771),
        PublishedDepth("P3Depth, published", "654 images", abs_rel=0.104, rmse=0.356, delta1=0.898),
        PublishedDepth("AdaBins, published", "654 images", abs_rel=0.103, rmse=0.364, delta1=0.903),
    ),
}
"""Results on the test split by dataset, with the evaluation protocol of the dataset."""

_WITH_UTT = ("ProtoFormer, published (with UTT)", "whole test split")
PUBLISHED_TRACKING: dict[str, tuple[PublishedTracking, ...]] = {
    "lasot": (PublishedTracking(*_WITH_UTT, success=0.648, precision=0.674),),
    "trackingnet": (PublishedTracking(*_WITH_UTT, success=0.800, precision=0.772),),
}
"""Results on the test split by dataset."""

PUBLISHED_STABILITY = (
    PublishedStabilization("ProtoFormer, published (with StabNet)", "the paper's clips", 0.85, 0.80),
    PublishedStabilization("ProtoFormer, published (with PWStableNet)", "the paper's clips", 0.82, 0.83),
)
"""Results of the paper, which does not state its clips or its cropping ratio."""


def peer_results(
    root: Path, task: str = "flow", fields: tuple[str, ...] = ("epe", "fl")
) -> dict[str, dict[str, dict[str, float]]]:
    """Read scores of other methods, method -> sample -> metric -> value, from `peers.json`; empty without it.

    The file lies in the folder of a dataset or its parent. `fields` are the metrics to read of the task: "epe" and "fl"
    for flow, "success" and "precision" for tracking. Samples are named "<folder of the dataset>/<sample>" (for tracking
    "<sample>").
    """
    for path in (root / "peers.json", root.parent / "peers.json"):
        if path.is_file():
            try:
                return {
                    str(system): {
                        str(sample): {field: float(scores[field]) for field in fields}
                        for sample, scores in samples.items()
                    }
                    for system, samples in json.loads(path.read_text()).get(task, {}).items()
                }
            except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                raise InputError(f"{path} is not a table of peers; correct or remove it.") from None
    return {}


def peer_rows(
    kind: type[Row],
    root: Path,
    task: str,
    own: Mapping[str, Mapping[str, Mapping[str, float]]],
    columns: Mapping[str, str],
) -> tuple[Row, ...]:
    """Return the mean scores of the methods in `peers.json` over the samples that they cover.

    If the peers cover only some of the samples, the means of the evaluated methods over these samples come first.

    Args:
        kind: Class of the rows.
        root: Folder of the dataset.
        task: Key of the task in the file.
        own: Scores of the evaluated methods: method -> sample -> metric of the file -> value.
        columns: Metrics of the file, and the score that holds the mean of each.
    """

    def mean_row(label: str, scores: list[Mapping[str, float]]) -> Row:
        means = {score: math.fsum(each[name] for each in scores) / len(scores) for name, score in columns.items()}
        return kind(label, f"{len(scores)} of these", **means)

    peers = peer_results(root.resolve(), task, tuple(columns))
    names = {name for samples in own.values() for name in samples}
    covered = {name for name in names if any(name in samples for samples in peers.values())}
    rows = [(label, samples) for label, samples in own.items()] if 0 < len(covered) < len(names) else []
    selected = (
        (label, [samples[name] for name in covered & samples.keys()]) for label, samples in (*rows, *peers.items())
    )
    return tuple(mean_row(label, scores) for label, scores in selected if scores)
