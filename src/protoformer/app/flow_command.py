"""`protoformer flow`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import (
    DeviceOption,
    ModelOption,
    TileOption,
    UpdatesOption,
    ZoomOption,
    byte_count,
    tile_choice,
    zoom_choice,
)
from protoformer.app.clips import is_clip
from protoformer.app.flow_clip import ClipOptions, flow_of_clip
from protoformer.app.progress import progress_bar
from protoformer.errors import InputError
from protoformer.files import checked_input, checked_output
from protoformer.inference import load
from protoformer.inference.images import image_pair
from protoformer.inference.planning import Tile, plan_flow, seen_size
from protoformer.inference.results import flow_format


def flow(
    first: Annotated[
        str, typer.Argument(help="The first image; or a clip: a video, a folder of frames or a quoted pattern.")
    ],
    second: Annotated[str | None, typer.Argument(help="The second image, of the same size; none for a clip.")] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: .flo, or .png (a picture), repeated for several; of a clip .mp4, .mov, .mkv, .webm, "
            ".avi or .gif. [default: motion.png, motion.mp4]",
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="flo, kitti (16-bit png) or picture (colours); by default the suffix decides.")
    ] = None,
    model: ModelOption = "flow",
    updates: UpdatesOption = None,
    device: DeviceOption = None,
    tile: TileOption = "auto",
    memory: Annotated[
        str | None, typer.Option(help="What may be used, such as 4GB. [default: most of what is free]")
    ] = None,
    zoom: ZoomOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="Clip: the frame beside its motion.")] = False,
    arrows: Annotated[bool, typer.Option("--arrows", help="Clip: the frame with arrows on it.")] = False,
    save_flo: Annotated[
        Path | None, typer.Option(help="Clip: a folder for a .flo file of every pair, by the first frame's number.")
    ] = None,
    start: Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")] = None,
    every: Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")] = None,
    rate: Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Clip: pixels at which colours are full and arrows long. [default: by a first look at a few pairs]"
        ),
    ] = None,
    warm_start: Annotated[
        bool, typer.Option("--warm-start", help="Clip: begin each pair with the motion before it.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="Clip: full, half (bfloat16) or auto (half where it is fast). [default: auto]")
    ] = None,
) -> None:
    """Motion of every pixel from one image to the next, for two images or all of a clip.

    Example: `protoformer flow frame1.png frame2.png -o motion.flo -o motion.png`

    Example: `protoformer flow clip.mp4 -o motion.mp4 --side-by-side`
    """
    chosen, budget, enlarging = tile_choice(tile), byte_count(memory), zoom_choice(zoom)
    if second is None:
        if not is_clip(first):
            raise InputError(f"{first} is one image, in which nothing moves; give a second one, or a clip.")
        if format is not None:
            raise InputError("--format is for two images; leave it out for a clip.")
        flow_of_clip(
            first,
            output or [],
            (model, device),
            ClipOptions(
                *(side_by_side, arrows, save_flo, start, end, every, rate, scale, warm_start, precision, updates),
                *(chosen, enlarging),
            ),
            budget,
            as_json,
        )
        return
    given = {
        **{"--side-by-side": side_by_side, "--arrows": arrows, "--save-flo": save_flo, "--start": start, "--end": end},
        **{"--every": every, "--rate": rate, "--scale": scale, "--warm-start": warm_start, "--precision": precision},
    }
    for option, value in given.items():
        if value is not None and value is not False:
            raise InputError(f"{option} is for a clip; leave it out for two images.")
    outputs = output or [Path("motion.png")]
    _flow_of_images(first, second, outputs, format, model, updates, device, chosen, budget, enlarging, as_json)


def _flow_of_images(
    first: str,
    second: str,
    outputs: list[Path],
    format: str | None,
    model: str,
    updates: int | None,
    device: str | None,
    tile: Tile,
    memory: int | None,
    zoom: float | None,
    as_json: bool,
) -> None:
    for path in outputs:  # all of this is cheap, and estimating flow is not
        flow_format(path, format)
        checked_output(path)
    for image in (first, second):
        source = checked_input(image)
        if any(path.exists() and path.samefile(source) for path in outputs):
            raise InputError(f"the output {image} is also an input and would be lost; choose another name.")
    images = image_pair(first, second)
    loaded = load(model, device, task="flow")
    size = (images[0].shape[2], images[0].shape[3])
    config = loaded.network.config
    plan = plan_flow(size, config, loaded.device, tile, memory, seen=seen_size(size, config, zoom))
    with progress_bar("flow", total=updates or config.updates) as told:
        result = loaded.flow(*images, updates=updates, tile=tile, memory=memory, zoom=zoom, progress=told)
    for path in outputs:
        result.save(path, format)
    lengths = result.flow.norm(dim=0)
    summary = {
        "width": result.flow.shape[2],
        "height": result.flow.shape[1],
        "mean_motion_px": round(float(lengths.mean()), 4),
        "largest_motion_px": round(float(lengths.max()), 4),
        "mean_confidence": round(float(result.confidence.mean()), 4),
        "tile": plan.tile,
        "zoom": round(plan.zoom, 4),
        "trained": result.trained,
        "written": [str(path) for path in outputs],
    }
    if as_json:
        print(json.dumps(summary))
    else:
        how = f" {plan};" if plan.tile or plan.seen else ""
        print(
            f"{summary['width']}x{summary['height']} pixels, mean motion {summary['mean_motion_px']:.2f} px, "
            f"largest {summary['largest_motion_px']:.2f} px;{how} wrote {', '.join(map(str, outputs))}"
        )
