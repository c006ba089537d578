"""Ways to make clips steady, measured on the same frames by the same rules."""

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

from protoformer.datasets.published import PUBLISHED_STABILITY, PublishedStabilization
from protoformer.datasets.stabilization import DeepStab
from protoformer.errors import InputError
from protoformer.stabilization.camera_motion import FeatureFinder
from protoformer.stabilization.metrics import (
    Place,
    StabilityMeter,
    StabilityScores,
    mean_stability_scores,
    video_scores,
)
from protoformer.training.metrics import Averages
from protoformer.training.task import Tally
from protoformer.video.reader import open_video
from protoformer.video.types import ImageArray, Video
from protoformer.viz.text import score_table

Method = Callable[[Video, int | None], Iterator[tuple[ImageArray, ImageArray]]]
"""From a clip and how many of its frames are taken (None: all) to every frame as it was and as it is shown."""


@dataclass(frozen=True)
class ClipScore:
    """What a method made of a clip."""

    clip: str
    method: str
    scores: StabilityScores

    def told(self, measure: str) -> float:
        """One of MEASURES; NaN of a stability that a clip is too short to tell."""
        silent = measure.startswith("stability") and not self.scores.is_telling
        return math.nan if silent else float(getattr(self.scores, measure))


@dataclass(frozen=True)
class StabilityEvaluation:
    """rows: of every clip and method. means: by method, over all clips. others: rows that others published."""

    rows: tuple[ClipScore, ...]
    means: dict[str, dict[str, float]]
    others: tuple[PublishedStabilization, ...] = field(default=PUBLISHED_STABILITY)


VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv"})
USUAL = ("cropping", "distortion", "stability_usual", "acceleration")
DETAILS = ("stability", "stability_translation", "stability_rotation")
MEASURES = (*USUAL, *DETAILS)
"""What is told of a method: what tables of others have, too, and what is ours alone."""


def list_clips(root: Path) -> dict[str, Path]:
    """The shaky clips of a folder by name: those of DeepStab's layout, or every video in it."""
    if (root / "unstable").is_dir():
        pairs = DeepStab(root, trust_headers=True)
        return {name: pairs[place].unstable for place, name in enumerate(pairs.names)}
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the one that holds the clips.")
    found = {path.name: path for path in sorted(root.iterdir()) if path.suffix.lower() in VIDEO_SUFFIXES}
    if not found:
        raise InputError(f"{root} holds no videos; give a folder of clips, or one in DeepStab's layout.")
    return found


def identity_method(movie: Video, frames: int | None) -> Iterator[tuple[ImageArray, ImageArray]]:
    """The clip itself."""
    for frame in islice(movie.frames(), frames):
        yield frame.image, frame.image


def evaluate_stability(
    clips: dict[str, Path],
    methods: dict[str, Method],
    frames: int | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> StabilityEvaluation:
    """Every method on the first so many frames of every clip. told: of pictures that were measured."""
    rows, count, finder = [], 0, FeatureFinder()
    for name, path in clips.items():
        movie = open_video(path)
        for label, method in methods.items():
            meter = StabilityMeter()
            for before, after in method(movie, frames):
                seen = finder.find(before)
                meter.add(seen, seen if after is before else finder.find(after))
                count += 1
                told(count)
            rows.append(ClipScore(name, label, meter.scores()))
    return StabilityEvaluation(tuple(rows), {label: _mean(rows, label) for label in methods})


def stability_csv(found: StabilityEvaluation) -> str:
    """A row a clip and method."""
    lines = [",".join(("clip", "method", *MEASURES, "skipped_frames", "skipped_motions"))]
    for row in found.rows:
        values = (f"{getattr(row.scores, measure):.4f}" for measure in MEASURES)
        counts = (str(row.scores.skipped_frames), str(row.scores.skipped_motions))
        lines.append(",".join((row.clip, row.method, *values, *counts)))
    return "\n".join(lines) + "\n"


def _mean(rows: Sequence[ClipScore], label: str) -> dict[str, float]:
    chosen = [row for row in rows if row.method == label]
    return {measure: _known_mean(row.told(measure) for row in chosen) for measure in MEASURES}


def _known_mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    return float(np.mean(known)) if known else float("nan")


SHAKINESS = 7
"""Of 10, for clips that shake more than a little; its own is 5."""


def vidstab_missing() -> str:
    """Why vid.stab cannot be run here; nothing if it can."""
    program = shutil.which("ffmpeg")
    if program is None:
        return "there is no ffmpeg on this machine"
    listed = subprocess.run([program, "-hide_banner", "-filters"], capture_output=True, text=True, check=False)
    return "" if "vidstabtransform" in listed.stdout else "the ffmpeg of this machine has no vid.stab"


def run_vidstab(movie: Video, frames: int | None) -> Iterator[tuple[ImageArray, ImageArray]]:
    """The frames of a clip as they were, and as vid.stab shows them."""
    source = movie.info.paths[0]
    some = [] if frames is None else ["-frames:v", str(frames)]
    with tempfile.TemporaryDirectory() as folder:
        steady = Path(folder) / "steady.mkv"
        given, moves = ["-i", str(source), *some, "-vf"], f"{folder}/moves"
        _run([*given, f"vidstabdetect=shakiness={SHAKINESS}:result={moves}", "-f", "null", "-"], source)
        _run([*given, f"vidstabtransform=input={moves}", "-an", "-c:v", "ffv1", str(steady)], source)
        shown = open_video(steady).frames()
        for before, after in zip(islice(movie.frames(), frames), shown, strict=False):
            yield before.image, after.image


def _run(arguments: list[str], source: Path) -> None:
    done = subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"vid.stab could not be run on {source}: {done.stderr.strip()[-200:]}; leave it out.")


class StabilityMetric(Averages):
    """Scores over all videos it is shown, each weighed alike; `compute` returns StabilityScores."""

    higher_is_better = True
    seen: Tensor

    def __init__(self) -> None:
        super().__init__(8)
        self.add_state("seen", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, input_to_output: Tensor, output_motions: Tensor, center: Place = (0.0, 0.0)) -> None:
        """Add one video, in the terms of `stability_scores`."""
        row, counts = video_scores(input_to_output, output_motions, center)
        self.add(Tally.of_rows(row[None]))
        self.seen = self.seen + counts.to(self.seen.device)

    def compute(self) -> StabilityScores:
        """The scores of everything shown since the last reset."""
        return mean_stability_scores(self.total(), self.seen)


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
