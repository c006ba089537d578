"""`protoformer flow`."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from protoformer.cli.clips import (
    check_folder,
    expected_frame_count,
    is_clip,
    kept_output,
    open_clip,
    report_damage,
    report_interruption,
    single_video_output,
)
from protoformer.cli.options import (
    DeviceOption,
    ModelOption,
    TileOption,
    UpdatesOption,
    ZoomOption,
    parse_bytes,
    parse_tile,
    parse_zoom,
)
from protoformer.cli.terminal import frames_bar, progress_bar, stoppable
from protoformer.errors import InputError
from protoformer.flow.drawing import arrow_factor, draw_flow_frame
from protoformer.flow.result import FlowResult, flow_format
from protoformer.flow.tiling import FlowPlan, TileSize, plan_flow
from protoformer.flow.video import FlowVideo
from protoformer.io.files import check_input, check_output
from protoformer.io.image_input import image_pair
from protoformer.loading import load
from protoformer.models.runtime import Precision
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.text import format_count


@dataclass(frozen=True)
class ClipOptions:
    """What was asked for on the command line; None where nothing was."""

    side_by_side: bool
    arrows: bool
    save_flo: Path | None
    start: float | None
    end: float | None
    frame_step: int | None
    fps: float | None
    scale: float | None
    warm_start: bool
    precision: str | None
    updates: int | None
    tile: TileSize
    memory: int | None
    zoom: float | None


ALSO_FOR_IMAGES = ("updates", "tile", "memory", "zoom")
"""Options that two images have, too."""


@dataclass
class _Tally:
    """What was done so far."""

    flows: int = 0
    motion: float = 0.0


def reject_clip_options(options: ClipOptions) -> None:
    """Refuse what was asked for that two images do not have."""
    for name in (field.name for field in fields(options) if field.name not in ALSO_FOR_IMAGES):
        value = getattr(options, name)
        if value is not None and value is not False:
            raise InputError(f"--{name.replace('_', '-')} is for a clip; leave it out for two images.")


def flow_clip(
    source: str, outputs: list[Path], named: tuple[str, str | None], options: ClipOptions, as_json: bool
) -> None:
    """Write the motion of a clip as a video, as .flo files, or both. named: the model and the device, as given."""
    movie = open_clip(source, options.fps)
    target = single_video_output(outputs, "motion.mp4", movie, options.save_flo)
    if options.scale is not None and not 0 < options.scale < float("inf"):
        raise InputError(f"colors cannot be full at {options.scale:g} pixels; give a --scale over 0.")
    check_folder(options.save_flo, "000000.flo")
    writer = None
    if target is not None:
        writer = VideoWriter(target, movie, movie.info.fps / max(1, options.frame_step or 1))
    video = load(*named, task="flow").flow_video(
        movie,
        start=options.start,
        end=options.end,
        frame_step=1 if options.frame_step is None else options.frame_step,
        num_updates=options.updates,
        warm_start=options.warm_start,
        tile=options.tile,
        memory=options.memory,
        zoom=options.zoom,
        precision=cast(Precision, options.precision or "auto"),
    )
    tally = _Tally()

    def tell() -> None:
        report_interruption(_flows(tally), kept_output(writer, options.save_flo if tally.flows else None))

    with stoppable(tell):
        scale = _scale(video, options) if writer else None
        began = time.perf_counter()  # the first look is no part of the speed, as in the bar
        _run(video, writer, options, scale, tally)
    _tell_clip(video, target, options, scale, tally, time.perf_counter() - began, as_json)


def _scale(video: FlowVideo, options: ClipOptions) -> float:
    """Pixels at which colors are full and arrows have their usual length, in the whole clip."""
    if options.scale is not None:
        return options.scale
    with progress_bar("a first look", total=1) as told:
        return video.typical_motion(told)


def _run(
    video: FlowVideo, writer: VideoWriter | None, options: ClipOptions, scale: float | None, tally: _Tally
) -> None:
    with ExitStack() as open_things:
        told = open_things.enter_context(frames_bar(f"flow, {video.plan}", _expected(video)))
        if writer is not None:
            open_things.enter_context(writer)
        for step in video:
            if writer is not None:
                writer.write(draw_flow_frame(step, scale or 1.0, options.side_by_side, options.arrows), step.time)
            if options.save_flo is not None:
                step.save(options.save_flo / f"{step.number:06d}.flo")
            tally.flows += 1
            tally.motion += float(step.flow.norm(dim=0).mean())
            told(tally.flows)


def _expected(video: FlowVideo) -> int | None:
    """About how many flows there will be; None where the clip does not say."""
    options = video.options
    frames = expected_frame_count(cast(Video, video.video), options.start, options.end, options.frame_step)
    return None if frames is None else max(1, frames - 1)


def _tell_clip(
    video: FlowVideo,
    target: Path | None,
    options: ClipOptions,
    scale: float | None,
    tally: _Tally,
    seconds: float,
    as_json: bool,
) -> None:
    movie = cast(Video, video.video)
    (height, width), plan = movie.info.size, video.plan
    written = [str(path) for path in (target, options.save_flo) if path is not None]
    report_damage(movie)
    factor = arrow_factor((height, width), scale) if options.arrows and scale is not None else None
    if as_json:
        summary: dict[str, Any] = {
            "flows": tally.flows,
            "width": width,
            "height": height,
            "mean_motion_px": round(tally.motion / tally.flows, 4),
            "scale_px": None if scale is None else round(scale, 4),
            "arrow_factor": factor,
            "tile": None if plan is None or plan.tile is None else list(plan.tile),
            "zoom": None if plan is None else round(plan.zoom, 4),
            "batch": None if plan is None else plan.batch_size,
            "precision": "half" if video.half else "full",
            "seconds": round(seconds, 3),
            "skipped": movie.skipped,
            "truncated": movie.truncated,
            "written": written,
        }
        print(json.dumps(summary))
        return
    how = "as you said" if options.scale is not None else "99 of 100 vectors of a first look are shorter"
    colored = scale is not None and (options.side_by_side or not options.arrows)
    shown = f" colors are full at {scale:.2f} px ({how});" if colored else ""
    if factor is not None:
        shown += f" arrows are {'as' if factor == 1 else f'{factor} times as'} long as the motion;"
    print(
        f"{_flows(tally)} of {width}x{height} pixels, mean motion {tally.motion / tally.flows:.2f} px; {plan}, "
        f"{'bfloat16' if video.half else 'float32'};{shown} {tally.flows / seconds:.2f} frames a second; "
        f"wrote {', '.join(written)}"
    )


def _flows(tally: _Tally) -> str:
    return format_count(tally.flows, "flow")


@dataclass(frozen=True)
class PairOptions:
    """What was asked for on the command line; None where nothing was."""

    format: str | None
    updates: int | None
    tile: TileSize
    memory: int | None
    zoom: float | None


def flow_pair(
    paths: tuple[str, str], outputs: list[Path], named: tuple[str, str | None], options: PairOptions, as_json: bool
) -> None:
    """Write the motion between two images as files. named: the model and the device, as given."""
    for path in outputs:  # all of this is cheap, and estimating flow is not
        flow_format(path, options.format)
        check_output(path)
    for image in paths:
        source = check_input(image)
        if any(path.exists() and path.samefile(source) for path in outputs):
            raise InputError(f"the output {image} is also an input and would be lost; choose another name.")
    images = image_pair(*paths)
    model = load(*named, task="flow")
    config, size = model.network.config, (images[0].shape[2], images[0].shape[3])
    tile, memory, zoom = options.tile, options.memory, options.zoom
    plan = plan_flow(size, config, model.device, tile, memory, zoom=zoom)
    with progress_bar("flow", total=options.updates or config.updates) as told:
        result = model.flow(*images, num_updates=options.updates, tile=tile, memory=memory, zoom=zoom, progress=told)
    for path in outputs:
        result.save(path, options.format)
    _tell_pair(result, plan, outputs, as_json)


def _tell_pair(result: FlowResult, plan: FlowPlan, outputs: list[Path], as_json: bool) -> None:
    lengths = result.flow.norm(dim=0)
    summary: dict[str, Any] = {
        "width": result.flow.shape[2],
        "height": result.flow.shape[1],
        "mean_motion_px": round(float(lengths.mean()), 4),
        "largest_motion_px": round(float(lengths.max()), 4),
        "mean_confidence": round(float(result.confidence.mean()), 4),
        "tile": plan.tile,
        "zoom": round(plan.zoom, 4),
        "trained": result.trained,
        "written": [str(path) for path in outputs],
    }
    if as_json:
        print(json.dumps(summary))
        return
    how = f" {plan};" if plan.tile or plan.input_size else ""
    print(
        f"{summary['width']}x{summary['height']} pixels, mean motion {summary['mean_motion_px']:.2f} px, "
        f"largest {summary['largest_motion_px']:.2f} px;{how} wrote {', '.join(map(str, outputs))}"
    )


First = Annotated[
    str, typer.Argument(help="The first image; or a clip: a video, a folder of frames or a quoted pattern.")
]
Second = Annotated[str | None, typer.Argument(help="The second image, of the same size; none for a clip.")]
OutputOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="Where to write: .flo, or .png (a color image), repeated for several; of a clip .mp4, .mov, .mkv, .webm, "
        ".avi or .gif. [default: motion.png, motion.mp4]",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option(help="flo, kitti (16-bit png) or image (colors); by default the suffix decides.")
]
MemoryOption = Annotated[
    str | None, typer.Option(help="What may be used, such as 4GB. [default: most of what is free]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a summary for programs.")]
SideBySideOption = Annotated[bool, typer.Option("--side-by-side", help="Clip: the frame beside its motion.")]
ArrowsOption = Annotated[bool, typer.Option("--arrows", help="Clip: the frame with arrows on it.")]
SaveFloOption = Annotated[
    Path | None, typer.Option(help="Clip: a folder for a .flo file of every pair, by the first frame's number.")
]
StartOption = Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")]
EndOption = Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")]
FrameStepOption = Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")]
FpsOption = Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        help="Clip: pixels at which colors are full and arrows long. [default: by a first look at a few pairs]"
    ),
]
WarmStartOption = Annotated[bool, typer.Option("--warm-start", help="Clip: begin each pair with the motion before it.")]
ClipPrecisionOption = Annotated[
    str | None, typer.Option(help="Clip: full, half (bfloat16) or auto (half where it is fast). [default: auto]")
]


def flow(
    first: First,
    second: Second = None,
    output: OutputOption = None,
    format: FormatOption = None,
    model: ModelOption = "flow",
    updates: UpdatesOption = None,
    device: DeviceOption = None,
    tile: TileOption = "auto",
    memory: MemoryOption = None,
    zoom: ZoomOption = "auto",
    as_json: JsonOption = False,
    side_by_side: SideBySideOption = False,
    arrows: ArrowsOption = False,
    save_flo: SaveFloOption = None,
    start: StartOption = None,
    end: EndOption = None,
    frame_step: FrameStepOption = None,
    fps: FpsOption = None,
    scale: ScaleOption = None,
    warm_start: WarmStartOption = False,
    precision: ClipPrecisionOption = None,
) -> None:
    """Estimate optical flow between two images or along a video.

    Example: `protoformer flow frame1.png frame2.png -o motion.flo -o motion.png`

    Example: `protoformer flow clip.mp4 -o motion.mp4 --side-by-side`
    """
    pair = PairOptions(
        format=format, updates=updates, tile=parse_tile(tile), memory=parse_bytes(memory), zoom=parse_zoom(zoom)
    )
    clip = ClipOptions(
        side_by_side=side_by_side,
        arrows=arrows,
        save_flo=save_flo,
        start=start,
        end=end,
        frame_step=frame_step,
        fps=fps,
        scale=scale,
        warm_start=warm_start,
        precision=precision,
        updates=pair.updates,
        tile=pair.tile,
        memory=pair.memory,
        zoom=pair.zoom,
    )
    if second is not None:
        reject_clip_options(clip)
        flow_pair((first, second), output or [Path("motion.png")], (model, device), pair, as_json)
        return
    if not is_clip(first):
        raise InputError(f"{first} is one image, in which nothing moves; give a second one, or a clip.")
    if format is not None:
        raise InputError("--format is for two images; leave it out for a clip.")
    flow_clip(first, output or [], (model, device), clip, as_json)
