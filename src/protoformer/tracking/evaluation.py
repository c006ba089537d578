"""Trackers on a dataset, by the benchmark's rules: one pass over every sequence, from its first box on."""

import csv
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.published import PUBLISHED_TRACKING, PublishedTracking, peer_results
from protoformer.datasets.tree import Dataset
from protoformer.errors import InputError
from protoformer.io.files import open_atomic
from protoformer.models.runtime import ProgressCallback
from protoformer.synthetic.samples import TrackSequence
from protoformer.tracking.metrics import (
    FRACTIONS,
    OVERLAPS,
    PIXELS,
    TrackScores,
    mean_track_scores,
    track_curves,
    track_scores,
)
from protoformer.tracking.video import TrackMethod, track_frames
from protoformer.training.metrics import Averages
from protoformer.training.task import Tally
from protoformer.video.image_sequence import ImageSequence
from protoformer.video.types import DEFAULT_RATE
from protoformer.viz.html import Figure, Page, Section
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.text import score_table


class TrackMetric(Averages):
    """Scores over all sequences it is shown, each weighed alike; `compute` returns TrackScores."""

    higher_is_better = True
    frames: Tensor

    def __init__(self) -> None:
        super().__init__(OVERLAPS + PIXELS + FRACTIONS)
        self.add_state("frames", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, truth: Tensor, present: Tensor) -> None:
        """Add one sequence, in the terms of `track_scores`."""
        curves, frames = track_curves(predicted, truth, present)
        self.add(Tally.of_rows(curves[None]))
        self.frames = self.frames + frames

    def compute(self) -> TrackScores:
        """The scores of everything shown since the last reset."""
        return mean_track_scores(self.total(), int(self.frames))


SUBMISSIONS = ("trackingnet",)
"""Benchmarks whose servers take files that can be written here."""
FIELDS = ("success", "precision", "normalized_precision", "normalized_precision_auc", "frames")
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class SequenceScore:
    """One method's scores on one sequence. frames_a_second: of the method alone, without reading images."""

    name: str
    method: str
    scores: TrackScores
    frames_a_second: float


@dataclass(frozen=True)
class UnusableSequence:
    """A sequence that no method has scores of. problem: the sentence that says why."""

    name: str
    problem: str


@dataclass(frozen=True)
class MethodScore:
    """One method's scores over all sequences, each weighed alike, and its frames a second."""

    scores: TrackScores
    frames_a_second: float


@dataclass(frozen=True)
class TrackEvaluation:
    """Everything that was measured.

    methods: by their names. sequences: each method's on each sequence. others: rows to compare with. without_truth: how
    many sequences were passed over because only their first box is known. unusable: those that were because an
    image of theirs cannot be read, or because a method cannot follow them, and why.
    """

    dataset: str
    methods: dict[str, MethodScore]
    sequences: tuple[SequenceScore, ...]
    others: tuple[PublishedTracking, ...]
    without_truth: int
    unusable: tuple[UnusableSequence, ...] = ()


@dataclass
class _Run:
    """What one method did so far."""

    metric: "TrackMetric"
    frames: int = 0
    seconds: float = 0.0

    def score(self) -> MethodScore:
        return MethodScore(self.metric.compute(), self.frames / max(self.seconds, 1e-9))


