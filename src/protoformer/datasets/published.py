"""Results of other methods, for comparison in evaluation tables."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protoformer.errors import InputError


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
