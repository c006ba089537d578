"""Evaluation of optical flow methods on benchmark datasets."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import PUBLISHED, PublishedFlow, peer_rows
from protoformer.errors import InputError
from protoformer.flow.metrics import COLUMNS, FlowScores, flow_scores, flow_tally, mean_flow_scores
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import Tile, predict_tiled, working_size
from protoformer.geometry.warps import resize, resize_flow
from protoformer.io.files import csv_text, is_outside, make_folder
from protoformer.io.formats import write_flo, write_kitti_flow
from protoformer.models.runtime import ProgressCallback
from protoformer.synthetic.samples import FlowPair, FlowSample
from protoformer.training.metrics import Averages
from protoformer.viz.colormaps import Pixels, draw_gray, flow_to_color, stack_2x2, to_uint8
from protoformer.viz.report import WorstSamples, format_score, score_table


class FlowMetric(Averages):
    """Accumulates flow scores over batches, in float64; `compute` returns `FlowScores`."""

    higher_is_better = False

    def __init__(self) -> None:
        super().__init__(COLUMNS)

    def update(self, flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None = None) -> None:
        """Add N samples; arguments as in `flow_scores`. `occlusion` may be given in some calls and not in others."""
        self.add(flow_tally(flow, truth, valid, occlusion))

    def compute(self) -> FlowScores:
        """Return the scores of all samples since the last reset."""
        return mean_flow_scores(self.total())


FlowMethod = Callable[[Tensor, Tensor], Tensor]
"""Maps two images, 3 x H x W in [0, 1], to their flow, 2 x H x W, pixels."""


SUBMISSIONS = ("sintel", "kitti-2012", "kitti-2015")
"""Benchmarks whose upload formats are supported."""


@dataclass(frozen=True)
class SampleScore:
    """Scores of one sample and the group of samples that it belongs to; see `sample_group`."""

    name: str
    group: str
    scores: FlowScores


@dataclass(frozen=True)
class FlowEvaluation:
    """Result of an evaluation.

    Attributes:
        groups: scores of each group of samples.
        others: results of other methods to compare with, by group.
        without_truth: number of pairs that were skipped because they have no ground truth.
    """

    dataset: str
    method: str
    groups: dict[str, FlowScores]
    samples: tuple[SampleScore, ...]
    others: dict[str, tuple[PublishedFlow, ...]]
    without_truth: int


def predictor_method(
    model: FlowPredictor, num_updates: int | None = None, tile: tuple[int, int] | None = None, zoom: float | None = None
) -> FlowMethod:
    """Wrap a predictor as an evaluation method.

    Args:
        model: predictor to evaluate.
        num_updates: as in `FlowPredictor.flow`.
        tile: (height, width) of tiles blended as in the paper; None for whole images.
        zoom: as in `FlowPredictor.flow`; tiles are in pixels of the working size. With None, images are not enlarged
            beyond one tile.
    """
    if tile is None:
        return lambda first, second: model.flow(first, second, num_updates=num_updates, zoom=zoom).flow

    def predict(first: Tensor, second: Tensor) -> Tensor:
        size = (first.shape[1], first.shape[2])
        working = working_size(size, model.network.config, model.device, zoom, tile)
        images = [resize(image[None], working)[0] for image in (first, second)]

        def predict_tile(region: Tile) -> Tensor:
            return model.flow(*(image[:, *region] for image in images), num_updates=num_updates, zoom=1).flow

        return resize_flow(predict_tiled(working, tile, predict_tile)[None], size)[0]

    return predict


def sample_group(dataset: str, name: str) -> str:
    """Return the group of a sample: the pass (clean or final) of Sintel, "all" for any other dataset."""
    return name.split("/")[0] if dataset == "sintel" else "all"


def evaluate_flow(
    dataset: Dataset[FlowPair],
    method: FlowMethod,
    *,
    names: tuple[str, str],
    root: Path,
    compare: bool = True,
    keep: Callable[[FlowSample, Tensor, FlowScores], None] | None = None,
    progress: ProgressCallback | None = None,
) -> FlowEvaluation:
    """Evaluate a method on every sample of a dataset that has ground truth.

    Args:
        dataset: pairs, with or without ground truth.
        method: maps two images to their flow.
        names: names of the dataset and of the method.
        root: folder of the dataset, next to which results of other methods may be stored.
        compare: whether published results refer to the same ground truth and are included.
        keep: called with every sample, its flow (2 x H x W, pixels) and its scores, such as to draw or store them.
        progress: called after every sample.

    Raises:
        InputError: if no sample has ground truth, or a prediction is not finite.
    """
    metrics: dict[str, FlowMetric] = {}
    scored: list[SampleScore] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        if isinstance(sample, FlowSample):
            flow = method(sample.first[0], sample.second[0])
            group = sample_group(names[0], sample.names[0])
            scores = _score_sample(metrics.setdefault(group, FlowMetric()), flow, sample)
            scored.append(SampleScore(sample.names[0], group, scores))
            if keep:
                keep(sample, flow, scores)
        if progress:
            progress(index + 1, len(dataset))
    if not scored:
        advice = "write its flow with --submission" if names[0] in SUBMISSIONS else "choose a split that has"
        raise InputError(f"this split of {names[0]} has no true flow to compare with; {advice}.")
    return FlowEvaluation(
        dataset=names[0],
        method=names[1],
        groups={group: metric.compute() for group, metric in metrics.items()},
        samples=tuple(scored),
        others={group: published_rows(names, group, root, scored) if compare else () for group in metrics},
        without_truth=len(dataset) - len(scored),
    )


def _score_sample(metric: FlowMetric, flow: Tensor, sample: FlowSample) -> FlowScores:
    """Return the scores of one sample and add it to the metric."""
    try:
        metric.update(flow[None], sample.flow, sample.valid, sample.occlusion)
    except ValueError as error:  # such as a flow that is not finite
        raise InputError(f"the flow of {sample.names[0]} cannot be scored ({error}); try another method.") from None
    return flow_scores(flow[None], sample.flow, sample.valid, sample.occlusion)


def published_rows(
    names: tuple[str, str], group: str, root: Path, scored: list[SampleScore]
) -> tuple[PublishedFlow, ...]:
    """Return comparison rows for a group: means of the peers' results, as in `peer_rows`, then published results.

    `names` are those of the dataset and of the method.
    """
    own = {
        f"{root.resolve().name}/{score.name}": {"epe": score.scores.epe, "fl": score.scores.fl}
        for score in scored
        if score.group == group
    }
    peers = peer_rows(PublishedFlow, root, "flow", {names[1]: own}, {"epe": "epe_per_image", "fl": "fl_per_image"})
    return (*peers, *PUBLISHED.get((names[0], group), ()))


def scores_csv(evaluation: FlowEvaluation) -> str:
    """Format all scores as CSV, one row per sample."""
    columns = list(FlowScores.__dataclass_fields__)
    rows = ([each.name, each.group, *(getattr(each.scores, name) for name in columns)] for each in evaluation.samples)
    return csv_text((["name", "group", *columns], *rows))


def check_submission(benchmark: str) -> None:
    """Validate a benchmark for `write_submission`."""
    if benchmark not in SUBMISSIONS:
        raise InputError(f"{benchmark} has no upload format; choose {', '.join(SUBMISSIONS)}.")


def submission_path(benchmark: str, name: str) -> str:
    """Return the path of a pair's flow in a submission; Sintel uses frame0001 instead of frame_0001."""
    if benchmark == "sintel":
        return f"{re.sub(r'frame_(?=[0-9]+$)', 'frame', name)}.flo"
    return f"flow/{name}_10.png" if benchmark == "kitti-2015" else f"{name}_10.png"


