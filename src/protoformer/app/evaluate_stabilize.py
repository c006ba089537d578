"""`protoformer evaluate stabilize`."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import DeviceOption, JsonScores, ModelOption
from protoformer.app.plain_json import plain_json
from protoformer.app.progress import frames_bar
from protoformer.app.score_files import print_scores, tell_written, write_scores
from protoformer.app.stabilize_clip import crop_choice
from protoformer.app.stabilize_models import MODEL, live_regressor, named_stabilizer
from protoformer.errors import InputError
from protoformer.files import Movie
from protoformer.files.folders import made_folder
from protoformer.files.movie import Picture
from protoformer.inference import StabilizeModel
from protoformer.inference.clip_frames import ClipFrame, ClipFrames, Span
from protoformer.inference.stabilize import StabilizeOptions
from protoformer.inference.stabilize_evaluation import (
    Method,
    as_it_is,
    clips_in,
    csv_of_stability,
    evaluate_stability,
)
from protoformer.inference.vidstab import by_vidstab, vidstab_missing
from protoformer.show.stabilize_evaluation import stability_tables

METHODS = ("input", "vid.stab", "field", "grid", "online")


def evaluate_stabilize_command(
    root: Annotated[Path, typer.Option(help="A folder of shaky clips, or one in DeepStab's layout.")],
    frames: Annotated[int | None, typer.Option(help="Take the first so many of every clip.", min=1)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(METHODS)}. Repeat to compare several. [default: all but online]"),
    ] = None,
    crop: Annotated[str, typer.Option(help="auto, none, or the share of the sides that is shown.")] = "auto",
    delay: Annotated[int, typer.Option(help="Of online: frames it may look ahead.")] = 15,
    model: ModelOption = MODEL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for clips.csv and scores.json.")
    ] = None,
    device: DeviceOption = None,
    as_json: JsonScores = False,
) -> None:
    """Cropping, distortion, stability and acceleration of clips made steady, beside what others make of them.

    Example: `protoformer evaluate stabilize --root shaky --frames 400`
    """
    chosen = list(dict.fromkeys(method or METHODS[:-1]))
    for each in chosen:
        if each not in METHODS:
            raise InputError(f"there is no method {each!r}; choose among {', '.join(METHODS)}.")
    clips = clips_in(root)
    options = StabilizeOptions(crop=crop_choice(crop))
    missing = vidstab_missing() if "vid.stab" in chosen else ""
    if missing:
        print(f"note: vid.stab is left out: {missing}", file=sys.stderr)
        chosen.remove("vid.stab")
    if not chosen:
        raise InputError("there is no method left to measure; give another --method.")
    if output is not None:
        made_folder(output)
    methods = {each: _method(each, options, delay, model, device) for each in chosen}
    with frames_bar(f"{', '.join(methods)} on {len(clips)} clips") as told:
        found = evaluate_stability(clips, methods, frames, told)
    written = [] if output is None else write_scores(output, "clips.csv", csv_of_stability(found), found)
    if as_json:
        print(json.dumps(plain_json(found), indent=1))
        return
    print_scores(*stability_tables(found))
    tell_written(written)


def _method(name: str, options: StabilizeOptions, delay: int, model: str, device: str | None) -> Method:
    if name == "input":
        return as_it_is
    if name == "vid.stab":
        return by_vidstab
    regressor = live_regressor(model) if name == "online" else name
    loaded = named_stabilizer(model, regressor, device)
    return _by(loaded, options.crop, delay if name == "online" else None)


def _by(model: StabilizeModel, crop: str | float, delay: int | None) -> Method:
    def steady(movie: Movie, frames: int | None) -> Iterator[tuple[Picture, Picture]]:
        end = _end(movie, frames)
        result = model.stabilize(movie, crop=crop, delay=delay, end=end)
        for _, before, after in model.frames(movie, result):
            yield before, after

    return steady


def _end(movie: Movie, frames: int | None) -> float | None:
    """The time of the first frame that is not taken; None if all are."""
    if frames is None:
        return None
    beyond: ClipFrame | None = next(islice(ClipFrames(movie, Span()), frames, None), None)
    return None if beyond is None else float(beyond.time)
