"""Evaluation of trackers on a dataset: one pass over every sequence, initialized with its first box."""

import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import PUBLISHED_TRACKING, PublishedTracking, peer_rows
from protoformer.errors import InputError
from protoformer.io.files import csv_text, open_atomic
from protoformer.models.runtime import ProgressCallback
from protoformer.synthetic.samples import TrackSequence
from protoformer.tracking.metrics import (
    NUM_DISTANCES,
    NUM_FRACTIONS,
    NUM_IOUS,
    TrackScores,
    mean_track_scores,
    track_curves,
    track_scores,
)
from protoformer.tracking.video import TrackMethod, track_frames
from protoformer.training.metrics import Averages
from protoformer.video.image_sequence import ImageSequence
from protoformer.video.types import DEFAULT_FPS
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.report import Figure, Page, Section, Tally, format_score, score_table


class TrackMetric(Averages):
    """Mean scores over sequences with equal weights; `compute` returns TrackScores."""

    higher_is_better = True
    frames: Tensor

    def __init__(self) -> None:
        super().__init__(NUM_IOUS + NUM_DISTANCES + NUM_FRACTIONS)
        self.add_state("frames", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, truth: Tensor, present: Tensor) -> None:
        """Add one sequence, with the arguments of `track_scores`."""
        curves, frames = track_curves(predicted, truth, present)
        self.add(Tally.of_rows(curves[None]))
        self.frames = self.frames + frames

    def compute(self) -> TrackScores:
        """Return the scores of all sequences since the last reset."""
        return mean_track_scores(self.total(), int(self.frames))


SUBMISSIONS = ("trackingnet",)
"""Benchmarks with a supported submission format."""
FIELDS = ("success", "precision", "normalized_precision", "normalized_precision_auc", "frames")
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class SequenceScore:
    """Scores of one method on one sequence, and its speed without reading images."""

    name: str
    method: str
    scores: TrackScores
    frames_a_second: float


@dataclass(frozen=True)
class UnusableSequence:
    """A sequence that was skipped for all methods, and the error message."""

    name: str
    problem: str


@dataclass(frozen=True)
class MethodScore:
    """Mean scores of one method over all sequences, with equal weights, and its speed without reading images."""

    scores: TrackScores
    frames_a_second: float


@dataclass(frozen=True)
class TrackEvaluation:
    """Result of an evaluation.

    Attributes:
        methods: Mean scores by method.
        sequences: Scores of each method on each sequence.
        others: Results of other methods to compare with.
        without_truth: Number of sequences that were skipped because only their first box is annotated.
        unusable: Sequences that were skipped because an image cannot be read or a method failed.
    """

    dataset: str
    methods: dict[str, MethodScore]
    sequences: tuple[SequenceScore, ...]
    others: tuple[PublishedTracking, ...]
    without_truth: int
    unusable: tuple[UnusableSequence, ...] = ()


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
    """Evaluate methods on every sequence of a dataset that is annotated after its first frame.

    A tracker is not reinitialized when it loses its target. Sequences start at their first annotated box, and that
    frame counts as correct. A sequence with an unreadable image, or one on which a method fails, is skipped for all
    methods.

    Args:
        dataset: Sequences.
        methods: Methods by name.
        name: Name of the dataset.
        root: Folder of the dataset; a `peers.json` with results of other systems may lie next to it.
        compare: Whether published results exist for this split.
        keep: Callback that receives every sequence with a method's name and boxes, T x 4.
        progress: Callback that receives the number of frames done and the total.

    Returns:
        Scores of all methods.
    """
    counts = [_frames_with_truth(sequence) for sequence in dataset]
    if not any(counts):
        advice = "write its boxes with --submission" if name in SUBMISSIONS else "choose a split that has"
        raise InputError(f"this split of {name} has no true boxes to compare with; {advice}.")
    counter = _FrameCounter(progress, sum(counts) * len(methods))
    metrics = {label: TrackMetric() for label in methods}
    frames, seconds_of = dict.fromkeys(methods, 0), dict.fromkeys(methods, 0.0)
    scored: list[SequenceScore] = []
    unusable: list[UnusableSequence] = []
    for index in (index for index, count in enumerate(counts) if count):
        sequence = track_from_first_box(dataset[index])
        counter.begin(len(sequence.frames) * len(methods))
        try:
            tracks = {label: run_sequence(sequence, method, counter) for label, method in methods.items()}
        except InputError as error:
            unusable.append(UnusableSequence(sequence.name, str(error)))
            continue
        for label, (boxes, seconds) in tracks.items():
            scores = _score_sequence(metrics[label], boxes, sequence)
            scored.append(SequenceScore(sequence.name, label, scores, _fps(len(boxes), seconds)))
            frames[label] += len(boxes)
            seconds_of[label] += seconds
            if keep:
                keep(sequence, label, boxes)
    if not scored:
        raise InputError(f"no sequence of {name} can be used; of the first, {unusable[0].problem}")
    return TrackEvaluation(
        dataset=name,
        methods={
            label: MethodScore(metric.compute(), _fps(frames[label], seconds_of[label]))
            for label, metric in metrics.items()
        },
        sequences=tuple(scored),
        others=other_rows(name, root, scored) if compare else (),
        without_truth=counts.count(0),
        unusable=tuple(unusable),
    )


