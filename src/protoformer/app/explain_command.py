"""`protoformer explain`."""

from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import DeviceOption, UpdatesOption
from protoformer.app.clip_command import QUOTE
from protoformer.app.clips import is_clip
from protoformer.app.explain_clip import ExplainClipOptions, explain_clip
from protoformer.app.explain_images import ExplainImagesOptions, explain_images
from protoformer.errors import InputError
from protoformer.inference.flow_windows import check_updates

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
            help="Clip: colours, one for each family of similar prototypes; 0: every prototype has its own. "
            "[default: 12]",
            min=0,
        ),
    ] = None,
    start: Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")] = None,
    every: Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")] = None,
    rate: Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")] = None,
) -> None:
    """What the network grouped: a page on which groups light up under the mouse, pictures, and numbers.

    Example: `protoformer explain frame1.png frame2.png -o explained`

    Example: `protoformer explain clip.mp4 -o groups.mp4 --layer 1.2`
    """
    if task not in TASKS:
        raise InputError(f"there is nothing to explain of {task!r}; choose one of {', '.join(TASKS)}.")
    if len(sources) > 2:
        raise InputError(f"{len(sources)} images cannot be explained together; give one or two, or a clip: {QUOTE}.")
    check_updates(updates)
    named = (model or task, device)
    if len(sources) == 1 and is_clip(sources[0]):
        if task != "flow" or prototype:
            given = "--prototype" if prototype else "--task depth"
            raise InputError(f"{given} is for images; leave it out for a clip.")
        options = ExplainClipOptions(layer, families, updates, start, end, every, rate)
        explain_clip(sources[0], output, named, options, as_json)
        return
    for_clips = {"--families": families, "--start": start, "--end": end, "--every": every, "--rate": rate}
    for option, value in for_clips.items():
        if value is not None:
            raise InputError(f"{option} is for a clip; leave it out for images.")
    explain_images(sources, output, named, ExplainImagesOptions(task, layer, tuple(prototype or ()), updates), as_json)
