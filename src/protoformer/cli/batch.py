"""`protoformer batch`."""

import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from protoformer.batch.flow import batch_flow
from protoformer.batch.jobs import Job, JobReport
from protoformer.batch.running import BatchCallback, BatchResult
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
from protoformer.cli.terminal import stoppable, videos_bar
from protoformer.viz.text import format_count

SOME_FAILED = 1
"""The exit code where some of the videos could not be done."""

batch = typer.Typer(help="Process many videos; finished ones are skipped.", no_args_is_help=True, add_completion=False)


@batch.callback()
def _of_many() -> None:
    """Many videos at once, each done once: run the same command again and it goes on where it stopped."""


@batch.command("flow")
def batch_flow_command(
    videos: Annotated[list[str], typer.Argument(help="Videos, or quoted patterns such as 'videos/**/*.mp4'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write into; summary.csv tells all.")],
    workers: Annotated[
        int | None, typer.Option(help="How many videos at a time. [default: 1 on a GPU, else one for every 4 cores]")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A Ray cluster that sees the same files: auto, or ray://HOST:PORT.")
    ] = None,
    max_minutes_per_video: Annotated[
        float | None, typer.Option(help="Give up a video that takes longer, and go on with the next. [default: never]")
    ] = None,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="The frame beside its motion.")] = False,
    arrows: Annotated[bool, typer.Option("--arrows", help="The frame with arrows on it.")] = False,
    save_flo: Annotated[
        bool, typer.Option("--save-flo", help="A folder of .flo files, one a pair, beside each video.")
    ] = False,
    frame_step: Annotated[int, typer.Option(help="Take one frame in so many.")] = 1,
    scale: Annotated[
        float | None, typer.Option(help="Pixels at which colors are full. [default: by a first look at each video]")
    ] = None,
    model: ModelOption = "flow",
    updates: UpdatesOption = None,
    device: DeviceOption = None,
    tile: TileOption = "auto",
    memory: Annotated[
        str | None, typer.Option(help="What each worker may use, such as 4GB. [default: its part of what is free]")
    ] = None,
    zoom: ZoomOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Motion of many videos, on this machine or on a Ray cluster; what is finished is not done again.

    Ends with code 1 if some videos could not be done, which is no trouble for the others.

    Example: `protoformer batch flow 'videos/*.mp4' -o motion --side-by-side`

    Example: `protoformer batch flow 'videos/**/*.mp4' -o motion --cluster ray://head:10001`
    """
    chosen, budget, enlarging = parse_tile(tile), parse_bytes(memory), parse_zoom(zoom)
    began = time.perf_counter()

    def tell() -> None:
        print(
            f"\nprotoformer: stopped; what is finished is kept in {output}, and the same command goes on from there.",
            file=sys.stderr,
        )

    # Ray has remarks of its own on lost machines; standard output is for the result.
    with stoppable(tell), redirect_stdout(sys.stderr), videos_bar("flow") as shown:
        result = batch_flow(
            videos,
            output,
            workers=workers,
            device=device,
            cluster=cluster,
            max_minutes_per_video=max_minutes_per_video,
            callback=BatchCallback(
                lambda *how: shown(_line(how[0], how[1]), *how[2:]), lambda note: shown(f"note: {note}")
            ),
            model=model,
            side_by_side=side_by_side,
            arrows=arrows,
            save_flo=save_flo,
            frame_step=frame_step,
            scale=scale,
            updates=updates,
            tile=chosen,
            memory=budget,
            zoom=enlarging,
        )
    _tell(result, time.perf_counter() - began, as_json)
    if result.failures:
        raise typer.Exit(SOME_FAILED)


def _line(job: Job, report: JobReport) -> str:
    """What is worth a line of its own while others are still at work."""
    return f"note: {job.video.name} failed: {report.reason}" if report.status == "failed" else ""


def _tell(result: BatchResult, seconds: float, as_json: bool) -> None:
    frames = sum(each.frames for each in result.reports if each.status == "done")
    counts = {status: result.count(status) for status in ("done", "skipped", "failed")}
    if as_json:
        failures = {str(video): reason for video, reason in result.failures.items()}
        told: dict[str, Any] = {"videos": len(result.jobs), **counts, "frames": frames, "seconds": round(seconds, 3)}
        print(json.dumps({**told, "summary": str(result.summary), "failures": failures}))
        return
    videos = format_count(len(result.jobs), "video")
    print(
        f"{videos}: {counts['done']} done, {counts['skipped']} finished before, {counts['failed']} failed; "
        f"{frames} frames in {seconds:.1f} s; see {result.summary}"
    )
