"""What an evaluation of trackers found, as a table and as curves."""

import math

from rich.table import Table
from rich.text import Text

from protoformer.inference.track_evaluation import TrackEvaluation
from protoformer.metrics.tracking import OVERLAPS
from protoformer.show.page import Figure, Page, Section
from protoformer.show.plots import Curve, line_plot
from protoformer.show.score_table import score_table

COLUMNS = {
    "success": "success",
    "precision": "precision",
    "norm. precision": "normalised_precision",
    "norm. precision AUC": "normalised_precision_auc",
}
RULES = (
    "Percent. Success: area under the curve of overlaps; precision: centres within 20 px; norm.: in box sizes, within "
    "0.2, and its area to 0.5. One pass from the first box; frames without the object are left out."
)
HEAD = ("method", "measured on", *COLUMNS, "frames/s")


def track_table(evaluation: TrackEvaluation) -> Table:
    """A row a method, and below them the rows of others."""
    figures = (column.replace("norm. ", "norm.\n") for column in HEAD[2:])
    table = score_table(f"tracking on {evaluation.dataset}", RULES, HEAD[:2], figures)
    for place, row in enumerate(_rows(evaluation)):
        table.add_row(*(Text(cell) for cell in row), style="bold" if place < len(evaluation.methods) else "dim")
    return table


def track_page(evaluation: TrackEvaluation) -> Page:
    """Both curves, a line a method, and the table."""
    success, precision = (
        [
            Curve(f"{label}: {_shown(getattr(each.scores, figure))}", _points(getattr(each.scores, curve), step))
            for label, each in evaluation.methods.items()
        ]
        for figure, curve, step in (
            ("success", "success_curve", 1 / (OVERLAPS - 1)),
            ("precision", "precision_curve", 1.0),
        )
    )
    share = "share of frames"
    figures = (
        Figure(
            line_plot(success, "overlap threshold", share, y_span=(0.0, 1.0)),
            _caption("success: overlap over a threshold", success),
        ),
        Figure(
            line_plot(precision, "pixels", share, y_span=(0.0, 1.0)),
            _caption("precision: centre no further than a threshold", precision),
        ),
    )
    return Page(
        title=f"Tracking on {evaluation.dataset}",
        lead=f"{', '.join(evaluation.methods)}: one pass over every sequence, from its first box on.",
        sections=(
            Section("Curves", "The mean of every sequence's own.", figures),
            Section("Scores", RULES, table=(HEAD, *_rows(evaluation))),
            *_passed_over(evaluation),
        ),
    )


def _passed_over(evaluation: TrackEvaluation) -> tuple[Section, ...]:
    """What could not be used, where there is any."""
    if not evaluation.unusable:
        return ()
    rows = ((each.name, each.problem) for each in evaluation.unusable)
    return (Section("Passed over", "These have no part in any score.", table=(("sequence", "problem"), *rows)),)


def _rows(evaluation: TrackEvaluation) -> tuple[tuple[str, ...], ...]:
    own = [
        (
            label,
            f"{each.scores.sequences} sequences",
            *(_shown(getattr(each.scores, field)) for field in COLUMNS.values()),
            f"{each.frames_a_second:.1f}",
        )
        for label, each in evaluation.methods.items()
    ]
    others = [
        (row.label, row.measured_on, *(_shown(getattr(row, field, None)) for field in COLUMNS.values()), "")
        for row in evaluation.others
    ]
    return (*own, *others)


def _points(curve: tuple[float, ...], step: float) -> tuple[tuple[float, float], ...]:
    return tuple((place * step, share) for place, share in enumerate(curve))


def _caption(what: str, curves: list[Curve]) -> str:
    """A single line has no name inside the plot."""
    return f"{what} ({curves[0].name})" if len(curves) == 1 else what


def _shown(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{100 * value:.1f}"
