"""`protoformer track`."""

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from protoformer.cli.clips import (
    LiveWindow,
    check_output_not_input,
    expected_frame_count,
    open_clip,
    report_damage,
    report_interruption,
)
from protoformer.cli.options import DeviceOption, ModelOption, PrecisionOption, parse_box
from protoformer.cli.terminal import frames_bar, stoppable, to_json
from protoformer.errors import InputError
from protoformer.io.files import TableWriter
from protoformer.loading import TRACKING_METHODS, TRACKING_MODEL, NamedMethod, load_method
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.result import HEAD, Box, check_boxes, describe_targets, table_rows
from protoformer.tracking.target import clip_to_frame
from protoformer.tracking.video import TrackFrame, track_frames
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.text import format_count


@dataclass(frozen=True)
class TrackOptions:
    """What was asked for on the command line; None where nothing was."""

    output: Path | None
    csv: Path | None
    start: float | None
    end: float | None
    frame_step: int
    fps: float | None
    window: bool


@dataclass(frozen=True)
class MethodChoice:
    """Who follows, as the options of these names say; None where nothing was asked for."""

    method: str
    model: str
    device: str | None
    precision: str | None


@dataclass
class _Tally:
    """What was done so far, by target."""

    lost: list[int]
    score: list[float]
    frames: int = field(default=0)

    def add(self, step: TrackFrame) -> None:
        self.frames += 1
        for place, target in enumerate(step.targets):
            self.lost[place] += target.lost
            self.score[place] += target.score


@dataclass(frozen=True)
class _Outputs:
    """Where steps go; None where nobody wants them."""

    writer: VideoWriter | None
    table: TableWriter | None
    window: LiveWindow | None

    def opened(self, open_things: ExitStack) -> None:
        for each in (self.writer, self.table, self.window):
            if each is not None:
                open_things.enter_context(each)

    def take(self, step: TrackFrame) -> None:
        if self.table is not None:
            for row in table_rows(step.number, step.time, step.targets):
                self.table.write(*row)
        if self.writer is None and (self.window is None or not self.window.open):
            return
        drawn = draw_targets(step.frame, step.targets)
        if self.writer is not None:
            self.writer.write(drawn, step.time)
        if self.window is not None:
            self.window.show(drawn)

    @property
    def wanted(self) -> bool:
        """Whether anybody still looks."""
        return self.writer is not None or self.table is not None or (self.window is not None and self.window.open)

    @property
    def kept(self) -> list[str]:
        """What an interruption left."""
        return [
            str(each.partial_path)
            for each in (self.writer, self.table)
            if each is not None and each.partial_path is not None
        ]


def track_clip(
    source: str,
    boxes: list[list[float]],
    chosen: MethodChoice,
    options: TrackOptions,
    as_json: bool,
) -> None:
    """Write a clip with its targets drawn, a table of them, or both."""
    if not boxes:
        raise InputError("there is nothing to follow; give a --box X,Y,W,H around it in the first frame.")
    movie = open_clip(source, options.fps)
    given = check_boxes(boxes, movie.info.size)
    if options.frame_step < 1:
        raise InputError(f"one frame in {options.frame_step} cannot be taken; give a whole number of 1 or more.")
    outputs = _outputs(movie, options)
    method = load_method(chosen.method, chosen.model, chosen.device, chosen.precision)
    _tell_cut(given, movie.info.size)
    tally, began = _Tally([0] * len(boxes), [0.0] * len(boxes)), time.perf_counter()
    with stoppable(lambda: report_interruption(_frames(tally), outputs.kept)):
        _run(movie, boxes, method, options, outputs, tally)
    _tell(movie, outputs, method, tally, time.perf_counter() - began, as_json)


def _tell_cut(boxes: tuple[Box, ...], size: tuple[int, int]) -> None:
    """Note, on standard error, of which boxes a frame of (height, width) pixels shows a part alone."""
    for box in boxes:
        x, y, wide, tall = box
        inside = x >= 0 and y >= 0 and x + wide <= size[1] and y + tall <= size[0]
        shown = clip_to_frame(box, size)
        if not inside and shown is not None:
            whole, part = (",".join(f"{value:g}" for value in each) for each in (box, shown))
            where = f"the frame of {size[1]}x{size[0]} pixels"
            print(f"note: the box {whole} reaches beyond {where}; its part there, {part}, is followed", file=sys.stderr)


