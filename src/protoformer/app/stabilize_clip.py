"""`protoformer stabilize` of a clip: a shaky video in, a steady one out, and the path of its camera."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np

from protoformer.app.clips import (
    check_not_read,
    expected_frames,
    opened_clip,
    tell_damage,
    tell_interrupted,
    what_is_kept,
)
from protoformer.app.plain_json import plain_json
from protoformer.app.progress import frames_bar
from protoformer.app.stabilize_models import named_stabilizer
from protoformer.app.stopping import stoppable
from protoformer.files import Movie, MovieWriter, checked_output, write_atomically
from protoformer.inference import StabilizeModel, StabilizeResult
from protoformer.inference.brief import count_fact
from protoformer.inference.flow_windows import Precision
from protoformer.inference.homographies import FeatureFinder
from protoformer.inference.stabilize import Crop, StabilizeOptions
from protoformer.inference.stabilize_scores import StabilityMeter
from protoformer.metrics.stability import StabilityScores
from protoformer.show.stabilize_page import path_page, too_short

MOST_CUTS = 5
"""Whose moments are told."""


@dataclass(frozen=True)
class ClipChoice:
    """What was asked for on the command line; None where nothing was."""

    output: Path
    page: Path
    side_by_side: bool
    scores: bool
    start: float | None
    end: float | None
    rate: float | None
    model: str
    regressor: str | None
    device: str | None
    precision: str | None


@dataclass(frozen=True)
class Measured:
    """Scores of a clip before and after."""

    before: StabilityScores
    after: StabilityScores


def crop_choice(text: str) -> Crop:
    """auto, none, or a number."""
    try:
        return float(text)
    except ValueError:
        return text


def stabilize_clip(source: str, options: StabilizeOptions, chosen: ClipChoice, as_json: bool) -> None:
    """Write the steady clip and the page of its path, and print what was done."""
    movie = opened_clip(source, chosen.rate)
    for target in (chosen.output, chosen.page):
        check_not_read(target, movie)
    checked_output(chosen.page)
    writer = MovieWriter(chosen.output, movie, movie.info.rate)
    model = named_stabilizer(chosen.model, chosen.regressor, chosen.device)
    began = time.perf_counter()
    with stoppable(lambda: tell_interrupted(f"{writer.frames} frames", what_is_kept(writer, None))):
        result = _found(model, movie, options, chosen)
        measured = _written(model, movie, result, writer, chosen)
    scores = None if measured is None else (measured.before, measured.after)
    write_atomically(chosen.page, path_page(Path(source).resolve().name, result, scores).html().encode())
    tell_damage(movie)
    _tell(result, measured, chosen, time.perf_counter() - began, as_json)


def _found(model: StabilizeModel, movie: Movie, options: StabilizeOptions, chosen: ClipChoice) -> StabilizeResult:
    total = expected_frames(movie, chosen.start, chosen.end, 1)
    with frames_bar("looking at the motion", total) as told:
        return model.stabilize(
            movie,
            strength=options.strength,
            crop=options.crop,
            tripod=options.tripod,
            delay=options.delay,
            start=chosen.start,
            end=chosen.end,
            precision=cast(Precision, chosen.precision or "auto"),
            progress=lambda done, _: told(done),
        )


def _written(
    model: StabilizeModel, movie: Movie, result: StabilizeResult, writer: MovieWriter, chosen: ClipChoice
) -> Measured | None:
    before, after, finder = StabilityMeter(), StabilityMeter(), FeatureFinder()
    with frames_bar("making it steady", len(result.times)) as told, writer:
        for moment, shaky, steady in model.frames(movie, result):
            writer.write(np.concatenate((shaky, steady), axis=1) if chosen.side_by_side else steady, moment)
            if chosen.scores:
                seen = finder.find(shaky)
                before.add(seen, seen)
                after.add(seen, finder.find(steady))
            told(writer.frames)
    return Measured(before.scores(), after.scores()) if chosen.scores else None


def _tell(
    result: StabilizeResult, measured: Measured | None, chosen: ClipChoice, seconds: float, as_json: bool
) -> None:
    (height, width), frames = result.size, len(result.times)
    before, after = result.acceleration
    written = [str(chosen.output), str(chosen.page)]
    if as_json:
        summary = {
            "frames": frames,
            "width": width,
            "height": height,
            "crop": round(result.share, 4),
            "cropping": round(result.cropping, 4),
            "acceleration_px": {"before": round(before, 4), "after": round(after, 4)},
            "scores": None if measured is None else asdict(measured),
            "stability_is_telling": None
            if measured is None
            else {"before": measured.before.is_telling, "after": measured.after.is_telling},
            "cuts": [result.numbers[place] for place in result.cuts],
            "bridged": [result.numbers[place] for place in result.bridged],
            "trained": result.trained,
            "seconds": round(seconds, 3),
            "written": written,
        }
        print(json.dumps(plain_json(summary)))
        return
    many = count_fact(frames, "frame")
    cuts = f", {count_fact(len(result.cuts), 'cut')}{_moments(result)}" if result.cuts else ""
    within = ", cuts left out" if result.cuts else ""
    bridged = f", {len(result.bridged)} without anything to go by" if result.bridged else ""
    print(
        f"{many} of {width}x{height} pixels{cuts}{bridged}; {result.cropping:.1%} of each side is shown; the camera's "
        f"velocity changes by {after:.2f} px a frame, {before:.2f} before{within}; "
        f"{frames / seconds:.2f} frames a second; wrote {', '.join(written)}"
    )
    if measured is not None:
        for name, each in (("before", measured.before), ("after", measured.after)):
            print(f"{name}: {told_scores(each)}")


def _moments(result: StabilizeResult) -> str:
    """When the first cuts are, in seconds."""
    some = ", ".join(f"{float(result.times[place]):.2f}" for place in result.cuts[:MOST_CUTS])
    return f" (at {some}{', ...' if len(result.cuts) > MOST_CUTS else ''} s)"


def told_scores(scores: StabilityScores) -> str:
    """Scores in a line; what was not found is a dash, and what a short clip cannot tell is not told."""
    shown = {"cropping": scores.cropping, "distortion": scores.distortion}
    if scores.is_telling:
        shown["stability"] = scores.stability_usual
        shown |= {"of translation": scores.stability_translation, "of rotation": scores.stability_rotation}
    told = ", ".join(f"{name} {'-' if value != value else f'{value:.3f}'}" for name, value in shown.items())
    if not scores.is_telling:
        told += f", stability {too_short(scores)}"
    skipped = scores.skipped_frames + scores.skipped_motions
    many = "1 homography was" if skipped == 1 else f"{skipped} homographies were"
    return told + (f" ({many} not found)" if skipped else "")
