"""Command line options that several commands share, and parsers of their values."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from protoformer.depth.result import DepthRange
from protoformer.errors import InputError
from protoformer.flow.tiling import MAX_ZOOM, MIN_OVERLAP, MIN_ZOOM, TileSize
from protoformer.io.files import MAX_PIXELS
from protoformer.io.memory import parse_bytes

ModelOption = Annotated[str, typer.Option(help="A task, a preset or a .safetensors file; see `protoformer models`.")]
UpdatesOption = Annotated[
    int | None, typer.Option("--num-updates", help="Number of refinement updates; more are slower and more accurate.")
]
MIRROR_HELP = "Average with a horizontally flipped prediction: more accurate, twice as slow."
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or mps. [default: cuda if there is such a GPU]")]
TileOption = Annotated[
    str,
    typer.Option(help="Tile size: auto (tiles only if the whole image exceeds the memory), HEIGHTxWIDTH, or none."),
]
ZoomOption = Annotated[
    str, typer.Option(help="Factor by which images are resized for inference: auto (enlarges small ones), or a number.")
]
MemoryOption = Annotated[str | None, typer.Option(help="Memory limit, such as 4GB. [default: most of the free memory]")]
PRECISION_HELP = "full (float32), half (bfloat16) or auto (half where it is fast)."
PrecisionOption = Annotated[str | None, typer.Option(help=f"{PRECISION_HELP} [default: auto]")]
FocalOption = Annotated[float | None, typer.Option(help="Focal length of the camera, pixels.")]
FovOption = Annotated[float | None, typer.Option(help="Horizontal field of view of the camera, degrees.")]
RangeOption = Annotated[
    str | None,
    typer.Option(help="indoor (0.1 to 10 m), driving (1 to 80 m) or NEAR,FAR. [default: the network's range]"),
]
StartOption = Annotated[float | None, typer.Option(help="Video: start of the span, seconds.")]
EndOption = Annotated[float | None, typer.Option(help="Video: end of the span, seconds.")]
FrameStepOption = Annotated[int | None, typer.Option(help="Video: use every n-th frame. [default: 1]")]
FpsOption = Annotated[float | None, typer.Option(help="Image sequence: frames per second. [default: 25]")]
DropOption = Annotated[
    bool | None,
    typer.Option(
        help="Live: skip frames if processing is slower than the source. [default: drop, unless it declares its length]"
    ),
]
TimeoutOption = Annotated[float | None, typer.Option(help="Live: seconds to wait for a frame. [default: 10]")]
SideBySideOption = Annotated[
    bool, typer.Option("--side-by-side", help="Video: draw the input frame to the left of the result.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON summary.")]
DatasetOption = Annotated[str, typer.Option(help="Name of the dataset; see `protoformer datasets list`.")]
RootOption = Annotated[Path, typer.Option(help="Folder of the dataset, in its official layout.")]
SplitOption = Annotated[str | None, typer.Option(help="train, val, test, ... [default: the one usually evaluated]")]
DatasetOptions = Annotated[
    list[str] | None, typer.Option(help="An option of the dataset, as key=value. Repeat for several.")
]
ScoresFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for samples.csv, scores.json and images of the worst samples."),
]
WorstOption = Annotated[int, typer.Option(help="Number of worst samples to draw.", min=0)]

LIVE_HELP = "or live: the number of a camera, an address (rtsp, http, udp, tcp), or - for a pipe"
CLIP_HELP = f"A video, a folder of frames or a quoted pattern of their names; {LIVE_HELP}."
VIDEO_SUFFIXES = ".mp4, .mov, .mkv, .webm, .avi or .gif"


def reject_options(purpose: str, given_for: str, **options: Any) -> None:
    """Raise `InputError` for the first option that has a value.

    Args:
        purpose: What the options are for.
        given_for: What the command was called with.
        options: Values by the names of the options; None and False stand for options that were not given.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise InputError(f"--{name.replace('_', '-')} is for {purpose}; leave it out for {given_for}.")


def parse_key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Parse options of a dataset, each key=value."""
    split = [pair.partition("=") for pair in pairs or []]
    for name, equals, value in split:
        if not (name and equals):
            raise InputError(f"an option of a dataset is key=value, not {name + equals + value!r}; write it like that.")
    return {name: value for name, _, value in split}


def check_dataset_task(dataset: str, task: str) -> None:
    """Raise `InputError` for a dataset of another task; unknown datasets are rejected by `open_dataset`."""
    from protoformer.datasets.registry import DATASETS  # other commands do without the datasets

    if dataset in DATASETS and DATASETS[dataset].task != task:
        names = ", ".join(each.name for each in DATASETS.values() if each.task == task)
        raise InputError(f"{dataset} is a dataset of {DATASETS[dataset].task}, not of {task}; choose one of {names}.")


def parse_near_far(text: str | None, option: str) -> tuple[float, float] | None:
    """Parse NEAR,FAR in meters, the value of an option; None stays None."""
    if text is None:
        return None
    try:
        near, far = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} is {text!r}, but it takes NEAR,FAR in meters; write it such as 0.5,20.") from None
    return near, far


def parse_depth_range(text: str | None) -> DepthRange:
    """Parse a depth range, a name or NEAR,FAR."""
    return parse_near_far(text, "--range") if text is not None and "," in text else text


def parse_memory(text: str | None) -> int | None:
    """Parse an amount of memory to bytes; None stays None."""
    return None if text is None else parse_bytes(text)


def _parse_sides(text: str) -> tuple[int, int] | None:
    """Parse HEIGHTxWIDTH; None if the text is something else."""
    sides = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    return None if sides is None else (int(sides[1]), int(sides[2]))


Tile = TypeVar("Tile")
TILES: dict[str, TileSize] = {"auto": "auto", "none": None}
"""Tile sizes by name."""


def parse_tile(text: str, names: Mapping[str, Tile]) -> Tile | tuple[int, int]:
    """Parse a tile size: one of the names, or HEIGHTxWIDTH."""
    if text in names:
        return names[text]
    sides = _parse_sides(text)
    if sides is None or min(sides) <= MIN_OVERLAP:
        raise InputError(
            f"a tile is {', '.join(names)} or HEIGHTxWIDTH with sides over {MIN_OVERLAP} pixels, such as 432x960, "
            f"not {text!r}; give one of these."
        )
    return sides


def parse_size(text: str) -> tuple[int, int]:
    """Parse HEIGHTxWIDTH in pixels."""
    sides = _parse_sides(text)
    if sides is None:
        raise InputError(f"--size is {text!r}, but a size is HEIGHTxWIDTH in pixels; write it such as 436x1024.")
    if sides[0] * sides[1] > MAX_PIXELS:
        raise InputError(f"--size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")
    return sides


def parse_box(text: str) -> list[float]:
    """Parse a box X,Y,W,H; its values are checked with the first frame."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != 4:
        raise InputError(
            f"a box is X,Y,W,H, four numbers of pixels such as 51,47,25,62, not {text!r}; write it like that."
        )
    return numbers


def parse_zoom(text: str) -> float | None:
    """Parse a zoom: a number, or auto, which is None."""
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"a zoom is auto or a number from {MIN_ZOOM:g} to {MAX_ZOOM:g}, not {text!r}; give one of these."
        ) from None


def parse_crop(text: str) -> float | str:
    """Parse a crop of stabilized videos: a number, auto or none; `StabilizeOptions` checks it."""
    try:
        return float(text)
    except ValueError:
        return text
