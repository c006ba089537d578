"""Evaluation of stabilization methods on the same clips with the same metrics."""

import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from protoformer.datasets.registry import PUBLISHED_STABILITY, PublishedStabilization
from protoformer.datasets.video import DeepStab
from protoformer.errors import InputError
from protoformer.io.files import csv_text
from protoformer.stabilization.camera_motion import FeatureDetector
from protoformer.stabilization.metrics import (
    Point,
    StabilityMeter,
    StabilityScores,
    mean_stability_scores,
    video_scores,
)
from protoformer.training.metrics import Averages
from protoformer.video.reader import open_video
from protoformer.video.types import ImageArray, Video
from protoformer.viz.report import Tally, format_score, score_table

Method = Callable[[Video, int | None], Iterator[tuple[ImageArray, ImageArray]]]
"""Takes a video and the number of frames to use (None: all); yields every frame before and after stabilization."""


@dataclass(frozen=True)
class ClipScore:
    """Scores of one method on one clip."""

    clip: str
    method: str
    scores: StabilityScores

    def reliable_score(self, measure: str) -> float:
        """Return one of MEASURES; NaN for the stability of a clip that is too short."""
        unreliable = measure.startswith("stability") and not self.scores.is_reliable
        return math.nan if unreliable else float(getattr(self.scores, measure))


@dataclass(frozen=True)
class StabilityEvaluation:
    """Scores of every method on every clip, their means by method, and published results."""

    rows: tuple[ClipScore, ...]
    means: dict[str, dict[str, float]]
    others: tuple[PublishedStabilization, ...] = field(default=PUBLISHED_STABILITY)


VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv"})
COMMON_SCORES = ("cropping", "distortion", "stability", "acceleration")
"""Columns of the table of common measures."""
COMMON_MEASURES = ("cropping", "distortion", "stability_usual", "acceleration")
DETAIL_MEASURES = ("stability", "stability_translation", "stability_rotation")
MEASURES = (*COMMON_MEASURES, *DETAIL_MEASURES)
"""All measures: those of published tables, and further ones."""


def list_clips(root: Path) -> dict[str, Path]:
    """List the unstable clips of a folder by name.

    Args:
        root: Folder in DeepStab's layout, or a folder of videos.
    """
    if (root / "unstable").is_dir():
        pairs = DeepStab(root, trust_headers=True)
        return {name: pairs[index].unstable for index, name in enumerate(pairs.names)}
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the one that holds the clips.")
    clips = {path.name: path for path in sorted(root.iterdir()) if path.suffix.lower() in VIDEO_SUFFIXES}
    if not clips:
        raise InputError(f"{root} holds no videos; give a folder of clips, or one in DeepStab's layout.")
    return clips


def identity_method(video: Video, frames: int | None) -> Iterator[tuple[ImageArray, ImageArray]]:
    """Yield the frames of a clip unchanged."""
    for frame in islice(video.frames(), frames):
        yield frame.image, frame.image


