"""`protoformer explain` of a clip: a video in, a video in the colours of its prototypes out."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from protoformer.app.clips import (
    expected_frames,
    one_video,
    opened_clip,
    tell_damage,
    tell_interrupted,
    what_is_kept,
)
from protoformer.app.followed_words import followed_words
from protoformer.app.progress import frames_bar
from protoformer.app.stopping import stoppable
from protoformer.files import Movie, MovieWriter
from protoformer.inference import load
from protoformer.inference.prototype_groups import FAMILIES
from protoformer.inference.prototype_video import FollowedTally, PrototypeVideo
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
    began = time.perf_counter()
    tally = _written(video, writer, expected_frames(movie, options.start, options.end, every))
    tell_damage(movie)
    _tell(movie, tally, "{}.{}".format(*video.layer), time.perf_counter() - began, target, as_json)


def _written(video: PrototypeVideo, writer: MovieWriter, expected: int | None) -> FollowedTally:
    """Write every frame; returns what was followed. expected: frames, as far as one can tell."""
    tally = FollowedTally()

    def tell() -> None:
        tell_interrupted(f"{tally.frames} frames", what_is_kept(writer, None))

    with stoppable(tell), frames_bar("explaining", expected) as told, writer:
        for step in video:
            writer.write(prototype_frame(step), step.time)
            tally.add(step)
            told(tally.frames)
    return tally


def _tell(movie: Movie, tally: FollowedTally, layer: str, seconds: float, target: Path, as_json: bool) -> None:
    summary = {
        "frames": tally.frames,
        "width": movie.info.size[1],
        "height": movie.info.size[0],
        "layer": layer,
        "prototypes": tally.prototypes,
        "kept": None if tally.kept is None else round(tally.kept, 4),
        "seconds": round(seconds, 3),
        "skipped": movie.skipped,
        "torn": movie.torn,
        "written": [str(target)],
    }
    if as_json:
        print(json.dumps(summary))
        return
    print(
        f"{tally.frames} frames of {movie.info.size[1]}x{movie.info.size[0]} pixels, {tally.prototypes} prototypes of "
        f"layer {layer} in all{followed_words(tally)}; {tally.frames / seconds:.2f} frames a second; wrote {target}"
    )
