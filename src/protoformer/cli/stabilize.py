"""`protoformer stabilize`."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from protoformer.cli.clips import (
    check_output_not_input,
    expected_frame_count,
    kept_output,
    open_clip,
    report_damage,
    report_interruption,
)
from protoformer.cli.options import DeviceOption, ModelOption, PrecisionOption
from protoformer.cli.terminal import frames_bar, stoppable, to_json
from protoformer.io.files import check_output, write_atomically
from protoformer.loading import STABILIZATION_MODEL, live_regressor, load_stabilizer
from protoformer.models.runtime import Precision
from protoformer.stabilization.camera_motion import FeatureFinder
from protoformer.stabilization.drawing import describe_too_short, path_page
from protoformer.stabilization.metrics import StabilityMeter, StabilityScores
from protoformer.stabilization.predictor import Crop, StabilizationPredictor, StabilizeOptions
from protoformer.stabilization.result import StabilizationResult
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.text import format_count

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
    fps: float | None
    model: str
    regressor: str | None
    device: str | None
    precision: str | None


@dataclass(frozen=True)
class MeasuredScores:
    """Scores of a clip before and after."""

    before: StabilityScores
    after: StabilityScores


def parse_crop(text: str) -> Crop:
    """auto, none, or a number."""
    try:
        return float(text)
    except ValueError:
        return text


def stabilize_clip(source: str, options: StabilizeOptions, chosen: ClipChoice, as_json: bool) -> None:
    """Write the steady clip and the page of its path, and print what was done."""
    movie = open_clip(source, chosen.fps)
    for target in (chosen.output, chosen.page):
        check_output_not_input(target, movie)
    check_output(chosen.page)
    writer = VideoWriter(chosen.output, movie, movie.info.fps)
    model = load_stabilizer(chosen.model, chosen.regressor, chosen.device)
    began = time.perf_counter()
    with stoppable(lambda: report_interruption(f"{writer.frames} frames", kept_output(writer, None))):
        result = _found(model, movie, options, chosen)
        measured = _written(model, movie, result, writer, chosen)
    scores = None if measured is None else (measured.before, measured.after)
    write_atomically(chosen.page, path_page(Path(source).resolve().name, result, scores).html().encode())
    report_damage(movie)
    _tell(result, measured, chosen, time.perf_counter() - began, as_json)


def _found(
    model: StabilizationPredictor, movie: Video, options: StabilizeOptions, chosen: ClipChoice
) -> StabilizationResult:
    total = expected_frame_count(movie, chosen.start, chosen.end, 1)
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
    model: StabilizationPredictor, movie: Video, result: StabilizationResult, writer: VideoWriter, chosen: ClipChoice
) -> MeasuredScores | None:
    before, after, finder = StabilityMeter(), StabilityMeter(), FeatureFinder()
    with frames_bar("making it steady", len(result.times)) as told, writer:
        for moment, shaky, steady in model.frames(movie, result):
            writer.write(np.concatenate((shaky, steady), axis=1) if chosen.side_by_side else steady, moment)
            if chosen.scores:
                seen = finder.find(shaky)
                before.add(seen, seen)
                after.add(seen, finder.find(steady))
            told(writer.frames)
    return MeasuredScores(before.scores(), after.scores()) if chosen.scores else None


def _tell(
    result: StabilizationResult, measured: MeasuredScores | None, chosen: ClipChoice, seconds: float, as_json: bool
) -> None:
    (height, width), frames = result.size, len(result.times)
    before, after = result.acceleration
    written = [str(chosen.output), str(chosen.page)]
    if as_json:
        summary = {
            "frames": frames,
            "width": width,
            "height": height,
            "crop": round(result.crop_fraction, 4),
            "cropping": round(result.cropping, 4),
            "acceleration_px": {"before": round(before, 4), "after": round(after, 4)},
            "scores": None if measured is None else asdict(measured),
            "stability_is_telling": None
            if measured is None
            else {"before": measured.before.is_reliable, "after": measured.after.is_reliable},
            "cuts": [result.numbers[place] for place in result.cuts],
            "bridged": [result.numbers[place] for place in result.bridged],
            "trained": result.trained,
            "seconds": round(seconds, 3),
            "written": written,
        }
        print(json.dumps(to_json(summary)))
        return
    many = format_count(frames, "frame")
    cuts = f", {format_count(len(result.cuts), 'cut')}{_moments(result)}" if result.cuts else ""
    within = ", cuts left out" if result.cuts else ""
    bridged = f", {len(result.bridged)} without anything to go by" if result.bridged else ""
    print(
        f"{many} of {width}x{height} pixels{cuts}{bridged}; {result.cropping:.1%} of each side is shown; the camera's "
        f"velocity changes by {after:.2f} px a frame, {before:.2f} before{within}; "
        f"{frames / seconds:.2f} frames a second; wrote {', '.join(written)}"
    )
    if measured is not None:
        for name, each in (("before", measured.before), ("after", measured.after)):
            print(f"{name}: {describe_scores(each)}")


def _moments(result: StabilizationResult) -> str:
    """When the first cuts are, in seconds."""
    some = ", ".join(f"{float(result.times[place]):.2f}" for place in result.cuts[:MOST_CUTS])
    return f" (at {some}{', ...' if len(result.cuts) > MOST_CUTS else ''} s)"


def describe_scores(scores: StabilityScores) -> str:
    """Scores in a line; what was not found is a dash, and what a short clip cannot tell is not told."""
    shown = {"cropping": scores.cropping, "distortion": scores.distortion}
    if scores.is_reliable:
        shown["stability"] = scores.stability_usual
        shown |= {"of translation": scores.stability_translation, "of rotation": scores.stability_rotation}
    told = ", ".join(f"{name} {'-' if value != value else f'{value:.3f}'}" for name, value in shown.items())
    if not scores.is_reliable:
        told += f", stability {describe_too_short(scores)}"
    skipped = scores.skipped_frames + scores.skipped_motions
    many = "1 homography was" if skipped == 1 else f"{skipped} homographies were"
    return told + (f" ({many} not found)" if skipped else "")


def stabilize(
    source: Annotated[str, typer.Argument(help="A video, a folder of frames or a quoted pattern of their names.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The steady clip: .mp4, .mov, .mkv, .webm, .avi or .gif.")
    ] = Path("stable.mp4"),
    path_page: Annotated[
        Path | None, typer.Option("--path", help="The camera's path, before and after, as html. [default: beside it]")
    ] = None,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="The shaky clip to the left of it.")] = False,
    strength: Annotated[float, typer.Option(help="0 changes nothing, 1 as much as the crop allows.")] = 1.0,
    crop: Annotated[
        str,
        typer.Option(
            help="auto (91 % of the sides or more; of a clip that shakes much, 84 %), none (black beside the "
            "frames, which move as within 96 %), or a share such as 0.9."
        ),
    ] = "auto",
    tripod: Annotated[bool, typer.Option("--tripod", help="As if the camera stood still, if it can be.")] = False,
    online: Annotated[
        int | None, typer.Option(help="Decide each frame when so many after it are known, as a live camera must.")
    ] = None,
    regressor: Annotated[
        str | None,
        typer.Option(
            help="field (sees both ways) or grid (the past). [default: the model's own; --online: grid if it has both]"
        ),
    ] = None,
    scores: Annotated[bool, typer.Option(help="Measure how steady the clip was and is, which takes time.")] = True,
    model: ModelOption = STABILIZATION_MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: Annotated[float | None, typer.Option(help="Seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds before which to end.")] = None,
    fps: Annotated[float | None, typer.Option(help="Of images: frames a second. [default: 25]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Stabilize a shaky video; sound, times and size are kept.

    Example: `protoformer stabilize clip.mp4 -o stable.mp4 --side-by-side`

    Example: `protoformer stabilize clip.mp4 --crop 0.85 --tripod`
    """
    chosen = ClipChoice(
        output=output,
        page=output.with_suffix(".html") if path_page is None else path_page,
        side_by_side=side_by_side,
        scores=scores,
        start=start,
        end=end,
        fps=fps,
        model=model,
        regressor=live_regressor(model) if regressor is None and online is not None else regressor,
        device=device,
        precision=precision,
    )
    stabilize_clip(source, StabilizeOptions(strength, parse_crop(crop), tripod, online), chosen, as_json)
