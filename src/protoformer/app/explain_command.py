"""`protoformer explain`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from protoformer.app.arguments import DeviceOption, UpdatesOption
from protoformer.app.clips import is_clip
from protoformer.app.explain_clip import ExplainClipOptions, explain_clip
from protoformer.app.progress import progress_bar
from protoformer.errors import InputError
from protoformer.files import checked_output
from protoformer.files.folders import made_folder
from protoformer.files.movie_kinds import SUFFIXES
from protoformer.inference import load
from protoformer.inference.explanation import Explanation
from protoformer.inference.images import as_image
from protoformer.inference.prototype_video import checked_layer
from protoformer.model.flow_decoder import Progress
from protoformer.show.explanation_page import save_explanation

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
        raise InputError(f"{len(sources)} images cannot be explained together; give one, two, or a clip.")
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
    folder = Path("explained") if output is None else output
    if folder.suffix.lower() in SUFFIXES:
        raise InputError(f"{folder} is a video's name, and images become a folder of files; give a folder.")
    images = [as_image(source, source) for source in sources]  # what is cheap to refuse comes first
    loaded = load(*named, task=task)
    checked_layer(loaded.network.config, layer)
    checked_output(made_folder(folder) / "index.html")
    usual = loaded.network.config.updates if task == "flow" else loaded.network.config.depth_updates
    with progress_bar("explaining", total=updates or usual) as told:
        explanation = _explained(images, task, loaded, updates, told)
        written = save_explanation(folder, explanation, layer=layer, prototypes=tuple(prototype or ()))
    _tell(explanation, layer, written, as_json)


def _explained(images: list[Tensor], task: str, loaded: Any, updates: int | None, told: Progress) -> Explanation:
    if task == "depth":
        result = loaded.depth(images[0], updates=updates, progress=told)
    else:
        result = loaded.flow(*images, updates=updates, tile="auto", progress=told) if len(images) > 1 else None
    explained: Explanation = loaded.explain(*images, result=result)
    return explained


def _tell(explanation: Explanation, layer: str | None, written: list[Path], as_json: bool) -> None:
    shown = explanation.first.layer(layer)
    summary = {
        "task": explanation.task,
        "width": shown.size[1],
        "height": shown.size[0],
        "layers": [each.name for each in explanation.first.layers] if layer is None else [layer],
        "prototypes": shown.count,
        "with_pixels": len(shown.used),
        "matched": len(explanation.matches(layer)) if explanation.second else None,
        "trained": explanation.trained,
        "written": [str(path) for path in written],
    }
    if as_json:
        print(json.dumps(summary))
        return
    matched = "" if summary["matched"] is None else f", {summary['matched']} of them matched in the second image"
    print(
        f"{shown.size[1]}x{shown.size[0]} pixels; {summary['with_pixels']} of {shown.count} prototypes of layer "
        f"{shown.name} have pixels{matched}; wrote {len(written)} files: open {written[0]} in a browser"
    )
