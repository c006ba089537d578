"""Evaluation of depth methods on benchmark datasets."""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields

import numpy as np
import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import PUBLISHED_DEPTH, PublishedDepth
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
from protoformer.io.files import csv_text
from protoformer.models.runtime import ProgressCallback
from protoformer.synthetic.samples import DepthSample
from protoformer.training.metrics import Averages
from protoformer.viz.colormaps import Pixels, draw_gray, stack_2x2, to_uint8
from protoformer.viz.depth_colors import default_depth_range, depth_to_color
from protoformer.viz.report import WorstSamples, format_score, score_table


class DepthMetric(Averages):
    """Accumulates depth scores over batches; `compute` returns a `DepthTable`. Options as in `depth_scores`."""

    def __init__(self, *, minimum: float = 1e-3, maximum: float = 80.0, crop: Crop | None = None) -> None:
        super().__init__(METRIC_ROWS * COLUMNS)
        check_depth_options(minimum, maximum, crop)
        self.minimum, self.maximum, self.crop = minimum, maximum, crop

    def update(self, depth: Tensor, truth: Tensor, valid: Tensor) -> None:
        """Add N samples; arguments as in `depth_scores`."""
        self.add(depth_tally(depth, truth, valid, self.minimum, self.maximum, self.crop))

    def compute(self) -> DepthTable:
        """Return the scores of all samples since the last reset."""
        return mean_depth_table(self.total())


DepthMethod = Callable[[DepthSample], Tensor]
"""Maps a sample of one image to its depth, 1 x H x W, meters, without using the sample's ground truth."""

ROWS = {"metric": "metric", "median-scaled": "median_scaled", "aligned": "aligned"}
"""Names of the three alignments and their fields of `DepthTable`."""


@dataclass(frozen=True)
class DepthRules:
    """Selection of the evaluated pixels.

    Attributes:
        crop: evaluated image region; None for the whole image.
        nearest: lower bound of the true depth, meters, exclusive.
        farthest: upper bound of the true depth, meters, exclusive.
    """

    crop: Crop | None = None
    nearest: float = 1e-3
    farthest: float = 80.0

    def __str__(self) -> str:
        region = {None: "whole image", "garg": "Garg's crop", "eigen": "Eigen's crop"}[self.crop]
        return f"{region}, true depth from {self.nearest:g} to {self.farthest:g} m"


RULES: dict[str, DepthRules] = {
    "kitti-eigen": DepthRules("garg"),
    "nyuv2": DepthRules("eigen", farthest=10.0),
    "rgbd": DepthRules(farthest=10.0),
}
"""Rules of the benchmarks; other datasets are evaluated over the whole image, up to 80 m."""


@dataclass(frozen=True)
class DepthSampleScore:
    """Scores of one sample."""

    name: str
    table: DepthTable


@dataclass(frozen=True)
class DepthEvaluation:
    """Result of an evaluation.

    Attributes:
        rules: selection of the evaluated pixels.
        table: means over images.
        others: results of other methods to compare with.
        without_truth: number of images that were skipped because they have no evaluated ground truth.
    """

    dataset: str
    method: str
    rules: DepthRules
    table: DepthTable
    samples: tuple[DepthSampleScore, ...]
    others: tuple[PublishedDepth, ...]
    without_truth: int


def depth_method(model: DepthPredictor, num_updates: int | None = None, mirrored: bool = True) -> DepthMethod:
    """Wrap a predictor as an evaluation method, in float32 and with the dataset's camera where it is known.

    Args:
        model: predictor to evaluate.
        num_updates: as in `DepthPredictor.depth`.
        mirrored: as in `DepthPredictor.depth`.
    """

    def predict(sample: DepthSample) -> Tensor:
        camera = None if sample.intrinsics is None else sample.intrinsics[0]
        result = model.depth(
            sample.image[0], intrinsics=camera, num_updates=num_updates, mirrored=mirrored, precision="full"
        )
        return result.depth

    return predict


def constant_method(
    dataset: Dataset[DepthSample], rules: DepthRules, progress: ProgressCallback | None = None
) -> DepthMethod:
    """Return a baseline that predicts the mean true depth of the dataset at every pixel."""
    means = []
    for index in range(len(dataset)):
        sample = dataset[index]
        mask = sample.valid & (sample.depth > rules.nearest) & (sample.depth < rules.farthest)
        if mask.any():
            means.append(float(sample.depth[mask].double().mean()))
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
    """Evaluate a method on every sample of a dataset.

    Args:
        dataset: images with ground truth.
        method: maps a sample to its depth.
        names: names of the dataset and of the method.
        rules: selection of the evaluated pixels; None uses those of the benchmark.
        keep: called with every sample, its depth (1 x H x W, meters) and its scores, such as to draw them.
        progress: called after every sample.

    Raises:
        InputError: if no sample has evaluated ground truth, a size does not fit the crop, or a prediction cannot be
            scored.
    """
    rules = RULES.get(names[0], DepthRules()) if rules is None else rules

    metric = DepthMetric(minimum=rules.nearest, maximum=rules.farthest, crop=rules.crop)
    scored: list[DepthSampleScore] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        depth = method(sample)
        table = _score_sample(metric, depth, sample)
        if table.samples:
            scored.append(DepthSampleScore(sample.names[0], table))
            if keep:
                keep(sample, depth, table)
        if progress:
            progress(index + 1, len(dataset))
    if not scored:
        raise InputError(f"this split of {names[0]} has no true depth to evaluate ({rules}); choose another split.")
    return DepthEvaluation(
        dataset=names[0],
        method=names[1],
        rules=rules,
        table=metric.compute(),
        samples=tuple(scored),
        others=PUBLISHED_DEPTH.get(names[0], ()),
        without_truth=getattr(dataset, "without_truth", 0) + len(dataset) - len(scored),
    )


