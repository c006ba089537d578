"""`protoformer depth` of a clip: a video in, a video of its depth out."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from protoformer.app.camera_words import told_camera
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
from protoformer.files import Movie, MovieWriter
from protoformer.inference import DepthVideo, load
from protoformer.inference.brief import count_fact
from protoformer.inference.cameras import Camera, CameraHint
from protoformer.inference.flow_windows import Precision
from protoformer.show import depth_frame


@dataclass(frozen=True)
class DepthClipOptions:
    """What was asked for on the command line; None where nothing was."""

    side_by_side: bool
    frame_by_frame: bool
    save_npy: Path | None
    start: float | None
    end: float | None
    every: int | None
    rate: float | None
    colours: tuple[float, float] | None
    camera: CameraHint
    range: tuple[float, float] | None
    precision: str
    updates: int | None
    mirrored: bool


@dataclass
class _Tally:
    """What was done so far."""

    depths: int = 0
    metres: float = 0.0

    def __str__(self) -> str:
        return count_fact(self.depths, "depth")


def depth_of_clip(
    source: str, outputs: list[Path], named: tuple[str, str | None], options: DepthClipOptions, as_json: bool
) -> None:
    """Write the depth of a clip as a video, as .npy files, or both. named: the model and the device, as given."""
    movie = opened_clip(source, options.rate)
    target = one_video(outputs, "depth.mp4", movie, options.save_npy)
    check_folder(options.save_npy, "000000.npy")
    writer = None
    if target is not None:
        writer = MovieWriter(target, movie, movie.info.rate / max(1, options.every or 1))
    video = load(*named, task="depth").depth_video(
        movie,
        start=options.start,
        end=options.end,
        every=1 if options.every is None else options.every,
        focal=options.camera.focal,
        fov=options.camera.fov,
        range=options.range,
        steady=not options.frame_by_frame,
        updates=options.updates,
        mirrored=options.mirrored,
        precision=cast(Precision, options.precision),
    )
    tally, began = _Tally(), time.perf_counter()

    def tell() -> None:
        tell_interrupted(str(tally), what_is_kept(writer, options.save_npy if tally.depths else None))

    with stoppable(tell):
        colours = _colours(video, options) if writer else None
        _run(video, writer, options, colours, tally)
    _tell(video, target, options, colours, tally, time.perf_counter() - began, as_json)


def _colours(video: DepthVideo, options: DepthClipOptions) -> tuple[float, float]:
    """Metres of the first and the last colour, in the whole clip."""
    if options.colours is not None:
        return options.colours
    with progress_bar("a first look", total=1) as told:
        return video.typical_range(told)


def _run(
    video: DepthVideo,
    writer: MovieWriter | None,
    options: DepthClipOptions,
    colours: tuple[float, float] | None,
    tally: _Tally,
) -> None:
    span = video.options
    expected = expected_frames(cast(Movie, video.movie), span.start, span.end, span.every)
    with ExitStack() as open_things:
        told = open_things.enter_context(frames_bar("depth", expected))
        if writer is not None:
            open_things.enter_context(writer)
        for step in video:
            if writer is not None and colours is not None:
                writer.write(depth_frame(step, colours, options.side_by_side), step.time)
            if options.save_npy is not None:
                step.save(options.save_npy / f"{step.number:06d}.npy")
            tally.depths += 1
            tally.metres += float(step.depth.median())
            told(tally.depths)


def _tell(
    video: DepthVideo,
    target: Path | None,
    options: DepthClipOptions,
    colours: tuple[float, float] | None,
    tally: _Tally,
    seconds: float,
    as_json: bool,
) -> None:
    movie, camera = cast(Movie, video.movie), cast(Camera, video.camera)
    height, width = movie.info.size
    written = [str(path) for path in (target, options.save_npy) if path is not None]
    tell_damage(movie)
    if as_json:
        summary: dict[str, Any] = {
            "depths": tally.depths,
            "width": width,
            "height": height,
            "mean_median_m": round(tally.metres / tally.depths, 4),
            "colours_m": None if colours is None else [round(each, 4) for each in colours],
            "focal_px": round(camera.focal, 3),
            "camera": camera.source,
            "trained": video.trained,
            "steady": not options.frame_by_frame,
            "precision": "half" if video.half else "full",
            "seconds": round(seconds, 3),
            "skipped": movie.skipped,
            "torn": movie.torn,
            "written": written,
        }
        print(json.dumps(summary))
        return
    how = "as you said" if options.colours is not None else "96 of 100 depths of a first look"
    shown = "" if colours is None else f" colours from {colours[0]:.2f} to {colours[1]:.2f} m ({how});"
    print(
        f"{tally} of {width}x{height} pixels, mean of the medians {tally.metres / tally.depths:.2f} m; "
        f"{told_camera(camera.source, camera.focal)}; {'frame by frame' if options.frame_by_frame else 'steadied'}, "
        f"{'bfloat16' if video.half else 'float32'};{shown} {tally.depths / seconds:.2f} frames a second; "
        f"wrote {', '.join(written)}"
    )
