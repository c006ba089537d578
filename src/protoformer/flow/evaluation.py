"""A flow method on a dataset, by the benchmark's rules."""

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.published import PUBLISHED, PublishedFlow, peer_results
from protoformer.datasets.tree import Dataset
from protoformer.errors import InputError
from protoformer.flow.metrics import COLUMNS, FlowScores, flow_scores, flow_tally, mean_flow_scores
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import Tile, predict_tiled, working_size
from protoformer.geometry.resizing import resize, resize_flow
from protoformer.io.files import leads_out, make_folder
from protoformer.io.float_formats import write_flo
from protoformer.io.kitti import write_kitti_flow
from protoformer.models.runtime import ProgressCallback
from protoformer.synthetic.samples import FlowPair, FlowSample
from protoformer.training.metrics import Averages
from protoformer.viz.colormaps import flow_to_color
from protoformer.viz.images import Pixels, draw_gray, to_uint8
from protoformer.viz.text import WorstSamples, score_table


class FlowMetric(Averages):
    """Scores over all flows it is shown; `compute` returns FlowScores. Sums are kept in float64."""

    higher_is_better = False

    def __init__(self) -> None:
        super().__init__(COLUMNS)

    def update(self, flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None = None) -> None:
        """Add N samples, in the terms of `flow_scores`; `occlusion` may be known for some calls and not for others."""
        self.add(flow_tally(flow, truth, valid, occlusion))

    def compute(self) -> FlowScores:
        """The scores of everything shown since the last reset."""
        return mean_flow_scores(self.total())


FlowMethod = Callable[[Tensor, Tensor], Tensor]
"""Images 3 x H x W in [0, 1] to their flow, 2 x H x W, pixels."""


SUBMISSIONS = ("sintel", "kitti-2012", "kitti-2015")
"""Benchmarks whose servers take files that can be written here."""


@dataclass(frozen=True)
class SampleScore:
    """One sample's scores, by its name and group."""

    name: str
    group: str
    scores: FlowScores


@dataclass(frozen=True)
class FlowEvaluation:
    """Everything that was measured.

    groups: scores of each group of samples. samples: scores of each sample. others: per group, rows to compare with.
    without_truth: how many pairs were passed over because nobody knows their flow.
    """

    dataset: str
    method: str
    groups: dict[str, FlowScores]
    samples: tuple[SampleScore, ...]
    others: dict[str, tuple[PublishedFlow, ...]]
    without_truth: int


def predictor_method(
    model: FlowPredictor, updates: int | None = None, tile: tuple[int, int] | None = None, zoom: float | None = None
) -> FlowMethod:
    """A model as a method: on whole images, or by tiles of (height, width) blended as the paper does.

    zoom: as in `FlowModel.flow`; tiles are of images as the network sees them, and by itself it enlarges none beyond
    one tile.
    """
    if tile is None:
        return lambda first, second: model.flow(first, second, updates=updates, zoom=zoom).flow

    def tiled(first: Tensor, second: Tensor) -> Tensor:
        size = (first.shape[1], first.shape[2])
        seen = working_size(size, model.network.config, model.device, zoom, tile)
        images = [resize(image[None], seen)[0] for image in (first, second)]

        def of_window(window: Tile) -> Tensor:
            return model.flow(*(image[:, *window] for image in images), updates=updates, zoom=1).flow

        return resize_flow(predict_tiled(seen, tile, of_window)[None], size)[0]

    return tiled


def sample_group(dataset: str, name: str) -> str:
    """Sintel's passes are two benchmarks; the samples of any other dataset are one group."""
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
    """Run a method over every sample of a dataset that has truth.

    names: of the dataset and of the method. root: the dataset's folder, beside which peers may lie. compare: whether
    others were measured on the same truth. keep: handed every sample with its flow (2 x H x W, pixels) and scores, so
    that whoever wants pictures or files need not run it again.
    """
    metrics: dict[str, FlowMetric] = {}
    scored: list[SampleScore] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        if isinstance(sample, FlowSample):
            flow = method(sample.first[0], sample.second[0])
            group = sample_group(names[0], sample.names[0])
            scores = _scores(metrics.setdefault(group, FlowMetric()), flow, sample)
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


def _scores(metric: "FlowMetric", flow: Tensor, sample: FlowSample) -> FlowScores:
    """The scores of one sample, which also enter the metric."""
    try:
        metric.update(flow[None], sample.flow, sample.valid, sample.occlusion)
    except ValueError as error:  # a flow that is not finite, say
        raise InputError(f"the flow of {sample.names[0]} cannot be scored ({error}); try another method.") from None
    return flow_scores(flow[None], sample.flow, sample.valid, sample.occlusion)


def published_rows(
    names: tuple[str, str], group: str, root: Path, scored: list[SampleScore]
) -> tuple[PublishedFlow, ...]:
    """The peers' means over those of a group's samples that they were measured on, and the published rows.

    Where the peers know only some of our samples, our own mean over these comes first.
    """
    peers = peer_results(root.resolve())
    ours = {f"{root.resolve().name}/{score.name}": score.scores for score in scored if score.group == group}
    known = [key for key in ours if any(key in of_samples for of_samples in peers.values())]
    rows = []
    if known and len(known) < len(ours):
        of_ours = [{"epe": ours[key].epe, "fl": ours[key].fl} for key in known]
        rows.append(_mean_row(names[1], of_ours))
    for label, of_samples in peers.items():
        shared = [of_samples[key] for key in known if key in of_samples]
        if shared:
            rows.append(_mean_row(label, shared))
    return (*rows, *PUBLISHED.get((names[0], group), ()))


