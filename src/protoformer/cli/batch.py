"""`protoformer batch`."""

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from protoformer.batch.jobs import Job, JobReport
from protoformer.batch.running import BatchCallback, BatchResult
from protoformer.batch.tasks import batch_videos
from protoformer.cli.options import (
    MIRROR_HELP,
    TILES,
    DeviceOption,
    FocalOption,
    FovOption,
    JsonOption,
    ModelOption,
    PrecisionOption,
    RangeOption,
    SideBySideOption,
    TileOption,
    UpdatesOption,
    ZoomOption,
    parse_crop,
    parse_depth_range,
    parse_memory,
    parse_near_far,
    parse_tile,
    parse_zoom,
)
from protoformer.cli.terminal import interruptible, print_json, videos_bar
from protoformer.explain.groups import FAMILIES
from protoformer.loading import STABILIZATION_MODEL, TRACKING_METHODS, TRACKING_MODEL
from protoformer.viz.report import format_count

SOME_FAILED = 1
"""Exit code if some videos failed."""

VideosArgument = Annotated[list[str], typer.Argument(help="Videos, or quoted patterns such as 'videos/**/*.mp4'.")]
FolderOption = Annotated[Path, typer.Option("--output", "-o", help="Folder to write to, with a summary.csv.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Number of parallel workers. [default: 1 on a GPU, else one per 4 cores]")
]
ClusterOption = Annotated[
    str | None, typer.Option(help="Ray cluster with access to the same files: auto, or ray://HOST:PORT.")
]
MinutesOption = Annotated[float | None, typer.Option(help="Time limit per video; slower videos fail. [default: none]")]
StepOption = Annotated[int, typer.Option(help="Use every n-th frame.")]

