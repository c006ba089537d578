"""`protoformer explain`."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from protoformer.cli.clips import (
    QUOTE,
    expected_frame_count,
    is_clip,
    kept_output,
    open_clip,
    report_damage,
    report_interruption,
    single_video_output,
)
from protoformer.cli.options import DeviceOption, UpdatesOption
from protoformer.cli.terminal import frames_bar, progress_bar, stoppable
from protoformer.errors import InputError
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.groups import FAMILIES
from protoformer.explain.page import save_explanation
from protoformer.explain.result import Explanation
from protoformer.explain.video import PrototypeVideo, TrackingRate, check_layer, describe_tracking_rate
from protoformer.flow.engine import check_num_updates
from protoformer.io.files import check_output, make_folder
from protoformer.io.image_input import as_image
from protoformer.loading import load
from protoformer.video.encoding import SUFFIXES
from protoformer.video.image_sequence import IMAGE_SUFFIXES
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter
from protoformer.viz.text import format_count


@dataclass(frozen=True)
class ExplainClipOptions:
    """What was asked for on the command line; None where nothing was."""

    layer: str | None
    families: int | None
    updates: int | None
    start: float | None
    end: float | None
    frame_step: int | None
    fps: float | None


def explain_clip(
    source: str, output: Path | None, named: tuple[str, str | None], options: ExplainClipOptions, as_json: bool
) -> None:
    """Write a clip tinted by its prototypes. named: the model and the device, as given."""
    movie = open_clip(source, options.fps)
    target = single_video_output([] if output is None else [output], "explained.mp4", movie, None)
    assert target is not None
    frame_step = 1 if options.frame_step is None else options.frame_step
    writer = VideoWriter(target, movie, movie.info.fps / max(1, frame_step))
    video = load(*named, task="flow").explain_video(
        movie,
        layer=options.layer,
        families=FAMILIES if options.families is None else options.families or None,
        start=options.start,
        end=options.end,
        frame_step=frame_step,
        num_updates=options.updates,
    )
    began = time.perf_counter()
    tally = _written(video, writer, expected_frame_count(movie, options.start, options.end, frame_step))
    report_damage(movie)
    _tell_clip(movie, tally, "{}.{}".format(*video.layer), time.perf_counter() - began, target, as_json)


def _written(video: PrototypeVideo, writer: VideoWriter, expected: int | None) -> TrackingRate:
    """Write every frame; returns what was followed. expected: frames, as far as one can tell."""
    tally = TrackingRate()

    def tell() -> None:
        report_interruption(f"{tally.frames} frames", kept_output(writer, None))

    with stoppable(tell), frames_bar("explaining", expected) as told, writer:
        for step in video:
            writer.write(draw_prototype_frame(step), step.time)
            tally.add(step)
            told(tally.frames)
    return tally


def _tell_clip(movie: Video, tally: TrackingRate, layer: str, seconds: float, target: Path, as_json: bool) -> None:
    summary = {
        "frames": tally.frames,
        "width": movie.info.size[1],
        "height": movie.info.size[0],
        "layer": layer,
        "prototypes": tally.prototypes,
        "kept": None if tally.kept is None else round(tally.kept, 4),
        "seconds": round(seconds, 3),
        "skipped": movie.skipped,
        "truncated": movie.truncated,
        "written": [str(target)],
    }
    if as_json:
        print(json.dumps(summary))
        return
    print(
        f"{tally.frames} frames of {movie.info.size[1]}x{movie.info.size[0]} pixels, {tally.prototypes} prototypes of "
        f"layer {layer} in all{describe_tracking_rate(tally)}; "
        f"{tally.frames / seconds:.2f} frames a second; wrote {target}"
    )


_OF_FILES = SUFFIXES | IMAGE_SUFFIXES | {".html", ".json"}
"""How names end that nobody gives a folder."""


@dataclass(frozen=True)
class ExplainImagesOptions:
    """What was asked for on the command line; None where nothing was. prototypes: whose membership to draw."""

    task: str
    layer: str | None
    prototypes: tuple[int, ...]
    updates: int | None


def explain_images(
    sources: list[str],
    output: Path | None,
    named: tuple[str, str | None],
    options: ExplainImagesOptions,
    as_json: bool,
) -> None:
    """Write what was grouped in an image, or in two. named: the model and the device, as given."""
    if options.updates is not None and options.task == "flow" and len(sources) < 2:
        raise InputError("--updates refines a flow, and one image has none; leave it out or give a second image.")
    folder = Path("explained") if output is None else output
    if folder.suffix.lower() in _OF_FILES and not folder.is_dir():
        raise InputError(
            f"{folder} is the name of a file, and images become a folder of files; give one, such as {folder.stem}."
        )
    images = [as_image(source, source) for source in sources]  # what is cheap to refuse comes first
    loaded = load(*named, task=options.task)
    check_layer(loaded.network.config, options.layer)
    check_output(make_folder(folder) / "index.html")
    config = loaded.network.config
    usual = config.flow.num_updates if options.task == "flow" else config.depth.num_updates
    with progress_bar("estimating", total=options.updates or usual) as told:
        explanation = loaded.explain(*images, num_updates=options.updates, progress=told)
    with progress_bar("explaining", total=2 * len(explanation.first.layers)) as told:
        written = save_explanation(
            folder, explanation, layer=options.layer, prototypes=options.prototypes, progress=told
        )
    _tell_images(explanation, options.layer, written, as_json)


def _tell_images(explanation: Explanation, layer: str | None, written: list[Path], as_json: bool) -> None:
    shown = explanation.first.layer(layer)
    parts = explanation.parts(layer)
    summary = {
        "task": explanation.task,
        "width": shown.size[1],
        "height": shown.size[0],
        "layers": [each.name for each in explanation.first.layers] if layer is None else [layer],
        "prototypes": shown.num_prototypes,
        "with_pixels": len(shown.used),
        "matched": len(explanation.matches(layer)) if explanation.second else None,
        "parts": None if parts is None else len(parts.parts),
        "trained": explanation.trained,
        "written": [str(path) for path in written],
    }
    if as_json:
        print(json.dumps(summary))
        return
    matched = "" if summary["matched"] is None else f", {summary['matched']} of them matched in the second image"
    moving = "" if parts is None else f"; {format_count(len(parts.parts), 'moving part')}"
    print(
        f"{shown.size[1]}x{shown.size[0]} pixels; {summary['with_pixels']} of {shown.num_prototypes} prototypes of "
        f"layer {shown.name} have pixels{matched}{moving}; wrote {len(written)} files: open {written[0]} in a browser"
    )


TASKS = ("flow", "depth")


def explain(
    sources: Annotated[
        list[str],
        typer.Argument(help="An image, or two; or a clip: a video, a folder of frames or a quoted pattern."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Of images the folder to write to; of a clip .mp4, .mov, .mkv, .webm, .avi or .gif. "
            "[default: explained, explained.mp4]",
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="Whose network is explained: flow or depth.")] = "flow",
    layer: Annotated[
        str | None, typer.Option(help="One layer alone, STAGE.BLOCK such as 2.1. [default: all; of a clip the last]")
    ] = None,
    prototype: Annotated[
        list[int] | None,
        typer.Option(help="Images: write the soft membership of this one as a png, too. Repeat for several."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A preset or a .safetensors file. [default: the task's]"),
    ] = None,
    updates: UpdatesOption = None,
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
    families: Annotated[
        int | None,
        typer.Option(
            help="Clip: colors, one for each family of similar prototypes; 0: every prototype has its own. "
            "[default: 12]",
            min=0,
        ),
    ] = None,
    start: Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")] = None,
    frame_step: Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")] = None,
    fps: Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")] = None,
) -> None:
    """Show what prototypes stand for: an interactive page, images and numbers.

    Example: `protoformer explain frame1.png frame2.png -o explained`

    Example: `protoformer explain clip.mp4 -o groups.mp4 --layer 1.2`
    """
    if task not in TASKS:
        raise InputError(f"there is nothing to explain of {task!r}; choose one of {', '.join(TASKS)}.")
    if len(sources) > 2:
        raise InputError(f"{len(sources)} images cannot be explained together; give one or two, or a clip: {QUOTE}.")
    check_num_updates(updates)
    named = (model or task, device)
    if len(sources) == 1 and is_clip(sources[0]):
        if task != "flow" or prototype:
            given = "--prototype" if prototype else "--task depth"
            raise InputError(f"{given} is for images; leave it out for a clip.")
        options = ExplainClipOptions(layer, families, updates, start, end, frame_step, fps)
        explain_clip(sources[0], output, named, options, as_json)
        return
    for_clips = {"--families": families, "--start": start, "--end": end, "--frame-step": frame_step, "--fps": fps}
    for option, value in for_clips.items():
        if value is not None:
            raise InputError(f"{option} is for a clip; leave it out for images.")
    explain_images(sources, output, named, ExplainImagesOptions(task, layer, tuple(prototype or ()), updates), as_json)
