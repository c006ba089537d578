"""The path of a camera before and after it was made steady, as curves on a page."""

from protoformer.inference.stabilize_results import StabilizeResult
from protoformer.metrics.stability import TELLING, StabilityScores
from protoformer.show.page import Figure, Page, Section
from protoformer.show.plots import Curve, line_plot

SIGNALS = (("x", "pixels"), ("y", "pixels"), ("angle", "radians"), ("scale", "natural logarithm"))
MOST_POINTS = 2000


def path_figures(result: StabilizeResult) -> tuple[Figure, ...]:
    """A plot of each signal over time, before and after."""
    step = -(-len(result.times) // MOST_POINTS)
    seconds = [float(time) for time in result.times[::step]]
    figures = []
    for place, (name, unit) in enumerate(SIGNALS):
        curves = [
            Curve(label, tuple(zip(seconds, path[::step, place].tolist(), strict=True)))
            for label, path in (("before", result.path_before), ("after", result.path_after))
        ]
        figures.append(Figure(line_plot(curves, "seconds", unit), f"{name} of the camera's path"))
    return tuple(figures)


def path_page(
    name: str, result: StabilizeResult, scores: tuple[StabilityScores, StabilityScores] | None = None
) -> Page:
    """The curves of a clip of this name and, if they were measured, the scores before and after."""
    before, after = result.acceleration
    text = (
        f"{len(result.times)} frames; {result.cropping:.1%} of each side is shown. From frame to frame the velocity "
        f"changed by {before:.2f} px on average, and now by {after:.2f} px. {len(result.cuts)} cuts, "
        f"{len(result.bridged)} frames without anything to go by."
    )
    head = ("", "cropping", "distortion", "stability")
    table = () if scores is None else (head, *map(_row, ("before", "after"), scores))
    section = Section("The camera's path", text, path_figures(result), table)
    return Page(f"{name}, made steady", "How the camera moved, and how it moves now.", sections=(section,))


def _row(label: str, scores: StabilityScores) -> tuple[str, ...]:
    figures = (scores.cropping, scores.distortion, scores.stability)
    cells = ["-" if value != value else f"{value:.3f}" for value in figures]
    return (label, *cells) if scores.is_telling else (label, *cells[:-1], too_short(scores))


def too_short(scores: StabilityScores) -> str:
    """What stands in the place of a stability that would tell nothing."""
    frames = f"{scores.frames} frames"
    if scores.skipped_motions:
        frames = f"{scores.frames - scores.skipped_motions} of {frames} could be followed"
    return f"too short to score: {frames}, and it takes {TELLING + 1}"
