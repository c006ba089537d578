"""`protoformer batch`."""

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from protoformer.batch.flow import batch_flow
from protoformer.batch.jobs import Job, JobReport
from protoformer.batch.running import BatchCallback, BatchResult
from protoformer.cli.options import (
    TILES,
    DeviceOption,
    JsonOption,
    ModelOption,
    SideBySideOption,
    TileOption,
    UpdatesOption,
    ZoomOption,
    parse_memory,
    parse_tile,
    parse_zoom,
)
from protoformer.cli.terminal import interruptible, print_json, videos_bar
from protoformer.viz.report import format_count

SOME_FAILED = 1
"""Exit code if some videos failed."""

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
    videos: Annotated[list[str], typer.Argument(help="Videos, or quoted patterns such as 'videos/**/*.mp4'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to, with a summary.csv.")],
    workers: Annotated[
        int | None, typer.Option(help="Number of parallel workers. [default: 1 on a GPU, else one per 4 cores]")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Ray cluster with access to the same files: auto, or ray://HOST:PORT.")
    ] = None,
    max_minutes_per_video: Annotated[
        float | None, typer.Option(help="Time limit per video; slower videos fail. [default: none]")
    ] = None,
    side_by_side: SideBySideOption = False,
    arrows: Annotated[bool, typer.Option("--arrows", help="Draw arrows over the frame.")] = False,
    save_flo: Annotated[
        bool, typer.Option("--save-flo", help="Also write a folder of .flo files, one per pair, next to each video.")
    ] = False,
    frame_step: Annotated[int, typer.Option(help="Use every n-th frame.")] = 1,
    scale: Annotated[
        float | None, typer.Option(help="Motion of fully saturated colors, pixels. [default: estimated per video]")
    ] = None,
    model: ModelOption = "flow",
    num_updates: UpdatesOption = None,
    device: DeviceOption = None,
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
    start_time = time.perf_counter()

    def report(_: KeyboardInterrupt) -> None:
        text = f"stopped; finished videos are kept in {output}, and the same command continues from there."
        print(f"\nprotoformer: {text}", file=sys.stderr)

    # Ray prints messages about lost machines; standard output is for the result.
    with interruptible(report), redirect_stdout(sys.stderr), videos_bar("flow") as update:
        result = batch_flow(
            videos,
            output,
            workers=workers,
            device=device,
            cluster=cluster,
            max_minutes_per_video=max_minutes_per_video,
            callback=BatchCallback(
                job=lambda job, report, done, total: update(_failure_note(job, report), done, total),
                note=lambda note: update(f"note: {note}"),
            ),
            model=model,
            side_by_side=side_by_side,
            arrows=arrows,
            save_flo=save_flo,
            frame_step=frame_step,
            scale=scale,
            num_updates=num_updates,
            tile=parse_tile(tile, TILES),
            memory=parse_memory(memory),
            zoom=parse_zoom(zoom),
        )
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
