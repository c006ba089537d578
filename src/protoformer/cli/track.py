"""`protoformer track`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from protoformer.cli.clips import (
    LiveWindow,
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
    FrameStepOption,
    JsonOption,
    ModelOption,
    PrecisionOption,
    StartOption,
    TimeoutOption,
    parse_box,
)
from protoformer.errors import InputError
from protoformer.io.files import TableWriter
from protoformer.loading import TRACKING_METHODS, TRACKING_MODEL, load_method
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.result import HEAD, Box, check_boxes, describe_targets, table_rows
from protoformer.tracking.tracker import clip_to_frame
from protoformer.tracking.video import TrackFrame, track_frames
from protoformer.viz.colormaps import Pixels
from protoformer.viz.report import format_count


def _note_clipped_boxes(boxes: tuple[Box, ...], size: tuple[int, int]) -> None:
    """Print a note on standard error about boxes that are partly outside the frame, of (height, width) pixels."""
    for box in boxes:
        x, y, width, height = box
        is_inside = x >= 0 and y >= 0 and x + width <= size[1] and y + height <= size[0]
        visible = clip_to_frame(box, size)
        if not is_inside and visible is not None:
            whole, part = (",".join(f"{value:g}" for value in each) for each in (box, visible))
            frame = f"the frame of {size[1]}x{size[0]} pixels"
            print(
                f"note: the box {whole} extends beyond {frame}; its visible part, {part}, is tracked", file=sys.stderr
            )


def track(
    source: Annotated[str, typer.Argument(help=CLIP_HELP)],
    box: Annotated[
        list[str] | None,
        typer.Option(
            help="X,Y,W,H in the first selected frame, pixels: column and row (from 0) of the top-left pixel, width "
            "and height. Repeat for several targets."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"The video with boxes drawn: {VIDEO_SUFFIXES}. [default: track.mp4, unless --csv or --window is "
            "given]",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="A table with one row per frame and target: frame, time, target, x, y, w, h, score, lost."),
    ] = None,
    method: Annotated[str, typer.Option(help=f"{', '.join(TRACKING_METHODS)}.")] = "model",
    model: ModelOption = TRACKING_MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: StartOption = None,
    end: EndOption = None,
    frame_step: FrameStepOption = None,
    fps: FpsOption = None,
    drop: DropOption = None,
    timeout: TimeoutOption = None,
    window: Annotated[bool, typer.Option("--window", help="Show the frames in a window, which q closes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Track objects through a video from boxes in its first frame.

    Example: `protoformer track clip.mp4 --box 51,47,25,62 -o track.mp4 --csv track.csv`

    Example: `protoformer track 0 --box 51,47,25,62 --window`

    Example: `protoformer track "frames/*.jpg" --box 51,47,25,62 --box 200,40,60,60 --method correlation`
    """
    boxes = [parse_box(each) for each in box or []]
    if not boxes:
        raise InputError("there is no target; give a --box X,Y,W,H around it in the first frame.")
    video, step = open_clip(source, fps, drop, timeout), 1 if frame_step is None else frame_step
    size = video.info.size
    checked = check_boxes(boxes, size)
    default = Path("track.mp4") if csv is None and not window else None
    writer = make_video_writer([] if output is None else [output], default, video, step)
    if csv is not None:
        check_output_not_input(csv, video)
    table = None if csv is None else TableWriter(csv, HEAD)
    view = LiveWindow(Path(video.info.name).name) if window else None
    tracker = load_method(method, model, device, precision)
    _note_clipped_boxes(checked, size)
    lost, scores = [0] * len(boxes), [0.0] * len(boxes)

    def on_result(result: TrackFrame, image: Pixels | None) -> None:
        for index, target in enumerate(result.targets):
            lost[index] += target.lost
            scores[index] += target.score
        if table is not None:
            for row in table_rows(result.number, result.time, result.targets):
                table.write(*row)
        if view is not None and image is not None:
            view.show(image)

    with report_interruption("frame", video):
        outcome = run_with_bar(
            f"tracking, {tracker.label}",
            estimate_frame_count(video, start, end, max(1, step)),
            track_frames(video, boxes, tracker.begin, start, end, step),
            None if writer is None and view is None else lambda result: draw_targets(result.frame, result.targets),
            writer,
            outputs=[each for each in (table, view) if each is not None],
            on_result=on_result,
            keep_going=lambda: writer is not None or table is not None or (view is not None and view.open),
        )
    count = outcome.num_frames
    summary = {
        "frames": count,
        "targets": [
            {"mean_score": round(score / count, 4), "lost_frames": frames}
            for score, frames in zip(scores, lost, strict=True)
        ],
        "method": tracker.label,
        "trained": tracker.trained,
    }
    text = f"{format_count(count, 'frame')} of {size[1]}x{size[0]} pixels, {describe_targets(lost)}; {tracker.label}"
    written = [each.path for each in (writer, table) if each is not None]
    print_summary(video, outcome, written, as_json, summary, text)
