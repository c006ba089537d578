"""Command line options that several commands share, and parsers of their values."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from protoformer.datasets.registry import DATASETS
from protoformer.depth.result import DepthRange
from protoformer.errors import InputError
from protoformer.flow.tiling import LEAST_OVERLAP, LEAST_ZOOM, MOST_ZOOM, TileSize
from protoformer.io.files import MAX_PIXELS

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

ModelOption = Annotated[str, typer.Option(help="A task, a preset or a .safetensors file; see `protoformer models`.")]
UpdatesOption = Annotated[
    int | None, typer.Option("--num-updates", help="Number of refinement updates; more are slower and more accurate.")
]
MirrorOption = Annotated[
    bool | None,
    typer.Option(
        "--mirrored/--no-mirrored",
        help="Average with a horizontally flipped prediction: more accurate, twice as slow. "
        "[default: on for images, off for videos]",
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda if there is a GPU]")]
TileOption = Annotated[
    str,
    typer.Option(help="Tile size: auto (tiles only if the whole image exceeds the memory), HEIGHTxWIDTH, or none."),
]
ZoomOption = Annotated[
    str, typer.Option(help="Factor by which images are resized for inference: auto (enlarges small ones), or a number.")
]
MemoryOption = Annotated[str | None, typer.Option(help="Memory limit, such as 4GB. [default: most of the free memory]")]
PrecisionOption = Annotated[
    str | None, typer.Option(help="full (float32), half (bfloat16) or auto (half where it is fast). [default: auto]")
]
StartOption = Annotated[float | None, typer.Option(help="Video: start of the span, seconds.")]
EndOption = Annotated[float | None, typer.Option(help="Video: end of the span, seconds.")]
FrameStepOption = Annotated[int | None, typer.Option(help="Video: use every n-th frame. [default: 1]")]
FpsOption = Annotated[float | None, typer.Option(help="Image sequence: frames per second. [default: 25]")]
SideBySideOption = Annotated[bool, typer.Option("--side-by-side", help="Video: put the frame to the left of it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON summary.")]
SizeOption = Annotated[str | None, typer.Option(help="HEIGHTxWIDTH in pixels, such as 436x1024.")]
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


def parse_bytes(text: str | None) -> int | None:
    """Parse an amount of memory, a number with B, KB, MB, GB, KiB, MiB or GiB, to bytes; None stays None."""
    if text is None:
        return None
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?|)B?", text.strip().upper(), re.ASCII)
    if parts is None or float(parts[1]) <= 0:
        raise InputError(f"an amount of memory is a number and a unit, such as 4GB, not {text!r}; write it like that.")
    return int(float(parts[1]) * _UNITS[parts[2]])


def parse_tile_sides(text: str) -> tuple[int, int] | None:
    """Parse HEIGHTxWIDTH, both over the overlap of tiles; None if the text is something else."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() and int(side) > LEAST_OVERLAP for side in sides):
        return None
    return int(sides[0]), int(sides[1])


def parse_tile(text: str) -> TileSize:
    """Parse a tile size: auto, none or HEIGHTxWIDTH."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    sides = parse_tile_sides(text)
    if sides is None:
        raise InputError(
            f"a tile is auto, none or HEIGHTxWIDTH with sides over {LEAST_OVERLAP} pixels, such as 432x960, not "
            f"{text!r}; give one of these."
        )
    return sides


def parse_size(text: str) -> tuple[int, int]:
    """Parse HEIGHTxWIDTH in pixels."""
    sides = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    if sides is None:
        raise InputError(f"--size is {text!r}, but a size is HEIGHTxWIDTH in pixels; write it such as 436x1024.")
    height, width = int(sides[1]), int(sides[2])
    if height * width > MAX_PIXELS:
        raise InputError(f"--size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")
    return height, width


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
            f"a zoom is auto or a number from {LEAST_ZOOM:g} to {MOST_ZOOM:g}, not {text!r}; give one of these."
        ) from None