def write_submission(
    dataset: Dataset[FlowPair],
    method: FlowMethod,
    benchmark: str,
    folder: Path,
    progress: ProgressCallback | None = None,
) -> int:
    """Write the flow of every pair in the upload format of a benchmark.

    Sintel: <pass>/<scene>/frame0001.flo. KITTI: <number>_10.png, 16-bit, for 2015 in the folder flow/.

    Args:
        dataset: pairs, with or without ground truth.
        method: maps two images to their flow.
        benchmark: one of `SUBMISSIONS`.
        folder: output folder.
        progress: called after every pair.

    Returns:
        The number of files.
    """
    check_submission(benchmark)
    for index in range(len(dataset)):
        pair = dataset[index]
        flow = method(pair.first[0], pair.second[0]).permute(1, 2, 0).contiguous().numpy()
        path = submission_path(benchmark, pair.names[0])
        if is_outside(folder, folder / path):
            raise InputError(f"the pair {pair.names[0]} would be written outside {folder}; rename it.")
        make_folder((folder / path).parent)
        (write_flo if benchmark == "sintel" else write_kitti_flow)(folder / path, flow)
        if progress:
            progress(index + 1, len(dataset))
    return len(dataset)


TABLE_COLUMNS = {"EPE": "epe", "EPE/image": "epe_per_image", "Fl %": "fl", "Fl/image %": "fl_per_image"}
"""Columns of the comparison table: scores that other methods publish, too."""
OWN_TABLE_COLUMNS = {
    ">1px %": "px1",
    ">3px %": "px3",
    ">5px %": "px5",
    "s0-10": "s0_10",
    "s10-40": "s10_40",
    "s40+": "s40_plus",
    "matched": "matched",
    "unmatched": "unmatched",
}
"""Columns of the detail table."""


