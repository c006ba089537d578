"""What an evaluation of depth found, as a table and as pictures of the worst."""

import math

import numpy as np
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.files import depth_to_color
from protoformer.files.depth_color import usual_range
from protoformer.inference.depth_evaluation import ROWS, DepthEvaluation
from protoformer.metrics import DepthTable
from protoformer.show.prototypes import Pixels, grey_picture, picture
from protoformer.show.score_table import score_table
from protoformer.show.worst import Worst
from protoformer.world import DepthSample

COLUMNS = {"AbsRel": "abs_rel", "SqRel": "sq_rel", "RMSE": "rmse", "d<1.25": "delta1"}
"""Figures that others publish, too."""
OWN_COLUMNS = {"RMSElog": "rmse_log", "SILog": "silog", "d<1.25^2": "delta2", "d<1.25^3": "delta3"}
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
    beside = score_table(name, rules, ("row", "method", "measured on"), COLUMNS)
    alone = score_table(f"{name}, in detail", "", ("row",), OWN_COLUMNS)
    for label, row in ROWS.items():
        scores = getattr(evaluation.table, row)
        own = (_shown(getattr(scores, field)) for field in COLUMNS.values())
        beside.add_row(label, Text(evaluation.method), f"{evaluation.table.samples} images", *own, style="bold")
        alone.add_row(label, *(_shown(getattr(scores, field)) for field in OWN_COLUMNS.values()))
    for other in evaluation.others:
        cells = (_shown(getattr(other, field, None)) for field in COLUMNS.values())
        beside.add_row(other.row, Text(other.label), other.measured_on, *cells, style="dim")
    return beside, alone


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.3f}"


class WorstDepths(Worst):
    """Keeps pictures of the samples with the largest relative errors: image, truth, estimate, error."""

    def keep(self, sample: DepthSample, depth: Tensor, table: DepthTable) -> None:
        """Draw a sample if it is among the worst so far."""
        self.offer(table.metric.abs_rel, sample.names[0], lambda: depth_comparison(sample, depth))


def depth_comparison(sample: DepthSample, depth: Tensor) -> Pixels:
    """Image and truth above, estimate and error below, on the truth's scale of colours: uint8 2H x 2W x 3.

    depth: 1 x H x W, metres. Unknown truth is grey in the truth and black in the error, which is white at half of the
    true depth.
    """
    truth, valid = sample.depth[0, 0].cpu(), sample.valid[0, 0].cpu()
    colours = usual_range(truth[valid].numpy())
    true_colours = depth_to_color(truth.where(valid, 0.0).numpy(), *colours)
    error = (depth[0].cpu() - truth).abs() / truth.where(valid, 1.0) * valid
    white = np.repeat(grey_picture(error / WHITE_ERROR)[..., None], 3, axis=2)
    above = np.concatenate((picture(sample.image[0]), true_colours), axis=1)
    below = np.concatenate((depth_to_color(depth[0].cpu().numpy(), *colours), white), axis=1)
    return np.concatenate((above, below))
