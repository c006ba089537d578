"""`protoformer flow`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from protoformer.cli.clips import (
    estimate_frame_count,
    is_clip,
    make_video_writer,
    open_clip,
    print_summary,
    report_interruption,
    run_with_bar,
)
from protoformer.cli.options import (
    LIVE_HELP,
    PRECISION_HELP,
    TILES,
    VIDEO_SUFFIXES,
    DeviceOption,
    DropOption,
    EndOption,
    FpsOption,
    FrameStepOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    SideBySideOption,
    StartOption,
    TileOption,
    TimeoutOption,
    UpdatesOption,
    ZoomOption,
    parse_memory,
    parse_tile,
    parse_zoom,
    reject_options,
)
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.errors import InputError
from protoformer.flow.drawing import FlowPainter, arrow_factor
from protoformer.flow.predictor import FAST
from protoformer.flow.result import FlowResult, flow_format
from protoformer.flow.tiling import FlowPlan, TileSize, plan_flow
from protoformer.flow.video import FlowFrame
from protoformer.io.files import check_input, check_output
from protoformer.io.image_input import image_pair
from protoformer.loading import load
from protoformer.models.runtime import Precision
from protoformer.video.pipeline import ResultFolder
from protoformer.video.types import Video
from protoformer.viz.colormaps import Pixels
from protoformer.viz.report import format_count


@dataclass(frozen=True)
class FlowVideoOutput:
    """Outputs of `protoformer flow` for a video.

    Attributes:
        paths: The videos that were given.
        save_flo: Folder for .flo files.
        scale: Motion of fully saturated colors, pixels; None: estimated from the video.
        side_by_side: Whether frames are drawn next to the colors.
        arrows: Whether arrows are drawn over the frames.
        as_json: Whether the summary is JSON.
    """

    paths: list[Path]
    save_flo: Path | None
    scale: float | None
    side_by_side: bool
    arrows: bool
    as_json: bool


def flow_video(video: Video, model: tuple[str, str | None], options: dict[str, Any], output: FlowVideoOutput) -> None:
    """Write the flow of a video as a video, as .flo files, or both.

    Args:
        video: The input.
        model: Name of the model and device.
        options: Arguments of `FlowPredictor.flow_video`.
        output: What to write.
    """
    FlowPainter(output.scale)  # so that an invalid scale is an error before anything is computed
    default = Path("motion.mp4") if output.save_flo is None else None
    writer = make_video_writer(output.paths, default, video, options["frame_step"])
    folder = None if output.save_flo is None else ResultFolder(output.save_flo, ".flo")
    flows = load(*model, task="flow").flow_video(video, **options)
    total_motion = 0.0

    def on_result(result: FlowFrame, _: Pixels | None) -> None:
        nonlocal total_motion
        total_motion += float(result.flow.norm(dim=0).mean())
        if folder is not None:
            folder.save(result)

    count = estimate_frame_count(video, options["start"], options["end"], options["frame_step"])
    with report_interruption("flow", video):
        given = output.scale
        if writer is not None and given is None and not video.live:
            with progress_bar("sampling frames", total=1) as progress:
                given = flows.typical_motion(progress)
        painter = None if writer is None else FlowPainter(given, output.side_by_side, output.arrows)
        outcome = run_with_bar(
            f"flow, {flows.plan}",
            None if count is None else max(1, count - 1),
            flows,
            painter,
            writer,
            outputs=[] if folder is None else [folder],
            on_result=on_result,
        )
    scale = None if painter is None else painter.scale
    factor = arrow_factor(video.info.size, scale) if output.arrows and scale is not None else None
    mean_motion, plan = total_motion / outcome.num_frames, cast(FlowPlan, flows.plan)
    summary = {
        "flows": outcome.num_frames,
        "mean_motion_px": round(mean_motion, 4),
        "scale_px": None if scale is None else round(scale, 4),
        "arrow_factor": factor,
        "tile": plan.tile,
        "zoom": round(plan.zoom, 4),
        "batch": plan.batch_size,
        "precision": "half" if flows.half else "full",
    }
    text = (
        f"{format_count(outcome.num_frames, 'flow')} of {video.info.size[1]}x{video.info.size[0]} pixels, "
        f"mean motion {mean_motion:.2f} px; {plan}, {'bfloat16' if flows.half else 'float32'}"
    )
    if scale is not None and (output.side_by_side or not output.arrows):
        sampled = "99.9th percentile of " + ("the frames" if video.live else "sampled frames")
        origin = sampled if output.scale is None else "given"
        text += f"; colors are saturated at {scale:.2f} px ({origin})"
    if factor is not None:
        text += f"; arrows are {'as' if factor == 1 else f'{factor} times as'} long as the motion"
    written = [each.path for each in (writer, folder) if each is not None]
    print_summary(video, outcome, written, output.as_json, summary, text)


def flow_pair(
    paths: tuple[str, str],
    outputs: list[Path],
    format: str | None,
    model: tuple[str, str | None],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Write the flow between two images.

    Args:
        paths: The images.
        outputs: The files to write.
        format: Format of the files; None: by suffix.
        model: Name of the model and device.
        options: Arguments of `FlowPredictor.flow`.
        as_json: Whether the summary is JSON.
    """
    for path in outputs:  # checks are cheap, estimating flow is not
        flow_format(path, format)
        check_output(path)
    for image in paths:
        source = check_input(image)
        if any(path.exists() and path.samefile(source) for path in outputs):
            raise InputError(f"the output {image} is also an input and would be lost; choose another name.")
    images = image_pair(*paths)
    predictor = load(*model, task="flow")
    config = predictor.network.config
    tile: TileSize = options["tile"]
    plan = plan_flow(
        (images[0].shape[2], images[0].shape[3]),
        config,
        predictor.device,
        tile,
        options["memory"],
        zoom=options["zoom"],
    )
    with progress_bar("flow", total=options["num_updates"] or config.flow.num_updates) as progress:
        result = predictor.flow(*images, **options, progress=progress)
    for path in outputs:
        result.save(path, format)
    _print_pair(result, plan, outputs, as_json)


