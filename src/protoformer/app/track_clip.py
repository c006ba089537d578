"""`protoformer track` of a clip: a video in, the same with boxes drawn out, and a table of them."""

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from protoformer.app.clips import (
    check_not_read,
    expected_frames,
    opened_clip,
    tell_damage,
    tell_interrupted,
)
from protoformer.app.live_window import LiveWindow
from protoformer.app.plain_json import plain_json
from protoformer.app.progress import frames_bar
from protoformer.app.stopping import stoppable
from protoformer.app.track_methods import NamedMethod, named_method
from protoformer.errors import InputError
from protoformer.files import Movie, MovieWriter
from protoformer.files.table import TableWriter
from protoformer.inference.brief import count_fact
from protoformer.inference.track_boxes import Box, checked_boxes
from protoformer.inference.track_steps import TrackStep, track_steps
from protoformer.inference.track_table import HEAD, table_rows, told_of_targets
from protoformer.inference.track_target import on_frame
from protoformer.show.track_frames import draw_targets


@dataclass(frozen=True)
class TrackOptions:
    """What was asked for on the command line; None where nothing was."""

    output: Path | None
    csv: Path | None
    start: float | None
    end: float | None
    every: int
    rate: float | None
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

    def add(self, step: TrackStep) -> None:
        self.frames += 1
        for place, target in enumerate(step.targets):
            self.lost[place] += target.lost
            self.score[place] += target.score


@dataclass(frozen=True)
class _Outputs:
    """Where steps go; None where nobody wants them."""

    writer: MovieWriter | None
    table: TableWriter | None
    window: LiveWindow | None

    def opened(self, open_things: ExitStack) -> None:
        for each in (self.writer, self.table, self.window):
            if each is not None:
                open_things.enter_context(each)

    def take(self, step: TrackStep) -> None:
        if self.table is not None:
            for row in table_rows(step.number, step.time, step.targets):
                self.table.write(*row)
        if self.writer is None and (self.window is None or not self.window.open):
            return
        drawn = draw_targets(step.image, step.targets)
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
        return [str(each.kept) for each in (self.writer, self.table) if each is not None and each.kept is not None]


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
    movie = opened_clip(source, options.rate)
    given = checked_boxes(boxes, movie.info.size)
    if options.every < 1:
        raise InputError(f"one frame in {options.every} cannot be taken; give a whole number of 1 or more.")
    outputs = _outputs(movie, options)
    method = named_method(chosen.method, chosen.model, chosen.device, chosen.precision)
    _tell_cut(given, movie.info.size)
    tally, began = _Tally([0] * len(boxes), [0.0] * len(boxes)), time.perf_counter()
    with stoppable(lambda: tell_interrupted(_frames(tally), outputs.kept)):
        _run(movie, boxes, method, options, outputs, tally)
    _tell(movie, outputs, method, tally, time.perf_counter() - began, as_json)


def _tell_cut(boxes: tuple[Box, ...], size: tuple[int, int]) -> None:
    """Note, on standard error, of which boxes a frame of (height, width) pixels shows a part alone."""
    for box in boxes:
        x, y, wide, tall = box
        inside = x >= 0 and y >= 0 and x + wide <= size[1] and y + tall <= size[0]
        shown = on_frame(box, size)
        if not inside and shown is not None:
            whole, part = (",".join(f"{value:g}" for value in each) for each in (box, shown))
            where = f"the frame of {size[1]}x{size[0]} pixels"
            print(f"note: the box {whole} reaches beyond {where}; its part there, {part}, is followed", file=sys.stderr)


def _outputs(movie: Movie, options: TrackOptions) -> _Outputs:
    target = options.output
    if target is None and options.csv is None and not options.window:
        target = Path("track.mp4")
    for path in (target, options.csv):
        if path is not None:
            check_not_read(path, movie)
    return _Outputs(
        None if target is None else MovieWriter(target, movie, movie.info.rate / options.every),
        None if options.csv is None else TableWriter(options.csv, HEAD),
        LiveWindow(str(movie.info.paths[0].name)) if options.window else None,
    )


def _run(
    movie: Movie,
    boxes: list[list[float]],
    method: NamedMethod,
    options: TrackOptions,
    outputs: _Outputs,
    tally: _Tally,
) -> None:
    with ExitStack() as open_things:
        total = expected_frames(movie, options.start, options.end, options.every)
        told = open_things.enter_context(frames_bar(f"tracking, {method.label}", total))
        outputs.opened(open_things)
        for step in track_steps(movie, boxes, method.begin, options.start, options.end, options.every):
            tally.add(step)
            outputs.take(step)
            told(tally.frames)
            if not outputs.wanted:
                return


def _tell(movie: Movie, outputs: _Outputs, method: NamedMethod, tally: _Tally, seconds: float, as_json: bool) -> None:
    tell_damage(movie)
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
            "torn": movie.torn,
            "written": written,
        }
        print(json.dumps(plain_json(summary)))
        return
    where = f"; wrote {', '.join(written)}" if written else ""
    print(
        f"{_frames(tally)} of {width}x{height} pixels, {told_of_targets(tally.lost)}; {method.label}, "
        f"{tally.frames / seconds:.2f} frames a second{where}"
    )


def _frames(tally: _Tally) -> str:
    return count_fact(tally.frames, "frame")
