"""`protoformer flow` of a clip: a video in, a video of its motion out."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from protoformer.app.clips import (
    check_folder,
    expected_frames,
    one_video,
    opened_clip,
    tell_damage,
    tell_interrupted,
    what_is_kept,
)
from protoformer.app.progress import frames_bar, progress_bar
from protoformer.app.stopping import stoppable
from protoformer.errors import InputError
from protoformer.files import Movie, MovieWriter
from protoformer.inference import FlowVideo, load
from protoformer.inference.brief import count_fact
from protoformer.inference.flow_windows import Precision
from protoformer.inference.planning import Tile
from protoformer.show import flow_frame
from protoformer.show.flow_frames import arrow_factor


@dataclass(frozen=True)
class ClipOptions:
    """What was asked for on the command line; None where nothing was."""

    side_by_side: bool
    arrows: bool
    save_flo: Path | None
    start: float | None
    end: float | None
    every: int | None
    rate: float | None
    scale: float | None
    warm_start: bool
    precision: str | None
    updates: int | None
    tile: Tile
    memory: int | None
    zoom: float | None


ALSO_FOR_IMAGES = ("updates", "tile", "memory", "zoom")
"""Options that two images have, too."""


@dataclass
class _Tally:
    """What was done so far."""

    flows: int = 0
    motion: float = 0.0


def refuse_clip_options(options: ClipOptions) -> None:
    """Refuse what was asked for that two images do not have."""
    for name in (field.name for field in fields(options) if field.name not in ALSO_FOR_IMAGES):
        value = getattr(options, name)
        if value is not None and value is not False:
            raise InputError(f"--{name.replace('_', '-')} is for a clip; leave it out for two images.")


def flow_of_clip(
    source: str, outputs: list[Path], named: tuple[str, str | None], options: ClipOptions, as_json: bool
) -> None:
    """Write the motion of a clip as a video, as .flo files, or both. named: the model and the device, as given."""
    movie = opened_clip(source, options.rate)
    target = one_video(outputs, "motion.mp4", movie, options.save_flo)
    if options.scale is not None and not 0 < options.scale < float("inf"):
        raise InputError(f"colours cannot be full at {options.scale:g} pixels; give a --scale over 0.")
    check_folder(options.save_flo, "000000.flo")
    writer = None
    if target is not None:
        writer = MovieWriter(target, movie, movie.info.rate / max(1, options.every or 1))
    video = load(*named, task="flow").flow_video(
        movie,
        start=options.start,
        end=options.end,
        every=1 if options.every is None else options.every,
        updates=options.updates,
        warm_start=options.warm_start,
        tile=options.tile,
        memory=options.memory,
        zoom=options.zoom,
        precision=cast(Precision, options.precision or "auto"),
    )
    tally = _Tally()

    def tell() -> None:
        tell_interrupted(_flows(tally), what_is_kept(writer, options.save_flo if tally.flows else None))

    with stoppable(tell):
        scale = _scale(video, options) if writer else None
        began = time.perf_counter()  # the first look is no part of the speed, as in the bar
        _run(video, writer, options, scale, tally)
    _tell(video, target, options, scale, tally, time.perf_counter() - began, as_json)


def _scale(video: FlowVideo, options: ClipOptions) -> float:
    """Pixels at which colours are full and arrows have their usual length, in the whole clip."""
    if options.scale is not None:
        return options.scale
    with progress_bar("a first look", total=1) as told:
        return video.typical_motion(told)


def _run(
    video: FlowVideo, writer: MovieWriter | None, options: ClipOptions, scale: float | None, tally: _Tally
) -> None:
    with ExitStack() as open_things:
        told = open_things.enter_context(frames_bar(f"flow, {video.plan}", _expected(video)))
        if writer is not None:
            open_things.enter_context(writer)
        for step in video:
            if writer is not None:
                writer.write(flow_frame(step, scale or 1.0, options.side_by_side, options.arrows), step.time)
            if options.save_flo is not None:
                step.save(options.save_flo / f"{step.number:06d}.flo")
            tally.flows += 1
            tally.motion += float(step.flow.norm(dim=0).mean())
            told(tally.flows)


def _expected(video: FlowVideo) -> int | None:
    """About how many flows there will be; None where the clip does not say."""
    options = video.options
    frames = expected_frames(cast(Movie, video.movie), options.start, options.end, options.every)
    return None if frames is None else max(1, frames - 1)


def _tell(
    video: FlowVideo,
    target: Path | None,
    options: ClipOptions,
    scale: float | None,
    tally: _Tally,
    seconds: float,
    as_json: bool,
) -> None:
    movie = cast(Movie, video.movie)
    (height, width), plan = movie.info.size, video.plan
    written = [str(path) for path in (target, options.save_flo) if path is not None]
    tell_damage(movie)
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
            "batch": None if plan is None else plan.batch,
            "precision": "half" if video.half else "full",
            "seconds": round(seconds, 3),
            "skipped": movie.skipped,
            "torn": movie.torn,
            "written": written,
        }
        print(json.dumps(summary))
        return
    how = "as you said" if options.scale is not None else "99 of 100 vectors of a first look are shorter"
    coloured = scale is not None and (options.side_by_side or not options.arrows)
    shown = f" colours are full at {scale:.2f} px ({how});" if coloured else ""
    if factor is not None:
        shown += f" arrows are {'as' if factor == 1 else f'{factor} times as'} long as the motion;"
    print(
        f"{_flows(tally)} of {width}x{height} pixels, mean motion {tally.motion / tally.flows:.2f} px; {plan}, "
        f"{'bfloat16' if video.half else 'float32'};{shown} {tally.flows / seconds:.2f} frames a second; "
        f"wrote {', '.join(written)}"
    )


def _flows(tally: _Tally) -> str:
    return count_fact(tally.flows, "flow")