def _mean_row(label: str, scores: list[dict[str, float]]) -> PublishedFlow:
    epe, fl = (math.fsum(each[field] for each in scores) / len(scores) for field in ("epe", "fl"))
    return PublishedFlow(label, f"{len(scores)} of these", epe_per_image=epe, fl_per_image=fl)


def scores_csv(evaluation: FlowEvaluation) -> str:
    """A row a sample, with every score."""
    text = io.StringIO()
    fields = list(FlowScores.__dataclass_fields__)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "group", *fields])
    for sample in evaluation.samples:
        writer.writerow([sample.name, sample.group, *(getattr(sample.scores, field) for field in fields)])
    return text.getvalue()


def check_submission(benchmark: str) -> None:
    """Refuse a benchmark whose server takes no files that can be written here."""
    if benchmark not in SUBMISSIONS:
        raise InputError(f"{benchmark} has no upload format; choose {', '.join(SUBMISSIONS)}.")


def submission_path(benchmark: str, name: str) -> str:
    """Where a benchmark's server looks for the flow of a pair; Sintel's writes frame0001 for frame_0001."""
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
    """Write the flow of every pair as the benchmark's server wants it; returns how many files.

    Sintel: <pass>/<scene>/frame0001.flo. KITTI: <number>_10.png, 16-bit, for 2015 in the folder flow/.
    """
    check_submission(benchmark)
    for index in range(len(dataset)):
        pair = dataset[index]
        flow = method(pair.first[0], pair.second[0]).permute(1, 2, 0).contiguous().numpy()
        place = submission_path(benchmark, pair.names[0])
        if leads_out(folder, folder / place):
            raise InputError(f"the pair {pair.names[0]} would be written outside {folder}; rename it.")
        make_folder((folder / place).parent)
        (write_flo if benchmark == "sintel" else write_kitti_flow)(folder / place, flow)
        if progress:
            progress(index + 1, len(dataset))
    return len(dataset)


TABLE_COLUMNS = {"EPE": "epe", "EPE/image": "epe_per_image", "Fl %": "fl", "Fl/image %": "fl_per_image"}
"""Figures that others publish, too."""
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
"""The others that we have of ourselves."""


def flow_tables(evaluation: FlowEvaluation) -> tuple[Table, Table]:
    """Our row of each group above those of others, figures in the columns of their kind of mean; and our rest."""
    name = f"{evaluation.method} on {evaluation.dataset}"
    rules = "EPE (px), Fl: over all known pixels; /image: the mean of each image's own"
    beside = score_table(name, rules, ("group", "method", "measured on"), TABLE_COLUMNS)
    rules = "outliers: over 1, 3, 5 px; s: EPE by true speed; matched, unmatched: EPE of what stays in sight or not"
    alone = score_table(f"{name}, in detail", rules, ("group",), OWN_TABLE_COLUMNS)
    for group, scores in evaluation.groups.items():
        own = (_shown(getattr(scores, field)) for field in TABLE_COLUMNS.values())
        beside.add_row(group, Text(evaluation.method), f"{scores.samples} samples", *own, style="bold")
        for row in evaluation.others[group]:
            cells = (_shown(getattr(row, field, None)) for field in TABLE_COLUMNS.values())
            beside.add_row("", Text(row.label), row.measured_on, *cells, style="dim")
        alone.add_row(group, *(_shown(getattr(scores, field)) for field in OWN_TABLE_COLUMNS.values()))
    return beside, alone


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"


class WorstFlows(WorstSamples):
    """Keeps pictures of the samples with the largest end-point errors: first image, truth, estimate, error."""

    def keep(self, sample: FlowSample, flow: Tensor, scores: FlowScores) -> None:
        """Draw a sample if it is among the worst so far."""
        self.offer(scores.epe, sample.names[0], lambda: draw_flow_comparison(sample, flow))


def draw_flow_comparison(sample: FlowSample, flow: Tensor) -> Pixels:
    """First image and truth above, estimate and error below, on one scale of colors: uint8 2H x 2W x 3.

    Unknown truth is black. The error is white at 10 px.
    """
    valid = sample.valid[0, 0]
    truth = sample.flow[0]
    speeds = truth.norm(dim=0)[valid]
    scale = max(1.0, float(np.quantile(speeds.numpy(), 0.99))) if len(speeds) else 1.0
    true_colors = flow_to_color(truth.permute(1, 2, 0).numpy(), scale)
    true_colors[~valid.numpy()] = 0
    error = draw_gray((flow - truth).norm(dim=0) * valid / 10)
    above = np.concatenate((to_uint8(sample.first[0]), true_colors), axis=1)
    below = np.concatenate(
        (flow_to_color(flow.permute(1, 2, 0).numpy(), scale), np.repeat(error[..., None], 3, 2)), axis=1
    )
    return np.concatenate((above, below))
