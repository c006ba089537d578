"""What stabilizers scored, as a table."""

from rich.table import Table
from rich.text import Text

from protoformer.inference.stabilize_evaluation import StabilityEvaluation

HEAD = ("clip", "method", "cropping", "distortion", "stability", "least", "translation", "rotation", "skipped")
RULES = (
    "cropping: share of the sides that is shown; distortion: least ratio of eigenvalues; stability: share of the "
    "path's energy in its five lowest frequencies, as the field's usual script has it; least: the smaller of those of "
    "translation and rotation; skipped: homographies not found"
)


def stability_table(found: StabilityEvaluation) -> Table:
    """A row a clip and method, the means of each method, and what others published."""
    table = Table(title=Text("stabilization"), box=None, caption=RULES)
    for place, name in enumerate(HEAD):
        table.add_column(name, justify="left" if place < 2 else "right")
    for row in found.rows:
        scores = row.scores
        figures = (scores.cropping, scores.distortion, scores.stability_usual, scores.stability)
        both = (scores.stability_translation, scores.stability_rotation)
        skipped = str(scores.skipped_frames + scores.skipped_motions)
        table.add_row(row.clip, row.method, *map(_shown, (*figures, *both)), skipped)
    for label, means in found.means.items():
        table.add_row("mean", label, *(_shown(value) for value in means.values()), "")
    for other in found.others:
        table.add_row(other.measured_on, other.label, "-", _shown(other.distortion), _shown(other.stability))
    return table


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
