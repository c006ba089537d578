"""What an evaluation found, as a table and as pictures of the worst."""

import math

import numpy as np
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.files import flow_to_color
from protoformer.inference.evaluation import FlowEvaluation
from protoformer.metrics import FlowScores
from protoformer.show.prototypes import Pixels, grey_picture, picture
from protoformer.show.score_table import score_table
from protoformer.show.worst import Worst
from protoformer.world import FlowSample

COLUMNS = {"EPE": "epe", "EPE/image": "epe_per_image", "Fl %": "fl", "Fl/image %": "fl_per_image"}
"""Figures that others publish, too."""
OWN_COLUMNS = {
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


def evaluation_tables(evaluation: FlowEvaluation) -> tuple[Table, Table]:
    """Our row of each group above those of others, figures in the columns of their kind of mean; and our rest."""
    name = f"{evaluation.method} on {evaluation.dataset}"
    rules = "EPE (px), Fl: over all known pixels; /image: the mean of each image's own"
    beside = score_table(name, rules, ("group", "method", "measured on"), COLUMNS)
    rules = "outliers: over 1, 3, 5 px; s: EPE by true speed; matched, unmatched: EPE of what stays in sight or not"
    alone = score_table(f"{name}, in detail", rules, ("group",), OWN_COLUMNS)
    for group, scores in evaluation.groups.items():
        own = (_shown(getattr(scores, field)) for field in COLUMNS.values())
        beside.add_row(group, Text(evaluation.method), f"{scores.samples} samples", *own, style="bold")
        for row in evaluation.others[group]:
            cells = (_shown(getattr(row, field, None)) for field in COLUMNS.values())
            beside.add_row("", Text(row.label), row.measured_on, *cells, style="dim")
        alone.add_row(group, *(_shown(getattr(scores, field)) for field in OWN_COLUMNS.values()))
    return beside, alone


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"


class WorstPictures(Worst):
    """Keeps pictures of the samples with the largest end-point errors: first image, truth, estimate, error."""

    def keep(self, sample: FlowSample, flow: Tensor, scores: FlowScores) -> None:
        """Draw a sample if it is among the worst so far."""
        self.offer(scores.epe, sample.names[0], lambda: comparison(sample, flow))


def comparison(sample: FlowSample, flow: Tensor) -> Pixels:
    """First image and truth above, estimate and error below, on one scale of colours: uint8 2H x 2W x 3.

    Unknown truth is black. The error is white at 10 px.
    """
    valid = sample.valid[0, 0]
    truth = sample.flow[0]
    speeds = truth.norm(dim=0)[valid]
    scale = max(1.0, float(np.quantile(speeds.numpy(), 0.99))) if len(speeds) else 1.0
    true_colours = flow_to_color(truth.permute(1, 2, 0).numpy(), scale)
    true_colours[~valid.numpy()] = 0
    error = grey_picture((flow - truth).norm(dim=0) * valid / 10)
    above = np.concatenate((picture(sample.first[0]), true_colours), axis=1)
    below = np.concatenate(
        (flow_to_color(flow.permute(1, 2, 0).numpy(), scale), np.repeat(error[..., None], 3, 2)), axis=1
    )
    return np.concatenate((above, below))