def evaluate_stability(
    clips: dict[str, Path],
    methods: dict[str, Method],
    frames: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> StabilityEvaluation:
    """Evaluate every method on every clip.

    Args:
        clips: Files by name of the clip.
        methods: Methods by name.
        frames: Number of frames to use of every clip; None for all.
        progress: Callback that receives the number of frames measured so far.

    Returns:
        Scores of all methods.
    """
    rows, count, detector = [], 0, FeatureDetector()
    for name, path in clips.items():
        video = open_video(path)
        for label, method in methods.items():
            meter = StabilityMeter()
            for before, after in method(video, frames):
                features = detector.detect(before)
                meter.add(features, features if after is before else detector.detect(after))
                count += 1
                progress(count)
            rows.append(ClipScore(name, label, meter.scores()))
    return StabilityEvaluation(tuple(rows), {label: _mean(rows, label) for label in methods})


def stability_csv(evaluation: StabilityEvaluation) -> str:
    """Format one CSV row per clip and method."""
    rows: list[list[object]] = [["clip", "method", *MEASURES, "skipped_frames", "skipped_motions"]]
    for row in evaluation.rows:
        values = (f"{getattr(row.scores, measure):.4f}" for measure in MEASURES)
        rows.append([row.clip, row.method, *values, row.scores.skipped_frames, row.scores.skipped_motions])
    return csv_text(rows)


def _mean(rows: Sequence[ClipScore], label: str) -> dict[str, float]:
    selected = [row for row in rows if row.method == label]
    return {measure: _nanmean(row.reliable_score(measure) for row in selected) for measure in MEASURES}


def _nanmean(values: Iterable[float]) -> float:
    valid = [value for value in values if value == value]
    return float(np.mean(valid)) if valid else float("nan")


SHAKINESS = 7
"""vid.stab's shakiness, of 10; its default is 5."""


def vidstab_missing() -> str:
    """Return the reason why vid.stab cannot be run, or an empty string."""
    program = shutil.which("ffmpeg")
    if program is None:
        return "there is no ffmpeg on this machine"
    listed = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    return "" if "vidstabtransform" in listed.stdout else "the ffmpeg of this machine has no vid.stab"


def run_vidstab(video: Video, frames: int | None) -> Iterator[tuple[ImageArray, ImageArray]]:
    """Yield the frames of a clip before and after stabilization with vid.stab."""
    source = video.info.paths[0]
    limit = [] if frames is None else ["-frames:v", str(frames)]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "steady.mkv"
        inputs, transforms = ["-i", str(source), *limit, "-vf"], f"{folder}/transforms"
        _run([*inputs, f"vidstabdetect=shakiness={SHAKINESS}:result={transforms}", "-f", "null", "-"], source)
        _run([*inputs, f"vidstabtransform=input={transforms}", "-an", "-c:v", "ffv1", str(output)], source)
        stabilized = open_video(output).frames()
        for before, after in zip(islice(video.frames(), frames), stabilized, strict=False):
            yield before.image, after.image


def _run(arguments: list[str], source: Path) -> None:
    process = subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], capture_output=True, text=True, check=False)
    if process.returncode:
        raise InputError(f"vid.stab could not be run on {source}: {process.stderr.strip()[-200:]}; leave it out.")


class StabilityMetric(Averages):
    """Mean scores over videos with equal weights; `compute` returns StabilityScores."""

    higher_is_better = True
    video_counts: Tensor

    def __init__(self) -> None:
        super().__init__(8)
        self.add_state("video_counts", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, input_to_output: Tensor, output_motions: Tensor, center: Point = (0.0, 0.0)) -> None:
        """Add one video, with the arguments of `stability_scores`."""
        row, counts = video_scores(input_to_output, output_motions, center)
        self.add(Tally.of_rows(row[None]))
        self.video_counts = self.video_counts + counts.to(self.video_counts.device)

    def compute(self) -> StabilityScores:
        """Return the scores of all videos since the last reset."""
        return mean_stability_scores(self.total(), self.video_counts)


RULES = (
    "cropping: fraction of the sides that is shown; distortion: smallest ratio of eigenvalues; stability: fraction of "
    "the path's energy in its five lowest frequencies, as in the field's common script; acceleration: mean change of "
    "velocity, pixels per frame, lower is better"
)
DETAIL_RULES = (
    "stability of translation and of rotation, and the smaller of both; skipped: homographies without an estimate"
)


def stability_tables(evaluation: StabilityEvaluation) -> tuple[Table, Table]:
    """Format a table of common measures, with means and published results, and a table of further measures."""
    names = ("clip", "method")
    common = score_table("stabilization", RULES, names, COMMON_SCORES)
    columns = ("least", "translation", "rotation", "skipped")
    details = score_table("stabilization, in detail", DETAIL_RULES, names, columns)
    for row in evaluation.rows:
        scores = {measure: row.reliable_score(measure) for measure in MEASURES}
        labels = (Text(row.clip), Text(row.method))
        skipped = str(row.scores.skipped_frames + row.scores.skipped_motions)
        common.add_row(*labels, *_format_scores(scores, COMMON_MEASURES))
        details.add_row(*labels, *_format_scores(scores, DETAIL_MEASURES), skipped)
    for label, means in evaluation.means.items():
        common.add_row("mean", Text(label), *_format_scores(means, COMMON_MEASURES))
        details.add_row("mean", Text(label), *_format_scores(means, DETAIL_MEASURES), "")
    for other in evaluation.others:
        cells = (format_score(getattr(other, name, None), 3, "-") for name in COMMON_SCORES)
        common.add_row(other.measured_on, Text(other.label), *cells)
    return common, details


def _format_scores(scores: Mapping[str, float], measures: tuple[str, ...]) -> list[str]:
    return [format_score(scores[measure], 3, "-") for measure in measures]