def track_from_first_box(sequence: TrackSequence) -> TrackSequence:
    """Drop the frames before the first annotated, visible box; without any, return the sequence unchanged."""
    annotated = (sequence.boxes.isfinite().all(dim=1) & sequence.present).nonzero()[:, 0]
    begin = int(annotated[0]) if len(annotated) else 0
    return replace(
        sequence, frames=sequence.frames[begin:], boxes=sequence.boxes[begin:], present=sequence.present[begin:]
    )


def run_sequence(
    sequence: TrackSequence, method: TrackMethod, callback: Callable[[], None] | None = None
) -> tuple[Tensor, float]:
    """Run a method over a sequence with an annotated first box; `callback` is called after every frame.

    Returns the boxes, T x 4, the first of which is the true one, and the run time of the method, seconds.
    """
    if not sequence.boxes[0].isfinite().all():
        raise InputError(
            f"the first box of {sequence.name} is not annotated, and tracking starts with it; leave it out."
        )
    boxes, seconds = [], 0.0
    try:
        video = ImageSequence(sequence.frames, DEFAULT_FPS)
        for step in track_frames(video, sequence.boxes[:1], method):
            boxes.append(step.targets[0].box)
            seconds += step.seconds
            if callback:
                callback()
    except InputError as error:
        raise InputError(f"{sequence.name} cannot be tracked: {error}") from None
    return torch.tensor(boxes, dtype=torch.float32), seconds


class _FrameCounter:
    """Counts frames and reports progress."""

    def __init__(self, progress: ProgressCallback | None, total: int) -> None:
        self._progress, self._total, self._done, self._reached = progress, total, 0, 0

    def begin(self, frames: int) -> None:
        """Start a sequence; frames that the previous one did not reach count as done."""
        self._done, self._reached = self._reached, self._reached + frames

    def __call__(self) -> None:
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)


def _frames_with_truth(sequence: TrackSequence) -> int:
    """Return the number of frames to run; 0 if there is nothing to score after the first."""
    trimmed = track_from_first_box(sequence)
    return len(trimmed.frames) if bool(trimmed.present[1:].any()) else 0


def _score_sequence(metric: TrackMetric, boxes: Tensor, sequence: TrackSequence) -> TrackScores:
    """Return the scores of one sequence and add it to the metric."""
    try:
        metric.update(boxes, sequence.boxes, sequence.present)
    except ValueError as error:  # for example a box that is not finite
        raise InputError(f"the track of {sequence.name} cannot be scored ({error}); try another method.") from None
    return track_scores(boxes, sequence.boxes, sequence.present)


def _fps(frames: int, seconds: float) -> float:
    return frames / max(seconds, 1e-9)


def other_rows(dataset: str, root: Path, scored: list[SequenceScore]) -> tuple[PublishedTracking, ...]:
    """Return comparison rows: means of the peers' results, as in `peer_rows`, then published results."""
    own: dict[str, dict[str, dict[str, float]]] = {}
    for each in scored:
        scores = {"success": each.scores.success, "precision": each.scores.precision}
        own.setdefault(each.method, {})[each.name] = scores
    peers = peer_rows(PublishedTracking, root, "tracking", own, {"success": "success", "precision": "precision"})
    return (*peers, *PUBLISHED_TRACKING.get(dataset, ()))


def tracks_csv(evaluation: TrackEvaluation) -> str:
    """Format one CSV row per sequence and method, and one with the error message per skipped sequence."""
    rows: list[list[object]] = [["name", "method", *FIELDS, "frames_a_second", "problem"]]
    for score in evaluation.sequences:
        cells = (getattr(score.scores, field) for field in FIELDS)
        values = ("" if math.isnan(cell) else cell for cell in cells)
        rows.append([score.name, score.method, *values, round(score.frames_a_second, 2), ""])
    rows += [[each.name, *[""] * (len(FIELDS) + 2), each.problem] for each in evaluation.unusable]
    return csv_text(rows)


def format_boxes(boxes: Tensor) -> str:
    """Format boxes, T x 4, as benchmarks expect them: one line x,y,w,h per frame, with two decimals."""
    return "".join(",".join(f"{value:.2f}" for value in box) + "\n" for box in boxes.tolist())