def _outputs(movie: Video, options: TrackOptions) -> _Outputs:
    target = options.output
    if target is None and options.csv is None and not options.window:
        target = Path("track.mp4")
    for path in (target, options.csv):
        if path is not None:
            check_output_not_input(path, movie)
    return _Outputs(
        None if target is None else VideoWriter(target, movie, movie.info.fps / options.frame_step),
        None if options.csv is None else TableWriter(options.csv, HEAD),
        LiveWindow(str(movie.info.paths[0].name)) if options.window else None,
    )


def _run(
    movie: Video,
    boxes: list[list[float]],
    method: NamedMethod,
    options: TrackOptions,
    outputs: _Outputs,
    tally: _Tally,
) -> None:
    with ExitStack() as open_things:
        total = expected_frame_count(movie, options.start, options.end, options.frame_step)
        told = open_things.enter_context(frames_bar(f"tracking, {method.label}", total))
        outputs.opened(open_things)
        for step in track_frames(movie, boxes, method.begin, options.start, options.end, options.frame_step):
            tally.add(step)
            outputs.take(step)
            told(tally.frames)
            if not outputs.wanted:
                return


def _tell(movie: Video, outputs: _Outputs, method: NamedMethod, tally: _Tally, seconds: float, as_json: bool) -> None:
    report_damage(movie)
    height, width = movie.info.size
    written = [str(each.path) for each in (outputs.writer, outputs.table) if each is not None]
    if as_json:
        summary = {
            "frames": tally.frames,
            "width": width,
            "height": height,
            "targets": [
                {"mean_score": round(score / tally.frames, 4), "lost_frames": lost}
                for score, lost in zip(tally.score, tally.lost, strict=True)
            ],
            "method": method.label,
            "trained": method.trained,
            "seconds": round(seconds, 3),
            "skipped": movie.skipped,
            "truncated": movie.truncated,
            "written": written,
        }
        print(json.dumps(to_json(summary)))
        return
    where = f"; wrote {', '.join(written)}" if written else ""
    print(
        f"{_frames(tally)} of {width}x{height} pixels, {describe_targets(tally.lost)}; {method.label}, "
        f"{tally.frames / seconds:.2f} frames a second{where}"
    )


def _frames(tally: _Tally) -> str:
    return format_count(tally.frames, "frame")


def track(
    source: Annotated[str, typer.Argument(help="A video, a folder of frames or a quoted pattern of their names.")],
    box: Annotated[
        list[str] | None,
        typer.Option(
            help="X,Y,W,H in the first frame taken, in pixels: column and row, counted from 0, of the top-left pixel "
            "of the box, its width and its height. Repeat for several targets."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The clip with boxes drawn: .mp4, .mov, .mkv, .webm, .avi or .gif. [default: track.mp4, unless --csv "
            "or --window is given]",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="A table: frame, time, target, x, y, w, h, score, lost, a row a frame a target.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"{', '.join(TRACKING_METHODS)}.")] = "model",
    model: ModelOption = TRACKING_MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: Annotated[float | None, typer.Option(help="Seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds before which to end.")] = None,
    frame_step: Annotated[int, typer.Option(help="Take one frame in so many.")] = 1,
    fps: Annotated[float | None, typer.Option(help="Of images: frames a second. [default: 25]")] = None,
    window: Annotated[bool, typer.Option("--window", help="Show it in a window as it goes; q closes it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Track objects through a video from boxes in its first frame.

    Example: `protoformer track clip.mp4 --box 51,47,25,62 -o track.mp4 --csv track.csv`

    Example: `protoformer track "frames/*.jpg" --box 51,47,25,62 --box 200,40,60,60 --method correlation`
    """
    boxes = [parse_box(each) for each in box or []]
    track_clip(
        source,
        boxes,
        MethodChoice(method, model, device, precision),
        TrackOptions(output, csv, start, end, frame_step, fps, window),
        as_json,
    )
