"""`protoformer explain` of a clip: a video in, a video in the colours of its prototypes out."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import typer

from protoformer.app.clips import (
    INTERRUPTED,
    expected_frames,
    one_video,
    opened_clip,
    tell_damage,
    tell_interrupted,
    what_is_kept,
)
from protoformer.app.progress import frames_bar
from protoformer.files import MovieWriter
from protoformer.inference import load
from protoformer.inference.prototype_groups import FAMILIES
from protoformer.show.explanation_pictures import prototype_frame


@dataclass(frozen=True)
class ExplainClipOptions:
    """What was asked for on the command line; None where nothing was."""

    layer: str | None
    families: int | None
    updates: int | None
    start: float | None
    end: float | None
    every: int | None
    rate: float | None


def explain_clip(
    source: str, output: Path | None, named: tuple[str, str | None], options: ExplainClipOptions, as_json: bool
) -> None:
    """Write a clip tinted by its prototypes. named: the model and the device, as given."""
    movie = opened_clip(source, options.rate)
    target = one_video([] if output is None else [output], "explained.mp4", movie, None)
    assert target is not None
    every = 1 if options.every is None else options.every
    writer = MovieWriter(target, movie, movie.info.rate / max(1, every))
    video = load(*named, task="flow").explain_video(
        movie,
        layer=options.layer,
        families=FAMILIES if options.families is None else options.families or None,
        start=options.start,
        end=options.end,
        every=every,
        updates=options.updates,
    )
    frames, kept, seen, began = 0, 0.0, 0, time.perf_counter()
    try:
        with frames_bar("explaining", expected_frames(movie, options.start, options.end, every)) as told, writer:
            for step in video:
                writer.write(prototype_frame(step), step.time)
                frames, kept = frames + 1, kept + step.kept
                seen = max(seen, int(step.identities.max()) + 1)
                told(frames)
    except KeyboardInterrupt:
        tell_interrupted(f"{frames} frames", what_is_kept(writer, None))
        raise typer.Exit(INTERRUPTED) from None
    tell_damage(movie)
    seconds = time.perf_counter() - began
    summary = {
        "frames": frames,
        "width": movie.info.size[1],
        "height": movie.info.size[0],
        "layer": "{}.{}".format(*video.layer),
        "prototypes": seen,
        "kept": round((kept - 1) / (frames - 1), 4) if frames > 1 else None,
        "seconds": round(seconds, 3),
        "skipped": movie.skipped,
        "torn": movie.torn,
        "written": [str(target)],
    }
    if as_json:
        print(json.dumps(summary))
        return
    followed = (
        "" if frames < 2 else f"; {summary['kept']:.0%} of a frame's pixels belong to one that the frame before had"
    )
    print(
        f"{frames} frames of {movie.info.size[1]}x{movie.info.size[0]} pixels, {seen} prototypes of layer "
        f"{summary['layer']} in all{followed}; {frames / seconds:.2f} frames a second; wrote {target}"
    )
