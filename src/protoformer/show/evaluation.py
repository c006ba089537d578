"""What an evaluation found, as a table and as pictures of the worst."""

import heapq
import math
from pathlib import Path

import numpy as np
from rich.table import Table
from torch import Tensor

from protoformer.files import flow_to_color, write_image
from protoformer.inference.evaluation import FlowEvaluation
from protoformer.metrics import FlowScores
from protoformer.show.prototypes import Pixels, grey_picture, picture
from protoformer.world import FlowSample

COLUMNS = {
    "EPE": "epe",
    "EPE/image": "epe_per_image",
    "Fl %": "fl",
    "Fl/image %": "fl_per_image",
    ">1px %": "px1",
    ">3px %": "px3",
    ">5px %": "px5",
    "s0-10": "s0_10",
    "s10-40": "s10_40",
    "s40+": "s40_plus",
    "matched": "matched",
    "unmatched": "unmatched",
}


def evaluation_table(evaluation: FlowEvaluation) -> Table:
    """Our row of each group, and below it the rows of others, which stand in the column of their own kind of mean."""
    table = Table(
        title=f"{evaluation.method} on {evaluation.dataset}",
        box=None,
        caption=(
            "EPE, Fl: over all pixels; /image: the mean of each image's own. "
            "Rows of others: on as many of the same images, or on the whole set as published."
        ),
    )
    table.add_column("group")
    table.add_column("method")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for group, scores in evaluation.groups.items():
        own = (_shown(getattr(scores, field)) for field in COLUMNS.values())
        table.add_row(group, f"{evaluation.method} ({scores.samples} samples)", *own, style="bold")
        for row in (row for row in evaluation.others if row.group == group):
            whole = row.mean == "whole set"
            cells = {"EPE" if whole else "EPE/image": row.epe, "Fl %" if whole else "Fl/image %": row.fl}
            table.add_row(
                "", f"{row.label}, {row.mean}", *(_shown(cells.get(column)) for column in COLUMNS), style="dim"
            )
    return table


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"


class WorstPictures:
    """Keeps pictures of the samples with the largest end-point errors: first image, truth, estimate, error."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[tuple[float, str, Pixels]] = []

    def keep(self, sample: FlowSample, flow: Tensor, scores: FlowScores) -> None:
        """Draw a sample if it is among the worst so far."""
        if self.count and (len(self.kept) < self.count or scores.epe > self.kept[0][0]):
            heapq.heappush(self.kept, (scores.epe, sample.names[0], comparison(sample, flow)))
            if len(self.kept) > self.count:
                heapq.heappop(self.kept)

    def write(self, folder: Path) -> list[Path]:
        """Write them, the worst first, as worst-01-<name>.png and so on."""
        written = []
        for rank, (_, name, pixels) in enumerate(sorted(self.kept, reverse=True, key=lambda each: each[0]), start=1):
            path = folder / f"worst-{rank:02d}-{name.replace('/', '-')}.png"
            write_image(path, pixels)
            written.append(path)
        return written


def comparison(sample: FlowSample, flow: Tensor) -> Pixels:
    """First image and truth above, estimate and error below, on one scale of colours: uint8 2H x 2W x 3.

    Unknown truth is black. The error is white at 10 px.
    """
    valid = sample.valid[0, 0]
    truth = sample.flow[0]
    speeds = truth.norm(dim=0)[valid]
    scale = max(1.0, float(speeds.quantile(0.99)) if 0 < len(speeds) < 2**24 else float(speeds.max(initial=1.0)))
    true_colours = flow_to_color(truth.permute(1, 2, 0).numpy(), scale)
    true_colours[~valid.numpy()] = 0
    error = grey_picture((flow - truth).norm(dim=0) * valid / 10)
    above = np.concatenate((picture(sample.first[0]), true_colours), axis=1)
    below = np.concatenate(
        (flow_to_color(flow.permute(1, 2, 0).numpy(), scale), np.repeat(error[..., None], 3, 2)), axis=1
    )
    return np.concatenate((above, below))
