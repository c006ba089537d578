"""What stabilizers scored, as a table."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from protoformer.inference.stabilize_evaluation import DETAILS, MEASURES, USUAL, StabilityEvaluation
from protoformer.show.score_table import score_table

RULES = (
    "cropping: share of the sides that is shown; distortion: least ratio of eigenvalues; stability: share of the "
    "path's energy in its five lowest frequencies, as the field's usual script has it; acceleration: mean change of "
    "velocity, pixels a frame, less being better"
)
OWN_RULES = (
    "the stability of translation and of rotation, and the smaller of both; skipped: homographies that were not found"
)


def stability_tables(found: StabilityEvaluation) -> tuple[Table, Table]:
    """A row a clip and method, the means of each method, and what others published; and what else there is of ours."""
    words = ("clip", "method")
    beside = score_table("stabilization", RULES, words, ("cropping", "distortion", "stability", "acceleration"))
    figures = ("least", "translation", "rotation", "skipped")
    alone = score_table("stabilization, in detail", OWN_RULES, words, figures)
    for row in found.rows:
        scores, named = {each: row.told(each) for each in MEASURES}, (Text(row.clip), Text(row.method))
        skipped = str(row.scores.skipped_frames + row.scores.skipped_motions)
        beside.add_row(*named, *_figures(scores, USUAL))
        alone.add_row(*named, *_figures(scores, DETAILS), skipped)
    for label, means in found.means.items():
        beside.add_row("mean", Text(label), *_figures(means, USUAL))
        alone.add_row("mean", Text(label), *_figures(means, DETAILS), "")
    for other in found.others:
        beside.add_row(
            other.measured_on, Text(other.label), "-", _shown(other.distortion), _shown(other.stability), "-"
        )
    return beside, alone


def _figures(scores: Mapping[str, float], measures: tuple[str, ...]) -> list[str]:
    return [_shown(scores[measure]) for measure in measures]


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