def evaluate_track(
    dataset: Dataset[TrackSequence],
    methods: Mapping[str, TrackMethod],
    *,
    name: str,
    root: Path,
    compare: bool = True,
    keep: Callable[[TrackSequence, str, Tensor], None] | None = None,
    progress: ProgressCallback | None = None,
) -> TrackEvaluation:
    """Run methods, by their names, over every sequence of a dataset that has truth after its first frame.

    name: of the dataset. root: its folder, beside which peers may lie. compare: whether others were measured on this
    split. keep: handed every sequence with a method's name and boxes, T x 4. progress: told of frames. Nothing is
    begun anew when a target is lost, and the first frame counts as given: that of the first box that is known. A
    sequence that one of the methods cannot follow, or one of whose images cannot be read, is passed over and has no
    part in a score.
    """
    counts = [_frames_with_truth(sequence) for sequence in dataset]
    if not any(counts):
        advice = "write its boxes with --submission" if name in SUBMISSIONS else "choose a split that has"
        raise InputError(f"this split of {name} has no true boxes to compare with; {advice}.")
    told = _Counted(progress, sum(counts) * len(methods))
    runs = {label: _Run(TrackMetric()) for label in methods}
    scored: list[SequenceScore] = []
    unusable: list[UnusableSequence] = []
    for index in (index for index, count in enumerate(counts) if count):
        sequence = track_from_first_box(dataset[index])
        told.begin(len(sequence.frames) * len(methods))
        try:
            tracks = {label: run_sequence(sequence, method, told) for label, method in methods.items()}
        except InputError as error:
            unusable.append(UnusableSequence(sequence.name, str(error)))
            continue
        for label, (boxes, seconds) in tracks.items():
            scored.append(_score(sequence, label, boxes, seconds, runs[label]))
            if keep:
                keep(sequence, label, boxes)
    if not scored:
        raise InputError(f"no sequence of {name} can be used; of the first, {unusable[0].problem}")
    return TrackEvaluation(
        dataset=name,
        methods={label: run.score() for label, run in runs.items()},
        sequences=tuple(scored),
        others=other_rows(name, root, scored) if compare else (),
        without_truth=counts.count(0),
        unusable=tuple(unusable),
    )


def track_from_first_box(sequence: TrackSequence) -> TrackSequence:
    """A sequence without the frames before the first whose box is known and shows the object; as it is without one."""
    known = (sequence.boxes.isfinite().all(dim=1) & sequence.present).nonzero()[:, 0]
    begin = int(known[0]) if len(known) else 0
    return replace(
        sequence, frames=sequence.frames[begin:], boxes=sequence.boxes[begin:], present=sequence.present[begin:]
    )


def run_sequence(
    sequence: TrackSequence, method: TrackMethod, told: Callable[[], None] | None = None
) -> tuple[Tensor, float]:
    """A method's boxes of a sequence, T x 4, the first being the true one, and the seconds it took for them."""
    if not sequence.boxes[0].isfinite().all():
        raise InputError(f"the first box of {sequence.name} is not known, and tracking begins with it; leave it out.")
    found, seconds = [], 0.0
    try:
        movie = ImageSequence(sequence.frames, DEFAULT_RATE)
        for step in track_frames(movie, sequence.boxes[:1], method):
            found.append(step.targets[0].box)
            seconds += step.seconds
            if told:
                told()
    except InputError as error:
        raise InputError(f"{sequence.name} cannot be followed: {error}") from None
    return torch.tensor(found, dtype=torch.float32), seconds


class _Counted:
    """Counts frames."""

    def __init__(self, progress: ProgressCallback | None, total: int) -> None:
        self._progress, self._total, self._done, self._reached = progress, total, 0, 0

    def begin(self, frames: int) -> None:
        """A sequence with so many frames begins: those that the one before it did not come to count as done."""
        self._done, self._reached = self._reached, self._reached + frames

    def __call__(self) -> None:
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)


def _frames_with_truth(sequence: TrackSequence) -> int:
    """How many frames are run through; 0 where there is nothing to score after the first."""
    begun = track_from_first_box(sequence)
    return len(begun.frames) if bool(begun.present[1:].any()) else 0


def _score(sequence: TrackSequence, label: str, boxes: Tensor, seconds: float, run: _Run) -> SequenceScore:
    """The scores of one sequence, which also enter its method's run."""
    try:
        run.metric.update(boxes, sequence.boxes, sequence.present)
    except ValueError as error:  # a box that is not finite, say
        raise InputError(f"the track of {sequence.name} cannot be scored ({error}); try another method.") from None
    run.frames, run.seconds = run.frames + len(boxes), run.seconds + seconds
    scores = track_scores(boxes, sequence.boxes, sequence.present)
    return SequenceScore(sequence.name, label, scores, len(boxes) / max(seconds, 1e-9))