def _score_sample(metric: DepthMetric, depth: Tensor, sample: DepthSample) -> DepthTable:
    """Return the scores of one sample and add it to the metric."""
    height, width = sample.depth.shape[2:]
    if metric.crop == "eigen" and (height, width) != EIGEN_SIZE:
        raise InputError(
            f"{sample.names[0]} is {width}x{height} pixels, but Eigen's crop is defined for "
            f"{EIGEN_SIZE[1]}x{EIGEN_SIZE[0]}; give images of that size."
        )
    try:
        table: DepthTable = metric(depth[None], sample.depth, sample.valid)
        return table
    except ValueError as error:  # such as a depth that is not finite
        raise InputError(f"the depth of {sample.names[0]} cannot be scored ({error}); try another method.") from None


def depth_csv(evaluation: DepthEvaluation) -> str:
    """Format all scores as CSV, three rows per sample."""
    rows = (
        [sample.name, label, *astuple(getattr(sample.table, row))]
        for sample in evaluation.samples
        for label, row in ROWS.items()
    )
    return csv_text((["name", "row", *(field.name for field in fields(DepthScores))], *rows))


TABLE_COLUMNS = {"AbsRel": "abs_rel", "SqRel": "sq_rel", "RMSE": "rmse", "d<1.25": "delta1"}
"""Columns of the comparison table: scores that other methods publish, too."""
OWN_TABLE_COLUMNS = {"RMSElog": "rmse_log", "SILog": "silog", "d<1.25^2": "delta2", "d<1.25^3": "delta3"}
"""Columns of the detail table."""
WHITE_ERROR = 0.5
"""Relative error that is drawn white in an error image."""


def depth_tables(evaluation: DepthEvaluation) -> tuple[Table, Table]:
    """Return a table that compares the three alignments with published results, and a table of further scores."""
    name = f"{evaluation.method} on {evaluation.dataset}"
    caption = (
        f"{evaluation.rules}; mean of per-image values. metric: as predicted; median-scaled: times the ratio "
        "of medians; aligned: scale and shift by least squares, per image."
    )
    comparison = score_table(name, caption, ("row", "method", "measured on"), TABLE_COLUMNS)
    details = score_table(f"{name}, in detail", "", ("row",), OWN_TABLE_COLUMNS)
    for label, row in ROWS.items():
        scores = getattr(evaluation.table, row)
        own = (format_score(getattr(scores, field), 3) for field in TABLE_COLUMNS.values())
        comparison.add_row(label, Text(evaluation.method), f"{evaluation.table.samples} images", *own, style="bold")
        details.add_row(label, *(format_score(getattr(scores, field), 3) for field in OWN_TABLE_COLUMNS.values()))
    for other in evaluation.others:
        cells = (format_score(getattr(other, field, None), 3) for field in TABLE_COLUMNS.values())
        comparison.add_row(other.row, Text(other.label), other.measured_on, *cells, style="dim")
    return comparison, details


class WorstDepths(WorstSamples):
    """Keeps comparison images of the samples with the largest relative errors."""

    def keep(self, sample: DepthSample, depth: Tensor, table: DepthTable) -> None:
        """Draw a sample if it is among the worst so far; depth: 1 x H x W, meters."""
        self.offer(table.metric.abs_rel, sample.names[0], lambda: draw_depth_comparison(sample, depth))


def draw_depth_comparison(sample: DepthSample, depth: Tensor) -> Pixels:
    """Draw image and truth above prediction (1 x H x W, meters) and error, with the color scale of the truth.

    Pixels without ground truth are gray in the truth and black in the error, which is white at half of the true depth.
    uint8 2H x 2W x 3.
    """
    truth, valid = sample.depth[0, 0].cpu(), sample.valid[0, 0].cpu()
    colors = default_depth_range(truth[valid].numpy())
    true_colors = depth_to_color(truth.where(valid, 0.0).numpy(), *colors)
    error = (depth[0].cpu() - truth).abs() / truth.where(valid, 1.0) * valid
    error_image = np.repeat(draw_gray(error / WHITE_ERROR)[..., None], 3, axis=2)
    predicted_colors = depth_to_color(depth[0].cpu().numpy(), *colors)
    return stack_2x2(to_uint8(sample.image[0]), true_colors, predicted_colors, error_image)