def check_track_submission(benchmark: str, path: Path) -> None:
    """Check that a benchmark has a submission format and that the file is a zip archive."""
    if benchmark not in SUBMISSIONS:
        raise InputError(f"{benchmark} has no upload format; choose {', '.join(SUBMISSIONS)}.")
    if path.suffix.lower() != ".zip":
        raise InputError(f"{path} does not end in .zip, which {benchmark}'s server requires; give such a name.")


def write_track_submission(
    dataset: Dataset[TrackSequence], method: TrackMethod, path: Path, progress: ProgressCallback | None = None
) -> int:
    """Write the predicted boxes of every sequence in TrackingNet's submission format.

    The zip archive holds one text file <sequence>.txt per sequence, with one line x,y,w,h per frame; the first line is
    the given box.

    Args:
        dataset: Sequences.
        method: Tracker to run.
        path: Output file.
        progress: Callback that receives the number of frames done and the total.

    Returns:
        The number of sequences.
    """
    counter = _FrameCounter(progress, sum(len(sequence.frames) for sequence in dataset))
    with open_atomic(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for sequence in dataset:
            boxes, _ = run_sequence(sequence, method, counter)
            # A fixed timestamp makes the archive reproducible.
            archive.writestr(zipfile.ZipInfo(f"{sequence.name}.txt", _ZIP_DATE), format_boxes(boxes))
    return len(dataset)


COLUMNS = {
    "success": "success",
    "precision": "precision",
    "norm. precision": "normalized_precision",
    "norm. precision AUC": "normalized_precision_auc",
}
RULES = (
    "Percent. Success: area under the IoU curve; precision: center error within 20 px; norm.: in box sizes, within "
    "0.2, and its area to 0.5. One pass from the first box; frames without the object are left out."
)
HEAD = ("method", "measured on", *COLUMNS, "frames/s")


def track_table(evaluation: TrackEvaluation) -> Table:
    """Format a table with one row per method, followed by the rows for comparison."""
    figures = (column.replace("norm. ", "norm.\n") for column in HEAD[2:])
    table = score_table(f"tracking on {evaluation.dataset}", RULES, HEAD[:2], figures)
    for index, row in enumerate(_rows(evaluation)):
        table.add_row(*(Text(cell) for cell in row), style="bold" if index < len(evaluation.methods) else "dim")
    return table


def track_page(evaluation: TrackEvaluation) -> Page:
    """Make a page with the success and precision curves of all methods and the table."""
    success, precision = (
        [
            Curve(f"{label}: {_percent(getattr(each.scores, figure))}", _points(getattr(each.scores, curve), step))
            for label, each in evaluation.methods.items()
        ]
        for figure, curve, step in (
            ("success", "success_curve", 1 / (NUM_IOUS - 1)),
            ("precision", "precision_curve", 1.0),
        )
    )
    y_label = "fraction of frames"
    figures = (
        Figure(
            line_plot(success, "overlap threshold", y_label, y_range=(0.0, 1.0)),
            _caption("success: overlap above a threshold", success),
        ),
        Figure(
            line_plot(precision, "pixels", y_label, y_range=(0.0, 1.0)),
            _caption("precision: center error within a threshold", precision),
        ),
    )
    return Page(
        title=f"Tracking on {evaluation.dataset}",
        lead=f"{', '.join(evaluation.methods)}: one pass over every sequence, initialized with its first box.",
        sections=(
            Section("Curves", "Mean over all sequences.", figures),
            Section("Scores", RULES, table=(HEAD, *_rows(evaluation))),
            *_skipped_section(evaluation),
        ),
    )


def _skipped_section(evaluation: TrackEvaluation) -> tuple[Section, ...]:
    """Return a section with the skipped sequences, if there are any."""
    if not evaluation.unusable:
        return ()
    rows = ((each.name, each.problem) for each in evaluation.unusable)
    return (Section("Skipped sequences", "These are not part of any score.", table=(("sequence", "problem"), *rows)),)


def _rows(evaluation: TrackEvaluation) -> tuple[tuple[str, ...], ...]:
    own = [
        (
            label,
            f"{each.scores.sequences} sequences",
            *(_percent(getattr(each.scores, field)) for field in COLUMNS.values()),
            f"{each.frames_a_second:.1f}",
        )
        for label, each in evaluation.methods.items()
    ]
    others = [
        (row.label, row.measured_on, *(_percent(getattr(row, field, None)) for field in COLUMNS.values()), "")
        for row in evaluation.others
    ]
    return (*own, *others)


def _points(curve: tuple[float, ...], step: float) -> tuple[tuple[float, float], ...]:
    return tuple((index * step, value) for index, value in enumerate(curve))


def _caption(text: str, curves: list[Curve]) -> str:
    """Add the name of a single curve to a caption, since the plot has no legend then."""
    return f"{text} ({curves[0].name})" if len(curves) == 1 else text


def _percent(value: float | None) -> str:
    return format_score(None if value is None else 100 * value, 1)
