"""`protoformer stabilize`."""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from protoformer.cli.clips import (
    check_output_not_input,
    estimate_frame_count,
    make_video_writer,
    open_clip,
    print_summary,
    report_interruption,
    run_with_bar,
)
from protoformer.cli.options import (
    CLIP_HELP,
    VIDEO_SUFFIXES,
    DeviceOption,
    DropOption,
    EndOption,
    FpsOption,
    JsonOption,
    ModelOption,
    PrecisionOption,
    SideBySideOption,
    StartOption,
    TimeoutOption,
    parse_crop,
    reject_options,
)
from protoformer.cli.terminal import frames_bar
from protoformer.io.files import check_output, write_atomically
from protoformer.loading import STABILIZATION_MODEL, live_regressor, load_stabilizer
from protoformer.models.runtime import Precision
from protoformer.stabilization.camera_motion import FeatureDetector
from protoformer.stabilization.drawing import describe_too_short
from protoformer.stabilization.drawing import path_page as make_path_page
from protoformer.stabilization.metrics import StabilityMeter, StabilityScores
from protoformer.stabilization.predictor import DEFAULT_DELAY, StabilizeOptions
from protoformer.stabilization.result import StabilizationResult, StabilizedFrame, draw_stabilized
from protoformer.video.types import Video
from protoformer.viz.colormaps import Pixels
from protoformer.viz.report import format_count

MAX_CUTS = 5
"""Number of cuts whose times are printed."""


class _ClipScores:
    """Stability scores of a clip before and after, accumulated frame by frame."""

    def __init__(self) -> None:
        self._meters = StabilityMeter(), StabilityMeter()
        self._detector = FeatureDetector()

    def add(self, result: StabilizedFrame) -> None:
        """Add a frame."""
        features = self._detector.detect(result.frame)
        self._meters[0].add(features, features)
        self._meters[1].add(features, self._detector.detect(result.stabilized))

    def scores(self) -> tuple[StabilityScores, StabilityScores]:
        """Return the scores before and after."""
        before, after = (meter.scores() for meter in self._meters)
        return before, after


def _describe(result: StabilizationResult) -> str:
    (height, width), (before, after) = result.size, result.acceleration
    text = f"{format_count(len(result.times), 'frame')} of {width}x{height} pixels"
    if result.cuts:
        times = ", ".join(f"{float(result.times[index]):.2f}" for index in result.cuts[:MAX_CUTS])
        more = ", ..." if len(result.cuts) > MAX_CUTS else ""
        text += f", {format_count(len(result.cuts), 'cut')} (at {times}{more} s)"
    if result.bridged:
        text += f", {format_count(len(result.bridged), 'frame')} interpolated (no texture)"
    return (
        f"{text}; {result.cropping:.1%} of each side is shown; the camera's velocity changes by {after:.2f} px per "
        f"frame, {before:.2f} before{', without cuts' if result.cuts else ''}"
    )


def describe_scores(scores: StabilityScores) -> str:
    """Format scores in a line; scores that are not available are dashes."""
    values = {"cropping": scores.cropping, "distortion": scores.distortion}
    if scores.is_reliable:
        values["stability"] = scores.stability_usual
        values |= {"of translation": scores.stability_translation, "of rotation": scores.stability_rotation}
    text = ", ".join(f"{name} {'-' if value != value else f'{value:.3f}'}" for name, value in values.items())
    if not scores.is_reliable:
        text += f", stability {describe_too_short(scores)}"
    skipped = scores.skipped_frames + scores.skipped_motions
    count = "1 homography" if skipped == 1 else f"{skipped} homographies"
    return text + (f" ({count} could not be estimated)" if skipped else "")


def stabilize_live(
    video: Video,
    output: Path,
    options: StabilizeOptions,
    side_by_side: bool,
    model: tuple[str, str | None, str | None],
    span: dict[str, Any],
    as_json: bool,
) -> None:
    """Stabilize a live source, which is read once.

    Args:
        video: The source.
        output: The video to write.
        options: How it is stabilized.
        side_by_side: Whether the input frame is drawn to the left.
        model: Name of the model, its regressor, and device.
        span: Further arguments of `StabilizationPredictor.stabilize_video`.
        as_json: Whether the summary is JSON.
    """
    name, regressor, device = model
    writer = make_video_writer([output], None, video, frame_step=1)
    predictor = load_stabilizer(name, live_regressor(name) if regressor is None else regressor, device)
    delay = DEFAULT_DELAY if options.delay is None else options.delay
    frames = predictor.stabilize_video(video, strength=options.strength, crop=options.crop, delay=delay, **span)
    with report_interruption("frame", video):
        outcome = run_with_bar("stabilizing", None, frames, draw_stabilized(side_by_side), writer)
    (height, width), count = video.info.size, format_count(outcome.num_frames, "frame")
    summary = {"frames": outcome.num_frames, "delay": delay, "trained": predictor.trained}
    text = f"{count} of {width}x{height} pixels; each is corrected from at most {format_count(delay, 'later frame')}"
    print_summary(video, outcome, [output], as_json, summary, text)


