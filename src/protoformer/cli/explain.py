"""`protoformer explain`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from protoformer.cli.clips import (
    PATTERN_ADVICE,
    estimate_frame_count,
    is_clip,
    make_video_writer,
    open_clip,
    print_summary,
    report_interruption,
    run_with_bar,
)
from protoformer.cli.options import (
    LIVE_HELP,
    VIDEO_SUFFIXES,
    DeviceOption,
    DropOption,
    EndOption,
    FpsOption,
    FrameStepOption,
    JsonOption,
    StartOption,
    TimeoutOption,
    UpdatesOption,
    reject_options,
)
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.errors import InputError
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.page import save_explanation
from protoformer.explain.result import NUM_REMOVED
from protoformer.explain.video import TrackingRate, check_layer, describe_tracking_rate
from protoformer.flow.engine import check_num_updates
from protoformer.io.files import check_output, make_folder
from protoformer.io.image_input import as_image
from protoformer.loading import load
from protoformer.video.encoding import SUFFIXES
from protoformer.video.image_sequence import IMAGE_SUFFIXES
from protoformer.video.types import Video
from protoformer.viz.report import format_count


def explain_video(
    video: Video, output: Path | None, model: tuple[str, str | None], options: dict[str, Any], as_json: bool
) -> None:
    """Write a video whose pixels have the colors of their prototypes.

    Args:
        video: The input.
        output: The video to write.
        model: Name of the model and device.
        options: Arguments of `FlowPredictor.explain_video`.
        as_json: Whether the summary is JSON.
    """
    target = Path("explained.mp4") if output is None else output
    writer = make_video_writer([target], None, video, options["frame_step"])
    results = load(*model, task="flow").explain_video(video, **options)
    rate = TrackingRate()
    with report_interruption("frame", video):
        outcome = run_with_bar(
            "explaining",
            estimate_frame_count(video, options["start"], options["end"], options["frame_step"]),
            results,
            draw_prototype_frame,
            writer,
            on_result=lambda result, _: rate.add(result),
        )
    layer = "{}.{}".format(*results.layer)
    summary = {
        "frames": rate.num_frames,
        "layer": layer,
        "prototypes": rate.num_prototypes,
        "kept": None if rate.kept is None else round(rate.kept, 4),
    }
    text = (
        f"{format_count(rate.num_frames, 'frame')} of {video.info.size[1]}x{video.info.size[0]} pixels, "
        f"{rate.num_prototypes} prototypes of layer {layer} in all{describe_tracking_rate(rate)}"
    )
    print_summary(video, outcome, [target], as_json, summary, text)


MAX_REMOVED = 1000
"""Largest number of prototypes that are removed from a layer; each takes as long as an estimate."""
_FILE_SUFFIXES = SUFFIXES | IMAGE_SUFFIXES | {".html", ".json"}
"""Suffixes that a folder does not have."""


def explain_images(
    sources: list[str],
    output: Path | None,
    model: tuple[str, str | None],
    task: str,
    layer: str | None,
    prototypes: tuple[int, ...],
    removals: int,
    num_updates: int | None,
    as_json: bool,
) -> None:
    """Write the prototypes of one image or two.

    Args:
        sources: The images.
        output: The folder to write to.
        model: Name of the model and device.
        task: "flow" or "depth".
        layer: The layer to explain; None: all.
        prototypes: Prototypes whose soft membership is drawn.
        removals: Number of prototypes that are removed from each layer.
        num_updates: Number of refinement updates.
        as_json: Whether the summary is JSON.
    """
    if num_updates is not None and task == "flow" and len(sources) < 2:
        raise InputError("--num-updates is for flow, which one image does not have; leave it out or give two images.")
    folder = Path("explained") if output is None else output
    if folder.suffix.lower() in _FILE_SUFFIXES and not folder.is_dir():
        raise InputError(
            f"{folder} is the name of a file, but images are explained in a folder; give one, such as {folder.stem}."
        )
    images = [as_image(source, source) for source in sources]  # errors in the images come before loading the model
    predictor = load(*model, task=task)
    config = predictor.network.config
    check_layer(config, layer)
    check_output(make_folder(folder) / "index.html")
    default_updates = config.flow.num_updates if task == "flow" else config.depth.num_updates
    with progress_bar("estimating", total=num_updates or default_updates) as progress:
        explanation = predictor.explain(*images, num_updates=num_updates, progress=progress)
    with progress_bar("explaining", total=2 * len(explanation.first.layers)) as progress:
        written = save_explanation(
            folder, explanation, layer=layer, prototypes=prototypes, removals=removals, progress=progress
        )
    shown, parts = explanation.first.layer(layer), explanation.parts(layer)
    num_matched = len(explanation.matches(layer)) if explanation.second else None
    if as_json:
        summary = {
            "task": explanation.task,
            "width": shown.size[1],
            "height": shown.size[0],
            "layers": [each.name for each in explanation.first.layers] if layer is None else [layer],
            "prototypes": shown.num_prototypes,
            "with_pixels": len(shown.used),
            "matched": num_matched,
            "parts": None if parts is None else len(parts.parts),
            "trained": explanation.trained,
            "written": written,
        }
        print_json(summary)
        return
    matched = "" if num_matched is None else f", {num_matched} of them matched in the second image"
    moving = "" if parts is None else f"; {format_count(len(parts.parts), 'moving part')}"
    print(
        f"{shown.size[1]}x{shown.size[0]} pixels; {len(shown.used)} of {shown.num_prototypes} prototypes of layer "
        f"{shown.name} have pixels{matched}{moving}; wrote {len(written)} files: open {written[0]} in a browser"
    )


TASKS = ("flow", "depth")


def explain(
    sources: Annotated[
        list[str],
        typer.Argument(
            help=f"One or two images; or a video, a folder of frames, a quoted pattern of their names; {LIVE_HELP}."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"For images: a folder. For a video: {VIDEO_SUFFIXES}. [default: explained, explained.mp4]",
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="Task whose network is explained: flow or depth.")] = "flow",
    layer: Annotated[
        str | None,
        typer.Option(help="A single layer, STAGE.BLOCK such as 2.1. [default: all for images, the last for a video]"),
    ] = None,
    prototype: Annotated[
        list[int] | None,
        typer.Option(help="Images: also write the soft membership of this prototype as a png. Repeat for several."),
    ] = None,
    removals: Annotated[
        int | None,
        typer.Option(
            help="Images: remove this many of the largest prototypes of each layer, one at a time, and report where "
            f"the flow or depth changes. [default: {NUM_REMOVED}]",
            min=0,
            max=MAX_REMOVED,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A preset or a .safetensors file. [default: the task's]"),
    ] = None,
    num_updates: UpdatesOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    families: Annotated[
        int | None,
        typer.Option(
            help="Video: number of colors, one per family of similar prototypes; 0: one per prototype. [default: 0]",
            min=0,
        ),
    ] = None,
    start: StartOption = None,
    end: EndOption = None,
    frame_step: FrameStepOption = None,
    fps: FpsOption = None,
    drop: DropOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Show the prototypes of images or a video, on an interactive page or as a video.

    Example: `protoformer explain frame1.png frame2.png -o explained`

    Example: `protoformer explain room.jpg --task depth -o explained --layer 2.1 --removals 10`

    Example: `protoformer explain clip.mp4 -o groups.mp4 --layer 1.2`
    """
    if task not in TASKS:
        raise InputError(f"the task {task!r} cannot be explained; choose one of {', '.join(TASKS)}.")
    if len(sources) > 2:
        raise InputError(
            f"{len(sources)} images cannot be explained together; give one or two, or a video: {PATTERN_ADVICE}."
        )
    check_num_updates(num_updates)
    named = (model or task, device)
    if len(sources) == 1 and is_clip(sources[0]):
        reject_options("images", "a video", prototype=prototype or None, removals=removals)
        if task != "flow":
            raise InputError(f"--task {task} is for images; leave it out for a video.")
        options = {
            **{"layer": layer, "families": families or None},
            **{"start": start, "end": end, "frame_step": 1 if frame_step is None else frame_step},
            "num_updates": num_updates,
        }
        explain_video(open_clip(sources[0], fps, drop, timeout), output, named, options, as_json)
        return
    span = {"start": start, "end": end, "frame_step": frame_step, "fps": fps}
    reject_options("videos", "images", families=families, **span, drop=drop is not None, timeout=timeout)
    removals = NUM_REMOVED if removals is None else removals
    explain_images(sources, output, named, task, layer, tuple(prototype or ()), removals, num_updates, as_json)