def _print_pair(result: FlowResult, plan: FlowPlan, outputs: list[Path], as_json: bool) -> None:
    lengths = result.flow.norm(dim=0)
    mean, largest = float(lengths.mean()), float(lengths.max())
    height, width = lengths.shape
    if as_json:
        summary = {
            "width": width,
            "height": height,
            "mean_motion_px": round(mean, 4),
            "largest_motion_px": round(largest, 4),
            "mean_confidence": round(float(result.confidence.mean()), 4),
            "tile": plan.tile,
            "zoom": round(plan.zoom, 4),
            "trained": result.trained,
            "written": outputs,
        }
        print_json(summary)
        return
    details = f" {plan};" if plan.tile or plan.input_size else ""
    print(
        f"{width}x{height} pixels, mean motion {mean:.2f} px, largest {largest:.2f} px;{details} "
        f"wrote {', '.join(map(str, outputs))}"
    )


def flow(
    first: Annotated[
        str,
        typer.Argument(
            help=f"First image; or a video, a folder of frames, a quoted pattern of their names; {LIVE_HELP}."
        ),
    ],
    second: Annotated[str | None, typer.Argument(help="Second image, of the same size; none for a video.")] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="For images: .flo, .png (a color image), .npy or .npz, repeated for several files. For a video: "
            f"{VIDEO_SUFFIXES}. [default: motion.png, motion.mp4]",
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="flo, kitti (16-bit png), image (colors), npy or npz. [default: by suffix]")
    ] = None,
    model: ModelOption = "flow",
    num_updates: UpdatesOption = None,
    device: DeviceOption = None,
    tile: TileOption = "auto",
    memory: MemoryOption = None,
    zoom: ZoomOption = "auto",
    as_json: JsonOption = False,
    side_by_side: SideBySideOption = False,
    arrows: Annotated[bool, typer.Option("--arrows", help="Video: draw arrows over the frame.")] = False,
    save_flo: Annotated[
        Path | None, typer.Option(help="Video: folder for one .flo file per pair, named by the first frame's number.")
    ] = None,
    start: StartOption = None,
    end: EndOption = None,
    frame_step: FrameStepOption = None,
    fps: FpsOption = None,
    scale: Annotated[
        float | None,
        typer.Option(help="Video: motion of fully saturated colors, pixels. [default: estimated from a few pairs]"),
    ] = None,
    warm_start: Annotated[
        bool, typer.Option("--warm-start", help="Video: initialize each pair with the previous flow.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help=f"{PRECISION_HELP} [default: auto; full for two images]")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Half the resolution, 4 updates and bfloat16: several times as fast, less detail."),
    ] = False,
    drop: DropOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Estimate optical flow between two images or along a video.

    Example: `protoformer flow frame1.png frame2.png -o motion.flo -o motion.png`

    Example: `protoformer flow clip.mp4 -o motion.mp4 --side-by-side --fast`

    Example: `protoformer flow udp://0.0.0.0:5000 -o motion.mp4 --end 60`
    """
    inference: dict[str, Any] = {
        "num_updates": num_updates,
        "tile": parse_tile(tile, TILES),
        "memory": parse_memory(memory),
        "zoom": parse_zoom(zoom),
        "precision": cast(Precision | None, precision),
    }
    if fast:
        inference |= FAST | {name: value for name, value in inference.items() if value is not None}
    if second is not None:
        span = {"start": start, "end": end, "frame_step": frame_step, "fps": fps}
        drawing = {"side_by_side": side_by_side, "arrows": arrows, "save_flo": save_flo, "scale": scale}
        live = {"drop": drop is not None, "timeout": timeout}
        reject_options("videos", "two images", **drawing, **span, **live, warm_start=warm_start)
        flow_pair((first, second), output or [Path("motion.png")], format, (model, device), inference, as_json)
        return
    if not is_clip(first):
        raise InputError(f"{first} is a single image; give a second one, or a video.")
    reject_options("two images", "a video", format=format)
    video_options = {
        **{"start": start, "end": end, "frame_step": 1 if frame_step is None else frame_step},
        "warm_start": warm_start,
    }
    flow_video(
        open_clip(first, fps, drop, timeout),
        (model, device),
        {**inference, **video_options},
        FlowVideoOutput(output or [], save_flo, scale, side_by_side, arrows, as_json),
    )