def stabilize(
    source: Annotated[str, typer.Argument(help=CLIP_HELP)],
    output: Annotated[Path, typer.Option("--output", "-o", help=f"The stabilized video: {VIDEO_SUFFIXES}.")] = Path(
        "stable.mp4"
    ),
    path_page: Annotated[
        Path | None,
        typer.Option(
            "--path", help="HTML page with the camera path before and after. [default: next to the video; live: none]"
        ),
    ] = None,
    side_by_side: SideBySideOption = False,
    strength: Annotated[float, typer.Option(help="From 0 (no change) to 1 (as much as the crop allows).")] = 1.0,
    crop: Annotated[
        str,
        typer.Option(
            help="Fraction of the sides that is shown: auto (at least 96 %, or down to 88 % if the video shakes much), "
            "none (missing pixels are black), or a number such as 0.9."
        ),
    ] = "auto",
    tripod: Annotated[
        bool, typer.Option("--tripod", help="Approximate a static camera, as far as the crop allows.")
    ] = False,
    delay: Annotated[
        int | None,
        typer.Option(help="Number of later frames used to correct a frame. [default: all; live: 5]"),
    ] = None,
    regressor: Annotated[
        str | None,
        typer.Option(
            help="field (uses past and future frames) or grid (only past frames). [default: the model's own; with "
            "--delay: grid if the model has both]"
        ),
    ] = None,
    scores: Annotated[
        bool,
        typer.Option(help="Also measure the stability before and after, which takes longer than stabilizing."),
    ] = False,
    model: ModelOption = STABILIZATION_MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: StartOption = None,
    end: EndOption = None,
    fps: FpsOption = None,
    drop: DropOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stabilize a shaky video; sound, times and size are kept.

    Example: `protoformer stabilize clip.mp4 -o stable.mp4 --side-by-side`

    Example: `protoformer stabilize clip.mp4 --crop 0.85 --tripod --scores`

    Example: `protoformer stabilize 0 -o stable.mp4 --delay 10 --end 60`
    """
    options = StabilizeOptions(strength, parse_crop(crop), tripod, delay)
    video = open_clip(source, fps, drop, timeout)
    if video.live:
        reject_options("videos that can be read twice", source, path=path_page, scores=scores, tripod=tripod)
        span = {"start": start, "end": end, "precision": cast(Precision | None, precision)}
        stabilize_live(video, output, options, side_by_side, (model, regressor, device), span, as_json)
        return
    page = output.with_suffix(".html") if path_page is None else path_page
    check_output_not_input(page, video)
    check_output(page)
    writer = make_video_writer([output], None, video, frame_step=1)
    regressor = live_regressor(model) if regressor is None and delay is not None else regressor
    predictor = load_stabilizer(model, regressor, device)
    meter = _ClipScores() if scores else None
    start_time = time.perf_counter()

    def on_result(frame: StabilizedFrame, _: Pixels | None) -> None:
        if meter is not None:
            meter.add(frame)

    with report_interruption("frame"):
        with frames_bar("estimating motion", estimate_frame_count(video, start, end)) as progress:
            result = predictor.stabilize(
                video,
                **asdict(options),
                start=start,
                end=end,
                precision=cast(Precision | None, precision),
                progress=lambda done, _: progress(done),
            )
        outcome = run_with_bar(
            "stabilizing",
            len(result.times),
            predictor.frames(video, result),
            draw_stabilized(side_by_side),
            writer,
            on_result=on_result,
        )
    measured = None if meter is None else meter.scores()
    write_atomically(page, make_path_page(Path(source).resolve().name, result, measured).html().encode())
    before, after = result.acceleration
    summary = {
        "frames": len(result.times),
        "crop": round(result.crop_fraction, 4),
        "cropping": round(result.cropping, 4),
        "acceleration_px": {"before": round(before, 4), "after": round(after, 4)},
        "scores": measured and dict(zip(("before", "after"), map(asdict, measured), strict=True)),
        "stability_is_telling": measured and {"before": measured[0].is_reliable, "after": measured[1].is_reliable},
        "cuts": [result.numbers[index] for index in result.cuts],
        "bridged": [result.numbers[index] for index in result.bridged],
        "trained": result.trained,
    }
    outcome = replace(outcome, seconds=time.perf_counter() - start_time)
    print_summary(video, outcome, [output, page], as_json, summary, _describe(result))
    if measured is not None and not as_json:
        for name, each in zip(("before", "after"), measured, strict=True):
            print(f"{name}: {describe_scores(each)}")
