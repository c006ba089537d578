"""A flow method on a dataset, by the benchmark's rules."""

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.files import write_flo, write_kitti_flow
from protoformer.inference.flow import FlowModel
from protoformer.inference.published import PUBLISHED, peers_beside
from protoformer.inference.tiles import in_tiles
from protoformer.metrics import FlowMetric, FlowScores, flow_scores
from protoformer.model.flow_decoder import Progress
from protoformer.world import FlowPair, FlowSample

FlowMethod = Callable[[Tensor, Tensor], Tensor]
"""Images 3 x H x W in [0, 1] to their flow, 2 x H x W, pixels."""


@dataclass(frozen=True)
class SampleScore:
    """One sample's scores, by its name and group."""

    name: str
    group: str
    scores: FlowScores


@dataclass(frozen=True)
class OtherRow:
    """Another system's row: mean end-point error (pixels) and Fl (percent), and what kind of mean."""

    label: str
    group: str
    epe: float
    fl: float | None
    mean: str


@dataclass(frozen=True)
class FlowEvaluation:
    """Everything that was measured: scores of each group of samples, of each sample, and rows to compare with."""

    dataset: str
    method: str
    groups: dict[str, FlowScores]
    samples: tuple[SampleScore, ...]
    others: tuple[OtherRow, ...]


def model_method(model: FlowModel, updates: int | None = None, tile: tuple[int, int] | None = None) -> FlowMethod:
    """A model as a method: on whole images, or by tiles of (height, width) blended as the paper does."""

    def whole(first: Tensor, second: Tensor) -> Tensor:
        return model.flow(first, second, updates=updates).flow

    if tile is None:
        return whole

    def tiled(first: Tensor, second: Tensor) -> Tensor:
        size = (first.shape[1], first.shape[2])
        return in_tiles(size, tile, lambda window: whole(first[:, *window], second[:, *window]))

    return tiled


def group_of(dataset: str, name: str) -> str:
    """Sintel's passes are two benchmarks; the samples of any other dataset are one group."""
    return name.split("/")[0] if dataset == "sintel" else "all"


def evaluate_flow(
    dataset: Dataset[FlowPair],
    method: FlowMethod,
    *,
    names: tuple[str, str],
    root: Path,
    keep: Callable[[FlowSample, Tensor, FlowScores], None] | None = None,
    progress: Progress | None = None,
) -> FlowEvaluation:
    """Run a method over every sample of a dataset that has truth.

    names: of the dataset and of the method. root: the dataset's folder, beside which peers may lie. keep: handed every
    sample with its flow (2 x H x W, pixels) and scores, so that whoever wants pictures or files need not run it again.
    """
    metrics: dict[str, FlowMetric] = {}
    scored: list[SampleScore] = []
    for index in range(len(dataset)):
        sample = dataset[index]
        if not isinstance(sample, FlowSample):
            raise InputError(f"this split of {names[0]} has no true flow; write it out with --submission instead.")
        name = sample.names[0]
        flow = method(sample.first[0], sample.second[0])
        group = group_of(names[0], name)
        metric = metrics.setdefault(group, FlowMetric())
        metric.update(flow[None], sample.flow, sample.valid, sample.occlusion)
        scores = flow_scores(flow[None], sample.flow, sample.valid, sample.occlusion)
        scored.append(SampleScore(name, group, scores))
        if keep:
            keep(sample, flow, scores)
        if progress:
            progress(index + 1, len(dataset))
    return FlowEvaluation(
        dataset=names[0],
        method=names[1],
        groups={group: metric.compute() for group, metric in metrics.items()},
        samples=tuple(scored),
        others=tuple(other_rows(names[0], root, scored)),
    )


def other_rows(dataset: str, root: Path, scored: list[SampleScore]) -> list[OtherRow]:
    """Published rows of each group, and the peers' means over those of our samples that they were measured on too."""
    rows = []
    peers = peers_beside(root.resolve())
    for group in dict.fromkeys(score.group for score in scored):
        keys = [f"{root.resolve().name}/{score.name}" for score in scored if score.group == group]
        for label, of_samples in peers.items():
            shared = [of_samples[key] for key in keys if key in of_samples]
            if shared:
                epe, fl = (math.fsum(scores[field] for scores in shared) / len(shared) for field in ("epe", "fl"))
                rows.append(OtherRow(label, group, epe, fl, f"of {len(shared)} images"))
        rows += [
            OtherRow(row.label, group, row.epe, row.fl, "whole set") for row in PUBLISHED.get((dataset, group), ())
        ]
    return rows


def csv_of(evaluation: FlowEvaluation) -> str:
    """A row a sample, with every score."""
    text = io.StringIO()
    fields = list(FlowScores.__dataclass_fields__)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "group", *fields])
    for sample in evaluation.samples:
        writer.writerow([sample.name, sample.group, *(getattr(sample.scores, field) for field in fields)])
    return text.getvalue()


def write_submission(
    dataset: Dataset[FlowPair], method: FlowMethod, benchmark: str, folder: Path, progress: Progress | None = None
) -> int:
    """Write the flow of every pair as the benchmark's server wants it; returns how many files.

    Sintel: <pass>/<scene>/<frame>.flo. KITTI: flow/<number>_10.png, 16-bit.
    """
    if benchmark not in ("sintel", "kitti-2012", "kitti-2015"):
        raise InputError(f"{benchmark} has no upload format; choose sintel, kitti-2012 or kitti-2015.")
    for index in range(len(dataset)):
        pair = dataset[index]
        flow = method(pair.first[0], pair.second[0]).permute(1, 2, 0).contiguous().numpy()
        place = f"{pair.names[0]}.flo" if benchmark == "sintel" else f"flow/{pair.names[0]}_10.png"
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (write_flo if benchmark == "sintel" else write_kitti_flow)(folder / place, flow)
        if progress:
            progress(index + 1, len(dataset))
    return len(dataset)
