"""A depth method on a dataset, by the benchmark's rules."""

import csv
import io
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields

import numpy as np
import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.published import PUBLISHED_DEPTH, PublishedDepth
from protoformer.datasets.tree import Dataset
from protoformer.depth.metrics import (
    COLUMNS,
    EIGEN_SIZE,
    Crop,
    DepthScores,
    DepthTable,
    check_depth_options,
    depth_tally,
    mean_depth_table,
)
from protoformer.depth.metrics import ROWS as METRIC_ROWS
from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError
from protoformer.models.runtime import ProgressCallback
from protoformer.synthetic.samples import DepthSample
from protoformer.training.metrics import Averages
from protoformer.viz.colormaps import default_depth_range, depth_to_color
from protoformer.viz.images import Pixels, draw_gray, to_uint8
from protoformer.viz.text import WorstSamples, score_table


class DepthMetric(Averages):
    """Scores over all depths it is shown; `compute` returns a DepthTable. Options as of `depth_scores`."""

    def __init__(self, *, minimum: float = 1e-3, maximum: float = 80.0, crop: Crop | None = None) -> None:
        super().__init__(METRIC_ROWS * COLUMNS)
        check_depth_options(minimum, maximum, crop)
        self.minimum, self.maximum, self.crop = minimum, maximum, crop

    def update(self, depth: Tensor, truth: Tensor, valid: Tensor) -> None:
        """Add N samples, in the terms of `depth_scores`."""
        self.add(depth_tally(depth, truth, valid, self.minimum, self.maximum, self.crop))

    def compute(self) -> DepthTable:
        """The scores of everything shown since the last reset."""
        return mean_depth_table(self.total())


DepthMethod = Callable[[DepthSample], Tensor]
"""From a sample of one image to its depth, 1 x H x W, meters; the sample's own truth is not to be looked at."""

ROWS = {"metric": "metric", "median-scaled": "median_scaled", "aligned": "aligned"}
"""What the three ways of scoring are called, and the field of a `DepthTable`."""


@dataclass(frozen=True)
class DepthRules:
    """What counts: pixels of a crop whose true depth lies between two bounds, meters, neither of them included."""

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
    others: tuple[PublishedDepth, ...]
    without_truth: int


def depth_method(model: DepthPredictor, updates: int | None = None, mirrored: bool = True) -> DepthMethod:
    """A model as a method, in full precision: it is told the camera where the dataset knows it."""

    def method(sample: DepthSample) -> Tensor:
        camera = None if sample.intrinsics is None else sample.intrinsics[0]
        found = model.depth(sample.image[0], intrinsics=camera, updates=updates, mirrored=mirrored, precision="full")
        return found.depth

    return method


def constant_method(
    dataset: Dataset[DepthSample], rules: DepthRules, progress: ProgressCallback | None = None
) -> DepthMethod:
    """The mean true depth of the dataset at every pixel: what one scores who never looks at an image."""
    means = []
    for index in range(len(dataset)):
        sample = dataset[index]
        counted = sample.valid & (sample.depth > rules.nearest) & (sample.depth < rules.farthest)
        if counted.any():
            means.append(float(sample.depth[counted].double().mean()))
        if progress:
            progress(index + 1, len(dataset))
    meters = math.fsum(means) / max(1, len(means))
    return lambda sample: torch.full_like(sample.depth[0], meters)


def evaluate_depth(
    dataset: Dataset[DepthSample],
    method: DepthMethod,
    *,
    names: tuple[str, str],
    rules: DepthRules | None = None,
    keep: Callable[[DepthSample, Tensor, DepthTable], None] | None = None,
    progress: ProgressCallback | None = None,
) -> DepthEvaluation:
    """Run a method over every sample of a dataset.

    names: of the dataset and of the method. rules: None takes the benchmark's. keep: handed every sample with its depth
    (1 x H x W, meters) and scores, so that whoever wants pictures need not run it again.
    """
    rules = RULES.get(names[0], DepthRules()) if rules is None else rules

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


TABLE_COLUMNS = {"AbsRel": "abs_rel", "SqRel": "sq_rel", "RMSE": "rmse", "d<1.25": "delta1"}
"""Figures that others publish, too."""
OWN_TABLE_COLUMNS = {"RMSElog": "rmse_log", "SILog": "silog", "d<1.25^2": "delta2", "d<1.25^3": "delta3"}
"""The others that we have of ourselves."""
WHITE_ERROR = 0.5
"""Share of the true depth by which a white pixel of an error's picture is wrong."""


def depth_tables(evaluation: DepthEvaluation) -> tuple[Table, Table]:
    """Our three rows above the rows of others, each by the way it was scored; and what else there is of ours."""
    name = f"{evaluation.method} on {evaluation.dataset}"
    rules = (
        f"{evaluation.rules}; each image's own figures, averaged. metric: as predicted; median-scaled: times the ratio "
        "of medians; aligned: scale and shift by least squares, each image its own."
    )
    beside = score_table(name, rules, ("row", "method", "measured on"), TABLE_COLUMNS)
    alone = score_table(f"{name}, in detail", "", ("row",), OWN_TABLE_COLUMNS)
    for label, row in ROWS.items():
        scores = getattr(evaluation.table, row)
        own = (_shown(getattr(scores, field)) for field in TABLE_COLUMNS.values())
        beside.add_row(label, Text(evaluation.method), f"{evaluation.table.samples} images", *own, style="bold")
        alone.add_row(label, *(_shown(getattr(scores, field)) for field in OWN_TABLE_COLUMNS.values()))
    for other in evaluation.others:
        cells = (_shown(getattr(other, field, None)) for field in TABLE_COLUMNS.values())
        beside.add_row(other.row, Text(other.label), other.measured_on, *cells, style="dim")
    return beside, alone


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.3f}"


class WorstDepths(WorstSamples):
    """Keeps pictures of the samples with the largest relative errors: image, truth, estimate, error."""

    def keep(self, sample: DepthSample, depth: Tensor, table: DepthTable) -> None:
        """Draw a sample if it is among the worst so far."""
        self.offer(table.metric.abs_rel, sample.names[0], lambda: draw_depth_comparison(sample, depth))


def draw_depth_comparison(sample: DepthSample, depth: Tensor) -> Pixels:
    """Image and truth above, estimate and error below, on the truth's scale of colors: uint8 2H x 2W x 3.

    depth: 1 x H x W, meters. Unknown truth is gray in the truth and black in the error, which is white at half of the
    true depth.
    """
    truth, valid = sample.depth[0, 0].cpu(), sample.valid[0, 0].cpu()
    colors = default_depth_range(truth[valid].numpy())
    true_colors = depth_to_color(truth.where(valid, 0.0).numpy(), *colors)
    error = (depth[0].cpu() - truth).abs() / truth.where(valid, 1.0) * valid
    white = np.repeat(draw_gray(error / WHITE_ERROR)[..., None], 3, axis=2)
    above = np.concatenate((to_uint8(sample.image[0]), true_colors), axis=1)
    below = np.concatenate((depth_to_color(depth[0].cpu().numpy(), *colors), white), axis=1)
    return np.concatenate((above, below))
