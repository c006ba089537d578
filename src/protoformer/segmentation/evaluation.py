"""Evaluation of motion segmentation by the measures of DAVIS, on datasets and on synthetic clips."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from rich.table import Table
from rich.text import Text

from protoformer.datasets.base import Dataset
from protoformer.datasets.segmentation import MaskSequence, read_labels
from protoformer.errors import InputError
from protoformer.io.files import csv_text
from protoformer.segmentation.metrics import (
    MaskScores,
    assign_objects,
    boundary_accuracy,
    mean_scores,
    region_similarity,
    sequence_scores,
)
from protoformer.segmentation.predictor import SegmentationPredictor
from protoformer.segmentation.result import Labels, SegmentationFrame
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import render_image
from protoformer.video.clip import Source
from protoformer.video.image_sequence import ImageSequence
from protoformer.video.types import DEFAULT_FPS, ImageArray
from protoformer.viz.report import format_score, score_table

SegmentationMethod = Callable[[Source], Iterable[SegmentationFrame]]
VOID = 255
"""Label of pixels that are not evaluated, if masks distinguish objects."""
SYNTHETIC = "synthetic"
"""Name of the synthetic clips, which need no folder."""
SYNTHETIC_FAMILIES, SYNTHETIC_SIZE, SYNTHETIC_FRAMES, SYNTHETIC_STEP = ("chase", "objects"), (240, 424), 24, 2
SYNTHETIC_SEED = 1000
"""Seed of the synthetic clips of the evaluation; constants were chosen on other seeds."""


@dataclass(frozen=True)
class LabeledClip:
    """A clip with ground truth.

    Attributes:
        name: Name of the clip.
        source: Its frames.
        count: Number of frames.
        truth: Returns the labels of a frame, H x W, by its index; None if there are none.
        has_objects: Whether the labels distinguish objects.
    """

    name: str
    source: Source
    count: int
    truth: Callable[[int], Labels | None]
    has_objects: bool


def dataset_clips(dataset: Dataset[MaskSequence]) -> Iterator[LabeledClip]:
    """Yield the clips of a dataset."""
    for sequence in dataset:
        yield LabeledClip(
            sequence.name,
            ImageSequence(sequence.frames, DEFAULT_FPS),
            len(sequence.frames),
            lambda index, masks=sequence.masks: None if masks[index] is None else read_labels(masks[index]),  # type: ignore[misc]
            dataset.name == "davis-2017",
        )


@torch.no_grad()
def synthetic_clips(
    count: int, size: tuple[int, int] = SYNTHETIC_SIZE, count_frames: int = SYNTHETIC_FRAMES
) -> Iterator[LabeledClip]:
    """Render clips with exact masks of everything that moves, of several families in turn."""
    for number in range(count):
        family = SYNTHETIC_FAMILIES[number % len(SYNTHETIC_FAMILIES)]
        scenes = SyntheticScenes(family, SYNTHETIC_SEED, size, shake=0.5)
        renderer = scenes.renderer([number // len(SYNTHETIC_FAMILIES)])
        images: list[ImageArray] = []
        labels: list[Labels] = []
        for index in range(count_frames):
            view = renderer.view(index * SYNTHETIC_STEP / renderer.scenes.fps)
            image = render_image(renderer, view, "final")[0]
            images.append((255 * image).round().byte().permute(1, 2, 0).numpy())
            labels.append(renderer.instances(view)[0, 0].byte().numpy())
        yield LabeledClip(renderer.scenes.names[0], images, len(images), labels.__getitem__, True)


@dataclass(frozen=True)
class SequenceScore:
    """Scores of one method on one sequence.

    Attributes:
        name: Name of the sequence.
        method: Name of the method.
        scores: Scores of the foreground, all objects together, without the first and the last frame.
        objects: Mean of J and F over objects and the frames that show them, each assigned to a predicted object; NaN if
            the masks do not distinguish objects.
        frames: Number of frames.
        frames_a_second: Speed.
    """

    name: str
    method: str
    scores: MaskScores
    objects: float
    frames: int
    frames_a_second: float


@dataclass(frozen=True)
class PublishedSegmentation:
    """Published scores on DAVIS 2016 val of a method without annotations."""

    label: str
    j_mean: float
    f_mean: float


PUBLISHED = (
    PublishedSegmentation("FST (Papazoglou 2013), no learning", 0.558, 0.511),
    PublishedSegmentation("CUT (Keuper 2015), no learning", 0.552, 0.552),
    PublishedSegmentation("NLC (Faktor 2014), no learning", 0.551, 0.523),
    PublishedSegmentation("FSEG (Jain 2017), learned from masks", 0.707, 0.653),
    PublishedSegmentation("ARP (Koh 2017), object proposals", 0.762, 0.706),
)
"""From the leaderboard of DAVIS 2016."""


@dataclass(frozen=True)
class SegmentationEvaluation:
    """Scores of a dataset.

    Attributes:
        dataset: Name of the dataset.
        rows: Scores of every method on every sequence.
        means: Mean scores by method.
        others: Published scores; empty unless they are comparable.
    """

    dataset: str
    rows: tuple[SequenceScore, ...]
    means: dict[str, MaskScores]
    others: tuple[PublishedSegmentation, ...]


def predictor_method(predictor: SegmentationPredictor, method: str = "model") -> SegmentationMethod:
    """Return a method of a predictor."""
    return lambda source: predictor.segment(source, method=method)


def evaluate_segmentation(
    clips: Iterable[LabeledClip],
    methods: dict[str, SegmentationMethod],
    name: str,
    compare: bool = False,
    keep: Callable[[str, str, SegmentationFrame], object] | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> SegmentationEvaluation:
    """Evaluate methods on clips.

    Args:
        clips: Clips with ground truth.
        methods: Methods by name.
        name: Name of the dataset.
        compare: Whether to list published scores.
        keep: Called with the clip, the method and the result of every frame.
        progress: Called with the number of frames so far.
    """
    rows: list[SequenceScore] = []
    done = 0
    for clip in clips:
        for label, method in methods.items():
            tally, seconds, count, begin = _ClipTally(clip), 0.0, 0, time.perf_counter()
            for index, result in enumerate(method(clip.source)):
                seconds += time.perf_counter() - begin
                tally.add(index, result)
                if keep is not None:
                    keep(clip.name, label, result)
                count, done = count + 1, done + 1
                progress(done)
                begin = time.perf_counter()
            scores, objects = tally.scores()
            rows.append(SequenceScore(clip.name, label, scores, objects, count, count / max(1e-9, seconds)))
    if not rows:
        raise InputError(f"{name} has no sequence to evaluate; check its folder.")
    means = {label: mean_scores([row.scores for row in rows if row.method == label]) for label in methods}
    return SegmentationEvaluation(name, tuple(rows), means, PUBLISHED if compare else ())


class _ClipTally:
    """Scores of the frames of one clip."""

    def __init__(self, clip: LabeledClip) -> None:
        self._clip = clip
        self._regions: list[float] = []
        self._boundaries: list[float] = []
        self._pairs: dict[tuple[int, int], list[float]] = {}
        """Sum of (J + F) / 2 over frames, for pairs of a true and a predicted object that overlap in a frame."""
        self._frames: dict[int, int] = {}
        """Number of frames that show a true object."""

    def add(self, index: int, result: SegmentationFrame) -> None:
        """Add the result of a frame."""
        truth = self._clip.truth(index)
        if truth is None:
            return
        labels = result.labels
        if truth.shape != labels.shape:
            raise InputError(
                f"the mask of frame {index} of {self._clip.name} is {truth.shape[1]}x{truth.shape[0]} and the frame is "
                f"{labels.shape[1]}x{labels.shape[0]}; use masks of the same resolution."
            )
        if self._clip.has_objects:
            labels = np.where(truth == VOID, 0, labels).astype(np.uint8)
            truth = np.where(truth == VOID, 0, truth).astype(np.uint8)
            self._add_objects(labels, truth)
        if 0 < index < self._clip.count - 1:
            self._regions.append(region_similarity(labels > 0, truth > 0))
            self._boundaries.append(boundary_accuracy(labels > 0, truth > 0))

    def _add_objects(self, labels: Labels, truth: Labels) -> None:
        for number in np.unique(truth).tolist():
            if not number:
                continue
            self._frames[number] = self._frames.get(number, 0) + 1
            inside = truth == number
            for other in np.unique(labels[inside]).tolist():
                if other:
                    mask = labels == other
                    score = (region_similarity(mask, inside) + boundary_accuracy(mask, inside)) / 2
                    self._pairs.setdefault((number, other), []).append(score)

    def scores(self) -> tuple[MaskScores, float]:
        """Return the scores of the foreground and of the objects."""
        foreground = sequence_scores(self._regions, self._boundaries)
        if not self._frames:
            return foreground, math.nan
        rows, columns = sorted(self._frames), sorted({other for _, other in self._pairs})
        table = np.zeros((len(rows), len(columns)))
        for (number, other), values in self._pairs.items():
            table[rows.index(number), columns.index(other)] = sum(values) / self._frames[number]
        assigned = assign_objects(table)
        return foreground, float(
            np.mean([table[row, column] if column >= 0 else 0 for row, column in enumerate(assigned)])
        )


FIELDS = ("j_mean", "j_recall", "j_decay", "f_mean", "f_recall", "f_decay")
HEADS = ("J mean", "recall", "decay", "F mean", "recall", "decay")
RULES = (
    "J: intersection over union of the foreground; F: boundary accuracy; recall: fraction of frames over 0.5; decay: "
    "first quarter minus last; the first and the last frame are left out, as in DAVIS 2016; objects: mean of J and F "
    "over the frames that show an object, each assigned to one predicted object"
)


def segmentation_tables(evaluation: SegmentationEvaluation) -> tuple[Table, ...]:
    """Format a table with a row per sequence and method, the means and published scores."""
    heads = (*HEADS, "objects", "frames/s")
    table = score_table(f"motion segmentation, {evaluation.dataset}", RULES, ("sequence", "method"), heads)
    for row in evaluation.rows:
        extra = (format_score(row.objects, 3, "-"), format_score(row.frames_a_second, 2))
        table.add_row(Text(row.name), Text(row.method), *_cells(row.scores), *extra)
    for label, mean in evaluation.means.items():
        objects = [row.objects for row in evaluation.rows if row.method == label and not math.isnan(row.objects)]
        mean_objects = float(np.mean(objects)) if objects else math.nan
        table.add_row("mean", Text(label), *_cells(mean), format_score(mean_objects, 3, "-"), "")
    for other in evaluation.others:
        cells = [format_score(other.j_mean, 3), "-", "-", format_score(other.f_mean, 3), "-", "-", "-", ""]
        table.add_row("published", Text(other.label), *cells)
    return (table,)


def segmentation_csv(evaluation: SegmentationEvaluation) -> str:
    """Format one csv row per sequence and method."""
    rows: list[list[object]] = [["sequence", "method", *FIELDS, "objects", "frames"]]
    for row in evaluation.rows:
        values = [f"{getattr(row.scores, name):.4f}" for name in FIELDS]
        rows.append([row.name, row.method, *values, format_score(row.objects, 4), row.frames])
    return csv_text(rows)


def _cells(scores: MaskScores) -> list[str]:
    return [format_score(getattr(scores, name), 3, "-") for name in FIELDS]