def flow_tables(evaluation: FlowEvaluation) -> tuple[Table, Table]:
    """Return a table that compares each group with published results, and a table of further scores."""
    name = f"{evaluation.method} on {evaluation.dataset}"
    caption = "EPE (px), Fl: over all valid pixels; /image: mean of per-image values"
    comparison = score_table(name, caption, ("group", "method", "measured on"), TABLE_COLUMNS)
    caption = "outliers: over 1, 3, 5 px; s: EPE by true motion; matched, unmatched: EPE of visible and occluded pixels"
    details = score_table(f"{name}, in detail", caption, ("group",), OWN_TABLE_COLUMNS)
    for group, scores in evaluation.groups.items():
        own = (format_score(getattr(scores, field), 2) for field in TABLE_COLUMNS.values())
        comparison.add_row(group, Text(evaluation.method), f"{scores.samples} samples", *own, style="bold")
        for row in evaluation.others[group]:
            cells = (format_score(getattr(row, field, None), 2) for field in TABLE_COLUMNS.values())
            comparison.add_row("", Text(row.label), row.measured_on, *cells, style="dim")
        details.add_row(group, *(format_score(getattr(scores, field), 2) for field in OWN_TABLE_COLUMNS.values()))
    return comparison, details


class WorstFlows(WorstSamples):
    """Keeps comparison images of the samples with the largest end-point errors."""

    def keep(self, sample: FlowSample, flow: Tensor, scores: FlowScores) -> None:
        """Draw a sample if it is among the worst so far; flow: 2 x H x W, pixels."""
        self.offer(scores.epe, sample.names[0], lambda: draw_flow_comparison(sample, flow))


def draw_flow_comparison(sample: FlowSample, flow: Tensor) -> Pixels:
    """Draw first image and truth above prediction (2 x H x W, pixels) and error: uint8 2H x 2W x 3.

    The color scale is common. Pixels without ground truth are black. An error of 10 px or more is white.
    """
    valid = sample.valid[0, 0]
    truth = sample.flow[0]
    speeds = truth.norm(dim=0)[valid]
    scale = max(1.0, float(np.quantile(speeds.numpy(), 0.99))) if len(speeds) else 1.0
    true_colors = flow_to_color(truth.permute(1, 2, 0).numpy(), scale)
    true_colors[~valid.numpy()] = 0
    error = draw_gray((flow - truth).norm(dim=0) * valid / 10)
    colors = flow_to_color(flow.permute(1, 2, 0).numpy(), scale)
    return stack_2x2(to_uint8(sample.first[0]), true_colors, colors, np.repeat(error[..., None], 3, 2))
