"""`protoformer stabilize`."""

from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import DeviceOption, ModelOption, PrecisionOption
from protoformer.app.stabilize_clip import ClipChoice, crop_choice, stabilize_clip
from protoformer.app.stabilize_models import MODEL, live_regressor
from protoformer.inference.stabilize import StabilizeOptions


def stabilize(
    source: Annotated[str, typer.Argument(help="A video, a folder of frames or a quoted pattern of their names.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The steady clip: .mp4, .mov, .mkv, .webm, .avi or .gif.")
    ] = Path("stable.mp4"),
    path_page: Annotated[
        Path | None, typer.Option("--path", help="The camera's path, before and after, as html. [default: beside it]")
    ] = None,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="The shaky clip to the left of it.")] = False,
    strength: Annotated[float, typer.Option(help="0 changes nothing, 1 as much as the crop allows.")] = 1.0,
    crop: Annotated[
        str,
        typer.Option(
            help="auto (91 % of the sides or more; of a clip that shakes much, 84 %), none (black beside the "
            "frames, which move as within 96 %), or a share such as 0.9."
        ),
    ] = "auto",
    tripod: Annotated[bool, typer.Option("--tripod", help="As if the camera stood still, if it can be.")] = False,
    online: Annotated[
        int | None, typer.Option(help="Decide each frame when so many after it are known, as a live camera must.")
    ] = None,
    regressor: Annotated[
        str | None,
        typer.Option(
            help="field (sees both ways) or grid (the past). [default: the model's own; --online: grid if it has both]"
        ),
    ] = None,
    scores: Annotated[bool, typer.Option(help="Measure how steady the clip was and is, which takes time.")] = True,
    model: ModelOption = MODEL,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    start: Annotated[float | None, typer.Option(help="Seconds at which to begin.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds before which to end.")] = None,
    rate: Annotated[float | None, typer.Option(help="Of images: frames a second. [default: 25]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary for programs.")] = False,
) -> None:
    """Make a shaky clip steady; its sound, frame rate, times and size are kept.

    Example: `protoformer stabilize clip.mp4 -o stable.mp4 --side-by-side`

    Example: `protoformer stabilize clip.mp4 --crop 0.85 --tripod`
    """
    chosen = ClipChoice(
        output=output,
        page=output.with_suffix(".html") if path_page is None else path_page,
        side_by_side=side_by_side,
        scores=scores,
        start=start,
        end=end,
        rate=rate,
        model=model,
        regressor=live_regressor(model) if regressor is None and online is not None else regressor,
        device=device,
        precision=precision,
    )
    stabilize_clip(source, StabilizeOptions(strength, crop_choice(crop), tripod, online), chosen, as_json)
