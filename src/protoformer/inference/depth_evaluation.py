"""A depth method on a dataset, by the benchmark's rules."""

import csv
import io
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.inference.depth import DepthModel
from protoformer.inference.published import PUBLISHED_DEPTH, DepthRow
from protoformer.metrics import Crop, DepthScores, DepthTable
from protoformer.metrics.depth import EIGEN_SIZE
from protoformer.model.flow_decoder import Progress
from protoformer.world import DepthSample

if TYPE_CHECKING:
    from protoformer.metrics import DepthMetric

DepthMethod = Callable[[DepthSample], Tensor]
"""From a sample of one image to its depth, 1 x H x W, metres; the sample's own truth is not to be looked at."""

ROWS = {"metric": "metric", "median-scaled": "median_scaled", "aligned": "aligned"}
"""What the three ways of scoring are called, and the field of a `DepthTable`."""


@dataclass(frozen=True)
class DepthRules:
    """What counts: pixels of a crop whose true depth lies between two bounds, metres, neither of them included."""

    crop: Crop | None = None
    nearest: float = 1e-3
    farthest: float = 80.0

    def __str__(self) -> str:
        part = {None: "all of the image", "garg": "Garg's crop", "eigen": "Eigen's crop"}[self.crop]
        return f"{part}, true depth from {self.nearest:g} to {self.farthest:g} m"


RULES: dict[str, DepthRules] = {
    "kitti-eigen": DepthRules("garg"),
    "nyuv2": DepthRules("eigen", farthest=10.0),
    "rgbd": DepthRules(farthest=10.0),
}
"""The benchmarks' own; datasets that have none are scored over all of the image, up to 80 m."""


@dataclass(frozen=True)
class DepthSampleScore:
    """One sample's scores, by its name."""

    name: str
    table: DepthTable


@dataclass(frozen=True)
class DepthEvaluation:
    """Everything that was measured.

    table: means over images. samples: scores of each. others: rows to compare with. without_truth: how many images were
    passed over because the list says that they have no truth, or none that counts.
    """

    dataset: str
    method: str
    rules: DepthRules
    table: DepthTable
    samples: tuple[DepthSampleScore, ...]
    others: tuple[DepthRow, ...]
    without_truth: int


def depth_method(model: DepthModel, updates: int | None = None, mirrored: bool = True) -> DepthMethod:
    """A model as a method, in full precision: it is told the camera where the dataset knows it."""

    def method(sample: DepthSample) -> Tensor:
        camera = None if sample.intrinsics is None else sample.intrinsics[0]
        found = model.depth(sample.image[0], intrinsics=camera, updates=updates, mirrored=mirrored, precision="full")
        return found.depth

    return method


def constant_method(dataset: Dataset[DepthSample], rules: DepthRules, progress: Progress | None = None) -> DepthMethod:
    """The mean true depth of the dataset at every pixel: what one scores who never looks at an image."""
    means = []
    for index in range(len(dataset)):
        sample = dataset[index]
        counted = sample.valid & (sample.depth > rules.nearest) & (sample.depth < rules.farthest)
        if counted.any():
            means.append(float(sample.depth[counted].double().mean()))
        if progress:
            progress(index + 1, len(dataset))
    metres = math.fsum(means) / max(1, len(means))
    return lambda sample: torch.full_like(sample.depth[0], metres)


def evaluate_depth(
    dataset: Dataset[DepthSample],
    method: DepthMethod,
    *,
    names: tuple[str, str],
    rules: DepthRules | None = None,
    keep: Callable[[DepthSample, Tensor, DepthTable], None] | None = None,
    progress: Progress | None = None,
) -> DepthEvaluation:
    """Run a method over every sample of a dataset.

    names: of the dataset and of the method. rules: None takes the benchmark's. keep: handed every sample with its depth
    (1 x H x W, metres) and scores, so that whoever wants pictures need not run it again.
    """
    rules = RULES.get(names[0], DepthRules()) if rules is None else rules
    from protoformer.metrics import DepthMetric

    metric = DepthMetric(minimum=rules.nearest, maximum=rules.farthest, crop=rules.crop)
    scored: list[DepthSampleScore] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        depth = method(sample)
        table = _scores(metric, depth, sample)
        if table.samples:
            scored.append(DepthSampleScore(sample.names[0], table))
            if keep:
                keep(sample, depth, table)
        if progress:
            progress(index + 1, len(dataset))
    if not scored:
        raise InputError(f"this split of {names[0]} has no true depth that counts ({rules}); choose another split.")
    return DepthEvaluation(
        dataset=names[0],
        method=names[1],
        rules=rules,
        table=metric.compute(),
        samples=tuple(scored),
        others=PUBLISHED_DEPTH.get(names[0], ()),
        without_truth=getattr(dataset, "without_truth", 0) + len(dataset) - len(scored),
    )


def _scores(metric: "DepthMetric", depth: Tensor, sample: DepthSample) -> DepthTable:
    """The scores of one sample, which also enter the metric."""
    height, width = sample.depth.shape[2:]
    if metric.crop == "eigen" and (height, width) != EIGEN_SIZE:
        raise InputError(
            f"{sample.names[0]} is {width}x{height} pixels, but Eigen's crop is one of "
            f"{EIGEN_SIZE[1]}x{EIGEN_SIZE[0]}; give images of that size."
        )
    try:
        table: DepthTable = metric(depth[None], sample.depth, sample.valid)
        return table
    except ValueError as error:  # a depth that is not finite, say
        raise InputError(f"the depth of {sample.names[0]} cannot be scored ({error}); try another method.") from None


def depth_csv(evaluation: DepthEvaluation) -> str:
    """Three rows a sample, with every score."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "row", *(field.name for field in fields(DepthScores))])
    for sample in evaluation.samples:
        for label, row in ROWS.items():
            writer.writerow([sample.name, label, *astuple(getattr(sample.table, row))])
    return text.getvalue()
