"""Ways to make clips steady, measured on the same frames by the same rules."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from protoformer.data.stability import DeepStab
from protoformer.errors import InputError
from protoformer.files import Movie, open_movie
from protoformer.files.movie import Picture
from protoformer.inference.homographies import FeatureFinder
from protoformer.inference.published import PUBLISHED_STABILITY, StabilityRow
from protoformer.inference.stabilize_scores import StabilityMeter
from protoformer.metrics.stability import StabilityScores

Method = Callable[[Movie, int | None], Iterator[tuple[Picture, Picture]]]
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
    others: tuple[StabilityRow, ...] = field(default=PUBLISHED_STABILITY)


VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv"})
USUAL = ("cropping", "distortion", "stability_usual", "acceleration")
DETAILS = ("stability", "stability_translation", "stability_rotation")
MEASURES = (*USUAL, *DETAILS)
"""What is told of a method: what tables of others have, too, and what is ours alone."""


def clips_in(root: Path) -> dict[str, Path]:
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


def as_it_is(movie: Movie, frames: int | None) -> Iterator[tuple[Picture, Picture]]:
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
        movie = open_movie(path)
        for label, method in methods.items():
            meter = StabilityMeter()
            for before, after in method(movie, frames):
                seen = finder.find(before)
                meter.add(seen, seen if after is before else finder.find(after))
                count += 1
                told(count)
            rows.append(ClipScore(name, label, meter.scores()))
    return StabilityEvaluation(tuple(rows), {label: _mean(rows, label) for label in methods})


def csv_of_stability(found: StabilityEvaluation) -> str:
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
