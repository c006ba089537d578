"""`protoformer depth`."""

from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import (
    DeviceOption,
    MirrorOption,
    ModelOption,
    UpdatesOption,
    depth_range,
    near_and_far,
)
from protoformer.app.clips import is_clip
from protoformer.app.depth_clip import DepthClipOptions, depth_of_clip
from protoformer.app.depth_images import DepthImageOptions, depth_of_images
from protoformer.errors import InputError
from protoformer.inference.cameras import CameraHint
from protoformer.inference.depth_range import checked_range


def depth(
    sources: Annotated[
        list[str],
        typer.Argument(help="Images; or one clip: a video, a folder of frames or a quoted pattern of their names."),
    ],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: of an image .png, .npy (metres) or .ply (points), repeated for several; of several "
            "images a folder; of a clip .mp4, .mov, .mkv, .webm, .avi or .gif. [default: depth.png, depth, depth.mp4]",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Images: what a .png holds, picture (colours), mm (16-bit) or kitti (16-bit, 1/256 m)."),
    ] = None,
    focal: Annotated[float | None, typer.Option(help="The camera's focal length, pixels of these images.")] = None,
    fov: Annotated[float | None, typer.Option(help="Its field of view across the width, degrees.")] = None,
    range: Annotated[
        str | None, typer.Option(help="indoor (0.1 to 10 m), driving (1 to 80 m) or NEAR,FAR. [default: the network's]")
    ] = None,
    colours: Annotated[
        str | None, typer.Option(help="NEAR,FAR: metres of the first and the last colour. [default: by what is seen]")
    ] = None,
    ply: Annotated[bool, typer.Option("--ply", help="Images: the points as well, a .ply beside each output.")] = False,
    save_npy: Annotated[Path | None, typer.Option(help="A folder for a .npy of every frame or image.")] = None,
    model: ModelOption = "depth",
    updates: UpdatesOption = None,
    mirror: MirrorOption = None,
    device: DeviceOption = None,
    precision: Annotated[
        str, typer.Option(help="full (float32), half (bfloat16) or auto (half where it is fast).")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="Clip: the frame beside its depth.")] = False,
    frame_by_frame: Annotated[
        bool, typer.Option("--frame-by-frame", help="Clip: each frame by itself; it flickers, and nothing lags.")
    ] = False,
    start: Annotated[float | None, typer.Option(help="Clip: seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Clip: seconds before which to end.")] = None,
    every: Annotated[int | None, typer.Option(help="Clip: take one frame in so many.")] = None,
    rate: Annotated[float | None, typer.Option(help="Clip of images: frames a second. [default: 25]")] = None,
) -> None:
    """How far away everything is, in metres, for images or all of a clip.

    Example: `protoformer depth room.jpg -o depth.png -o depth.npy -o room.ply --range indoor`

    Example: `protoformer depth clip.mp4 -o depth.mp4 --side-by-side --fov 70`
    """
    camera, bounds = CameraHint(focal=focal, fov=fov), checked_range(depth_range(range))
    scale = checked_range(near_and_far(colours, "--colours"))
    if len(sources) == 1 and is_clip(sources[0]):
        if format is not None or ply:
            raise InputError(f"{'--ply' if ply else '--format'} is for images; leave it out for a clip.")
        depth_of_clip(
            sources[0],
            output or [],
            (model, device),
            DepthClipOptions(
                *(side_by_side, frame_by_frame, save_npy, start, end, every, rate),
                *(scale, camera, bounds, precision, updates, bool(mirror)),
            ),
            as_json,
        )
        return
    given = {
        **{"--side-by-side": side_by_side, "--frame-by-frame": frame_by_frame, "--start": start, "--end": end},
        **{"--every": every, "--rate": rate},
    }
    for option, value in given.items():
        if value is not None and value is not False:
            raise InputError(f"{option} is for a clip; leave it out for images.")
    options = DepthImageOptions(
        *(format, ply, save_npy, scale, camera, bounds, precision, updates), mirrored=mirror is not False
    )
    depth_of_images(sources, output or [], (model, device), options, as_json)