def other_rows(dataset: str, root: Path, scored: list[SequenceScore]) -> tuple[PublishedTracking, ...]:
    """The peers' means over those of our sequences that they were measured on, and the published rows.

    Where the peers know only some of our sequences, our own means over these come first.
    """
    peers = peer_results(root.resolve(), "tracking", ("success", "precision"))
    names = {score.name for score in scored}
    known = {name for name in names if any(name in sequences for sequences in peers.values())}
    rows = []
    if known and len(known) < len(names):
        for label in dict.fromkeys(score.method for score in scored):
            ours = [score.scores for score in scored if score.method == label and score.name in known]
            rows.append(_mean_row(label, [{"success": each.success, "precision": each.precision} for each in ours]))
    for label, sequences in peers.items():
        shared = [sequences[name] for name in sorted(known) if name in sequences]
        if shared:
            rows.append(_mean_row(label, shared))
    return (*rows, *PUBLISHED_TRACKING.get(dataset, ()))


def _mean_row(label: str, scores: list[dict[str, float]]) -> PublishedTracking:
    success, precision = (math.fsum(each[field] for each in scores) / len(scores) for field in ("success", "precision"))
    return PublishedTracking(label, f"{len(scores)} of these", success, precision)


def tracks_csv(evaluation: TrackEvaluation) -> str:
    """A row a sequence and method, with every score; a row a sequence that was passed over, with why alone."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "method", *FIELDS, "frames_a_second", "problem"])
    for score in evaluation.sequences:
        cells = (getattr(score.scores, field) for field in FIELDS)
        shown = ("" if math.isnan(cell) else cell for cell in cells)
        writer.writerow([score.name, score.method, *shown, round(score.frames_a_second, 2), ""])
    for each in evaluation.unusable:
        writer.writerow([each.name, *[""] * (len(FIELDS) + 2), each.problem])
    return text.getvalue()


def format_boxes(boxes: Tensor) -> str:
    """T x 4 boxes as benchmarks take them: x,y,w,h a line, to the hundredth of a pixel."""
    return "".join(",".join(f"{value:.2f}" for value in box) + "\n" for box in boxes.tolist())


def check_track_submission(benchmark: str, path: Path) -> None:
    """Refuse a benchmark whose server takes no files that can be written here, and a file that is no archive."""
    if benchmark not in SUBMISSIONS:
        raise InputError(f"{benchmark} has no upload format; choose {', '.join(SUBMISSIONS)}.")
    if path.suffix.lower() != ".zip":
        raise InputError(f"{path} does not end in .zip, as what {benchmark}'s server takes does; give such a name.")


def write_track_submission(
    dataset: Dataset[TrackSequence], method: TrackMethod, path: Path, progress: ProgressCallback | None = None
) -> int:
    """Write the boxes of every sequence as TrackingNet's server wants them; returns how many sequences.

    A zip of text files, <sequence>.txt, each with x,y,w,h a line for every frame, the first being as given.
    """
    told = _Counted(progress, sum(len(sequence.frames) for sequence in dataset))
    with open_atomic(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for sequence in dataset:
            boxes, _ = run_sequence(sequence, method, told)
            # Without the time of writing, the same boxes make the same file.
            archive.writestr(zipfile.ZipInfo(f"{sequence.name}.txt", _ZIP_DATE), format_boxes(boxes))
    return len(dataset)


COLUMNS = {
    "success": "success",
    "precision": "precision",
    "norm. precision": "normalized_precision",
    "norm. precision AUC": "normalized_precision_auc",
}
RULES = (
    "Percent. Success: area under the curve of overlaps; precision: centers within 20 px; norm.: in box sizes, within "
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
            _caption("precision: center no further than a threshold", precision),
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