batch = typer.Typer(
    help="Process many videos; finished ones are skipped.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@batch.callback()
def _batch() -> None:
    """Process many videos; the same command continues an interrupted batch."""


@batch.command("flow")
def batch_flow_command(
    videos: VideosArgument,
    output: FolderOption,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    max_minutes_per_video: MinutesOption = None,
    side_by_side: SideBySideOption = False,
    arrows: Annotated[bool, typer.Option("--arrows", help="Draw arrows over the frame.")] = False,
    save_flo: Annotated[
        bool, typer.Option("--save-flo", help="Also write a folder of .flo files, one per pair, next to each video.")
    ] = False,
    frame_step: StepOption = 1,
    scale: Annotated[
        float | None, typer.Option(help="Motion of fully saturated colors, pixels. [default: estimated per video]")
    ] = None,
    model: ModelOption = "flow",
    num_updates: UpdatesOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    tile: TileOption = "auto",
    memory: Annotated[
        str | None, typer.Option(help="Memory limit per worker, such as 4GB. [default: its share of the free memory]")
    ] = None,
    zoom: ZoomOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Estimate the flow of many videos, on this machine or on a Ray cluster; finished videos are skipped.

    The exit code is 1 if some videos failed; the others are processed nevertheless.

    Example: `protoformer batch flow 'videos/*.mp4' -o motion --side-by-side`

    Example: `protoformer batch flow 'videos/**/*.mp4' -o motion --cluster ray://head:10001`
    """
    _run(
        "flow",
        videos,
        output,
        as_json,
        {
            "workers": workers,
            "cluster": cluster,
            "max_minutes_per_video": max_minutes_per_video,
            "model": model,
            "num_updates": num_updates,
            "device": device,
            "precision": precision or "auto",
            "side_by_side": side_by_side,
            "arrows": arrows,
            "save_flo": save_flo,
            "frame_step": frame_step,
            "scale": scale,
            "tile": parse_tile(tile, TILES),
            "memory": parse_memory(memory),
            "zoom": parse_zoom(zoom),
        },
    )


@batch.command("depth")
def batch_depth_command(
    videos: VideosArgument,
    output: FolderOption,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    max_minutes_per_video: MinutesOption = None,
    side_by_side: SideBySideOption = False,
    save_npy: Annotated[
        bool, typer.Option("--save-npy", help="Also write a folder of .npy files, meters, next to each video.")
    ] = False,
    frame_step: StepOption = 1,
    focal: FocalOption = None,
    fov: FovOption = None,
    range: RangeOption = None,
    colors: Annotated[
        str | None, typer.Option(help="NEAR,FAR: depths of the first and the last color, meters. [default: per video]")
    ] = None,
    steady: Annotated[bool, typer.Option(help="Reduce flicker by filtering along the flow.")] = True,
    model: ModelOption = "depth",
    num_updates: UpdatesOption = None,
    mirrored: Annotated[bool, typer.Option("--mirrored", help=MIRROR_HELP)] = False,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the metric depth of many videos; see `protoformer batch flow` for what all batches share.

    Example: `protoformer batch depth 'videos/*.mp4' -o depths --side-by-side --fov 70`
    """
    _run(
        "depth",
        videos,
        output,
        as_json,
        {
            "workers": workers,
            "cluster": cluster,
            "max_minutes_per_video": max_minutes_per_video,
            "model": model,
            "num_updates": num_updates,
            "device": device,
            "precision": precision or "auto",
            "side_by_side": side_by_side,
            "save_npy": save_npy,
            "frame_step": frame_step,
            "focal": focal,
            "fov": fov,
            "steady": steady,
            "mirrored": mirrored,
            "range": parse_depth_range(range),
            "colors": parse_near_far(colors, "--colors"),
        },
    )


@batch.command("track")
def batch_track_command(
    videos: VideosArgument,
    output: FolderOption,
    boxes: Annotated[
        Path | None,
        typer.Option(
            help="First boxes: a .csv with the header video,x,y,w,h, or a .json that maps videos to lists of boxes. "
            "[default: clip.boxes.csv beside each clip.mp4, with x,y,w,h of a target per line]"
        ),
    ] = None,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    max_minutes_per_video: MinutesOption = None,
    frame_step: StepOption = 1,
    method: Annotated[str, typer.Option(help=f"{', '.join(TRACKING_METHODS)}.")] = "model",
    model: ModelOption = TRACKING_MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Track targets through many videos; each also gets a table NAME.csv. See `protoformer batch flow`.

    Example: `protoformer batch track 'videos/*.mp4' -o tracks --boxes boxes.csv`
    """
    _run(
        "track",
        videos,
        output,
        as_json,
        {
            "workers": workers,
            "cluster": cluster,
            "max_minutes_per_video": max_minutes_per_video,
            "model": model,
            "method": method,
            "device": device,
            "precision": precision or "auto",
            "boxes": boxes,
            "frame_step": frame_step,
        },
    )


@batch.command("stabilize")
def batch_stabilize_command(
    videos: VideosArgument,
    output: FolderOption,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    max_minutes_per_video: MinutesOption = None,
    side_by_side: SideBySideOption = False,
    save_path: Annotated[
        bool, typer.Option("--save-path", help="Also write NAME.html with the camera path before and after.")
    ] = False,
    strength: Annotated[float, typer.Option(help="From 0 (no change) to 1 (as much as the crop allows).")] = 1.0,
    crop: Annotated[str, typer.Option(help="auto, none, or the fraction of the sides that is shown.")] = "auto",
    tripod: Annotated[bool, typer.Option("--tripod", help="Approximate a static camera.")] = False,
    delay: Annotated[
        int | None, typer.Option(help="Number of later frames used to correct a frame. [default: all]")
    ] = None,
    regressor: Annotated[str | None, typer.Option(help="field or grid. [default: the model's own]")] = None,
    model: ModelOption = STABILIZATION_MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stabilize many videos; sound, times and sizes are kept. See `protoformer batch flow`.

    Example: `protoformer batch stabilize 'videos/*.mp4' -o steady --save-path`
    """
    _run(
        "stabilize",
        videos,
        output,
        as_json,
        {
            "workers": workers,
            "cluster": cluster,
            "max_minutes_per_video": max_minutes_per_video,
            "model": model,
            "regressor": regressor,
            "device": device,
            "precision": precision or "auto",
            "strength": strength,
            "crop": parse_crop(crop),
            "tripod": tripod,
            "delay": delay,
            "side_by_side": side_by_side,
            "save_path": save_path,
        },
    )


@batch.command("explain")
def batch_explain_command(
    videos: VideosArgument,
    output: FolderOption,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    max_minutes_per_video: MinutesOption = None,
    layer: Annotated[str | None, typer.Option(help="Layer, STAGE.BLOCK such as 2.1. [default: the last]")] = None,
    families: Annotated[
        int, typer.Option(help="Number of colors, one per family of similar prototypes; 0: one per prototype.", min=0)
    ] = FAMILIES,
    frame_step: StepOption = 1,
    model: ModelOption = "flow",
    num_updates: UpdatesOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Color the pixels of many videos by prototype. See `protoformer batch flow`.

    Example: `protoformer batch explain 'videos/*.mp4' -o groups --layer 1.2`
    """
    _run(
        "explain",
        videos,
        output,
        as_json,
        {
            "workers": workers,
            "cluster": cluster,
            "max_minutes_per_video": max_minutes_per_video,
            "model": model,
            "num_updates": num_updates,
            "device": device,
            "layer": layer,
            "families": families,
            "frame_step": frame_step,
        },
    )


@batch.command("segment")
def batch_segment_command(
    videos: VideosArgument,
    output: FolderOption,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    max_minutes_per_video: MinutesOption = None,
    side_by_side: SideBySideOption = False,
    save_masks: Annotated[
        bool, typer.Option("--save-masks", help="Also write a folder of indexed .png masks next to each video.")
    ] = False,
    frame_step: StepOption = 1,
    method: Annotated[str, typer.Option(help="model, or threshold (a baseline).")] = "model",
    model: ModelOption = "segment",
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Segment what moves on its own in many videos. See `protoformer batch flow`.

    Example: `protoformer batch segment 'videos/*.mp4' -o objects --save-masks`
    """
    _run(
        "segment",
        videos,
        output,
        as_json,
        {
            "workers": workers,
            "cluster": cluster,
            "max_minutes_per_video": max_minutes_per_video,
            "model": model,
            "method": method,
            "device": device,
            "precision": precision or "auto",
            "side_by_side": side_by_side,
            "save_masks": save_masks,
            "frame_step": frame_step,
        },
    )


def _run(task: str, videos: list[str], output: Path, as_json: bool, options: dict[str, Any]) -> None:
    """Run a batch with a progress bar, and print its result; `options` are those of `batch_videos`."""
    start_time = time.perf_counter()

    def report(_: KeyboardInterrupt) -> None:
        text = f"stopped; finished videos are kept in {output}, and the same command continues from there."
        print(f"\nprotoformer: {text}", file=sys.stderr)

    # Ray prints messages about lost machines; standard output is for the result.
    with interruptible(report), redirect_stdout(sys.stderr), videos_bar(task) as update:
        callback = BatchCallback(
            job=lambda job, report, done, total: update(_failure_note(job, report), done, total),
            note=lambda note: update(f"note: {note}"),
        )
        result = batch_videos(task, videos, output, callback=callback, **options)
    _print_result(result, time.perf_counter() - start_time, as_json)
    if result.failures:
        raise typer.Exit(SOME_FAILED)


def _failure_note(job: Job, report: JobReport) -> str:
    return f"note: {job.video.name} failed: {report.reason}" if report.status == "failed" else ""


def _print_result(result: BatchResult, seconds: float, as_json: bool) -> None:
    frames = sum(each.frames for each in result.reports if each.status == "done")
    counts = {status: result.count(status) for status in ("done", "skipped", "failed")}
    if as_json:
        failures = {str(video): reason for video, reason in result.failures.items()}
        totals = {"videos": len(result.jobs), **counts, "frames": frames, "seconds": round(seconds, 3)}
        print_json({**totals, "summary": result.summary, "failures": failures})
        return
    print(
        f"{format_count(len(result.jobs), 'video')}: {counts['done']} done, {counts['skipped']} finished before, "
        f"{counts['failed']} failed; {frames} frames in {seconds:.1f} s; see {result.summary}"
    )
