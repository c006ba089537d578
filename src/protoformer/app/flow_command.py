"""`protoformer flow`."""

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
from protoformer.app.flow_clip import ClipOptions, flow_of_clip, refuse_clip_options
from protoformer.app.flow_pair import PairOptions, flow_of_pair
from protoformer.errors import InputError

First = Annotated[
    str, typer.Argument(help="The first image; or a clip: a video, a folder of frames or a quoted pattern.")
]
Second = Annotated[str | None, typer.Argument(help="The second image, of the same size; none for a clip.")]
OutputOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="Where to write: .flo, or .png (a picture), repeated for several; of a clip .mp4, .mov, .mkv, .webm, "
        ".avi or .gif. [default: motion.png, motion.mp4]",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option(help="flo, kitti (16-bit png) or picture (colours); by default the suffix decides.")
]
MemoryOption = Annotated[
    str | None, typer.Option(help="What may be used, such as 4GB. [default: most of what is free]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a summary for programs.")]
SideBySideOption = Annotated[bool, typer.Option("--side-by-side", help="Clip: the frame beside its motion.")]
ArrowsOption = Annotated[bool, typer.Option("--arrows", help="Clip: the frame with arrows on it.")]
SaveFloOption = Annotated[
    Path | None, typer.Option(help="Clip: a folder for a .flo file of every pair, by the first frame's number.")
]
StartOption = Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")]
EndOption = Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")]
EveryOption = Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")]
RateOption = Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        help="Clip: pixels at which colours are full and arrows long. [default: by a first look at a few pairs]"
    ),
]
WarmStartOption = Annotated[bool, typer.Option("--warm-start", help="Clip: begin each pair with the motion before it.")]
ClipPrecisionOption = Annotated[
    str | None, typer.Option(help="Clip: full, half (bfloat16) or auto (half where it is fast). [default: auto]")
]


def flow(
    first: First,
    second: Second = None,
    output: OutputOption = None,
    format: FormatOption = None,
    model: ModelOption = "flow",
    updates: UpdatesOption = None,
    device: DeviceOption = None,
    tile: TileOption = "auto",
    memory: MemoryOption = None,
    zoom: ZoomOption = "auto",
    as_json: JsonOption = False,
    side_by_side: SideBySideOption = False,
    arrows: ArrowsOption = False,
    save_flo: SaveFloOption = None,
    start: StartOption = None,
    end: EndOption = None,
    every: EveryOption = None,
    rate: RateOption = None,
    scale: ScaleOption = None,
    warm_start: WarmStartOption = False,
    precision: ClipPrecisionOption = None,
) -> None:
    """Motion of every pixel from one image to the next, for two images or all of a clip.

    Example: `protoformer flow frame1.png frame2.png -o motion.flo -o motion.png`

    Example: `protoformer flow clip.mp4 -o motion.mp4 --side-by-side`
    """
    pair = PairOptions(
        format=format, updates=updates, tile=tile_choice(tile), memory=byte_count(memory), zoom=zoom_choice(zoom)
    )
    clip = ClipOptions(
        side_by_side=side_by_side,
        arrows=arrows,
        save_flo=save_flo,
        start=start,
        end=end,
        every=every,
        rate=rate,
        scale=scale,
        warm_start=warm_start,
        precision=precision,
        updates=pair.updates,
        tile=pair.tile,
        memory=pair.memory,
        zoom=pair.zoom,
    )
    if second is not None:
        refuse_clip_options(clip)
        flow_of_pair((first, second), output or [Path("motion.png")], (model, device), pair, as_json)
        return
    if not is_clip(first):
        raise InputError(f"{first} is one image, in which nothing moves; give a second one, or a clip.")
    if format is not None:
        raise InputError("--format is for two images; leave it out for a clip.")
    flow_of_clip(first, output or [], (model, device), clip, as_json)
