"""Numbers that others published, to stand beside measured ones."""

import json
from dataclasses import dataclass
from pathlib import Path

from protoformer.errors import InputError


@dataclass(frozen=True)
class PublishedFlow:
    """Another system's row: what it was measured on, and its figures in the mean they were taken by (None: not given).

    epe and fl are over pixels, epe_per_image and fl_per_image means of each image's own; pixels and percent.
    """

    label: str
    measured_on: str
    epe: float | None = None
    epe_per_image: float | None = None
    fl: float | None = None
    fl_per_image: float | None = None


def _sintel(*rows: tuple[str, float]) -> tuple[PublishedFlow, ...]:
    """Sintel's tables are means over pixels."""
    return tuple(PublishedFlow(label, "whole set", epe=epe) for label, epe in rows)


def _kitti(*rows: tuple[str, float, float]) -> tuple[PublishedFlow, ...]:
    """On KITTI it is usual to average the end-point error by image, and Fl over pixels."""
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
"""By dataset and group: figures on the whole training set, all its pixels known, occluded ones too."""


@dataclass(frozen=True)
class PublishedDepth:
    """Another system's depth: what it was measured on, and its figures (None: not given).

    row: how it was scored, "metric", or "not stated" where nobody says whether depths were aligned first.
    """

    label: str
    measured_on: str
    abs_rel: float | None = None
    sq_rel: float | None = None
    rmse: float | None = None
    delta1: float | None = None
    row: str = "metric"


PUBLISHED_DEPTH: dict[str, tuple[PublishedDepth, ...]] = {
    "kitti-eigen": (PublishedDepth("ProtoFormer, published", "Eigen split", abs_rel=0.062, rmse=2.716, delta1=0.949),),
    "sintel-depth": (
        PublishedDepth(
            *("ProtoFormer, published (alignment not stated)", "training set"),
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
"""By dataset: figures on its test split, by its own rules."""


@dataclass(frozen=True)
class PublishedTracking:
    """Another tracker's row: what it was measured on, and its figures as shares, 0 to 1 (None: not given)."""

    label: str
    measured_on: str
    success: float | None = None
    precision: float | None = None


PUBLISHED_TRACKING: dict[str, tuple[PublishedTracking, ...]] = {
    "lasot": (PublishedTracking("ProtoFormer, published (with UTT)", "whole test split", 0.648, 0.674),),
    "trackingnet": (PublishedTracking("ProtoFormer, published (with UTT)", "whole test split", 0.800, 0.772),),
}
"""By dataset: figures on its test split."""


@dataclass(frozen=True)
class PublishedStabilization:
    """Another system's steady clips: what they were measured on, and its figures as shares, 0 to 1."""

    label: str
    measured_on: str
    distortion: float
    stability: float


PUBLISHED_STABILITY = (
    PublishedStabilization("ProtoFormer, published (with StabNet)", "the paper's clips", 0.85, 0.80),
    PublishedStabilization("ProtoFormer, published (with PWStableNet)", "the paper's clips", 0.82, 0.83),
)
"""The paper names neither its clips nor its cropping."""


def peer_results(
    root: Path, task: str = "flow", fields: tuple[str, ...] = ("epe", "fl")
) -> dict[str, dict[str, dict[str, float]]]:
    """What known systems score on each sample, from `peers.json` in the dataset's folder or beside it; {} if none.

    Systems by name, then samples by "<folder of the dataset>/<name of the sample>" (of tracking, by the name alone),
    then the fields: those of flow are "epe" and "fl", those of tracking "success" and "precision".
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
                raise InputError(f"{path} is not a table of peers; mend it or take it away.") from None
    return {}
