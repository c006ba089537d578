"""Published results of other methods, for comparison in evaluation tables."""

import json
from dataclasses import dataclass
from pathlib import Path

from protoformer.errors import InputError


@dataclass(frozen=True)
class PublishedFlow:
    """Published optical flow result; None where a metric was not reported.

    Attributes:
        label: Name of the method.
        measured_on: What it was evaluated on.
        epe: End-point error averaged over pixels, in pixels.
        epe_per_image: End-point error averaged per image first, in pixels.
        fl: Outliers over all pixels, in percent.
        fl_per_image: Outliers averaged per image first, in percent.
    """

    label: str
    measured_on: str
    epe: float | None = None
    epe_per_image: float | None = None
    fl: float | None = None
    fl_per_image: float | None = None


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


@dataclass(frozen=True)
class PublishedDepth:
    """Published depth result; None where a metric was not reported.

    Attributes:
        label: Name of the method.
        measured_on: What it was evaluated on.
        abs_rel: Absolute relative error.
        sq_rel: Squared relative error, in meters.
        rmse: Root mean square error, in meters.
        delta1: Fraction of pixels within a factor of 1.25.
        row: "metric", or "not stated" if the source does not say whether depths were aligned first.
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
"""Results on the test split by dataset, with the evaluation protocol of the dataset."""


@dataclass(frozen=True)
class PublishedTracking:
    """Published tracking result; None where a metric was not reported.

    Attributes:
        label: Name of the method.
        measured_on: What it was evaluated on.
        success: Area under the success curve, 0 to 1.
        precision: Precision at 20 pixels, 0 to 1.
    """

    label: str
    measured_on: str
    success: float | None = None
    precision: float | None = None


PUBLISHED_TRACKING: dict[str, tuple[PublishedTracking, ...]] = {
    "lasot": (PublishedTracking("ProtoFormer, published (with UTT)", "whole test split", 0.648, 0.674),),
    "trackingnet": (PublishedTracking("ProtoFormer, published (with UTT)", "whole test split", 0.800, 0.772),),
}
"""Results on the test split by dataset."""


@dataclass(frozen=True)
class PublishedStabilization:
    """Published stabilization result.

    Attributes:
        label: Name of the method.
        measured_on: What it was evaluated on.
        distortion: Distortion score, 0 to 1.
        stability: Stability score, 0 to 1.
    """

    label: str
    measured_on: str
    distortion: float
    stability: float


PUBLISHED_STABILITY = (
    PublishedStabilization("ProtoFormer, published (with StabNet)", "the paper's clips", 0.85, 0.80),
    PublishedStabilization("ProtoFormer, published (with PWStableNet)", "the paper's clips", 0.82, 0.83),
)
"""Results of the paper, which does not state its clips or its cropping ratio."""


def peer_results(
    root: Path, task: str = "flow", fields: tuple[str, ...] = ("epe", "fl")
) -> dict[str, dict[str, dict[str, float]]]:
    """Read per-sample scores of other methods from `peers.json` in the folder of a dataset or its parent.

    Args:
        root: Folder of the dataset.
        task: Key of the task in the file.
        fields: Metrics to read: "epe" and "fl" for flow, "success" and "precision" for tracking.

    Returns:
        Method -> sample -> metric -> value. Samples are named "<folder of the dataset>/<sample>" (for tracking
        "<sample>"). Empty if there is no such file.

    Raises:
        InputError: If the file cannot be parsed.
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
