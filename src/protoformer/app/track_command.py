"""`protoformer track`."""

from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import DeviceOption, ModelOption, PrecisionOption, box_numbers
from protoformer.app.track_clip import MethodChoice, TrackOptions, track_clip
from protoformer.app.track_methods import METHODS, MODEL


def track(
    source: Annotated[str, typer.Argument(help="A video, a folder of frames or a quoted pattern of their names.")],
    box: Annotated[
        list[str] | None,
        typer.Option(
            help="X,Y,W,H in the first frame taken, in pixels: column and row, counted from 0, of the top-left pixel "
            "of the box, its width and its height. Repeat for several targets."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The clip with boxes drawn: .mp4, .mov, .mkv, .webm, .avi or .gif. [default: track.mp4, unless --csv "
            "or --window is given]",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="A table: frame, time, target, x, y, w, h, score, lost, a row a frame a target.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "model",
    model: ModelOption = MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: Annotated[float | None, typer.Option(help="Seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds before which to end.")] = None,
    every: Annotated[int, typer.Option(help="Take one frame in so many.")] = 1,
    rate: Annotated[float | None, typer.Option(help="Of images: frames a second. [default: 25]")] = None,
    window: Annotated[bool, typer.Option("--window", help="Show it in a window as it goes; q closes it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Follow things through a clip from the boxes around them in its first frame.

    Example: `protoformer track clip.mp4 --box 51,47,25,62 -o track.mp4 --csv track.csv`

    Example: `protoformer track "frames/*.jpg" --box 51,47,25,62 --box 200,40,60,60 --method correlation`
    """
    boxes = [box_numbers(each) for each in box or []]
    track_clip(
        source,
        boxes,
        MethodChoice(method, model, device, precision),
        TrackOptions(output, csv, start, end, every, rate, window),
        as_json,
    )
