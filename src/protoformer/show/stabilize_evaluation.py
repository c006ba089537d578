"""What stabilizers scored, as a table."""

from rich.table import Table
from rich.text import Text

from protoformer.inference.stabilize_evaluation import StabilityEvaluation
from protoformer.show.score_table import score_table

RULES = (
    "cropping: share of the sides that is shown; distortion: least ratio of eigenvalues; stability: share of the "
    "path's energy in its five lowest frequencies, as the field's usual script has it; px: mean change of velocity "
    "from frame to frame, less being better"
)
OWN_RULES = (
    "the stability of translation and of rotation, and the smaller of both; skipped: homographies that were not found"
)


def stability_tables(found: StabilityEvaluation) -> tuple[Table, Table]:
    """A row a clip and method, the means of each method, and what others published; and what else there is of ours."""
    words = ("clip", "method")
    beside = score_table("stabilization", RULES, words, ("cropping", "distortion", "stability", "px"))
    figures = ("least", "translation", "rotation", "skipped")
    alone = score_table("stabilization, in detail", OWN_RULES, words, figures)
    for row in found.rows:
        scores, named = row.scores, (Text(row.clip), Text(row.method))
        usual = (scores.cropping, scores.distortion, scores.stability_usual, scores.acceleration)
        beside.add_row(*named, *map(_shown, usual))
        parts = (scores.stability, scores.stability_translation, scores.stability_rotation)
        alone.add_row(*named, *map(_shown, parts), str(scores.skipped_frames + scores.skipped_motions))
    for label, means in found.means.items():
        shown = [_shown(value) for value in means.values()]
        beside.add_row("mean", Text(label), *shown[:4])
        alone.add_row("mean", Text(label), *shown[4:], "")
    for other in found.others:
        beside.add_row(
            other.measured_on, Text(other.label), "-", _shown(other.distortion), _shown(other.stability), "-"
        )
    return beside, alone


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
