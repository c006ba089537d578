"""What several commands make of their arguments."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from protoformer.datasets.registry import DATASETS
from protoformer.depth.result import DepthRange
from protoformer.errors import InputError
from protoformer.flow.tiling import MAX_ZOOM, MIN_OVERLAP, MIN_ZOOM, TileSize, check_zoom
from protoformer.io.files import MAX_PIXELS

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

ModelOption = Annotated[str, typer.Option(help="A task, a preset or a .safetensors file; see `protoformer models`.")]
UpdatesOption = Annotated[int | None, typer.Option(help="Refinements; more are slower and better, up to a point.")]
MirrorOption = Annotated[
    bool | None,
    typer.Option(
        "--mirror/--no-mirror",
        help="Look in a mirror as well and take the mean: better, and twice as slow. [default: images yes, clips no]",
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")]
TileOption = Annotated[
    str, typer.Option(help="auto (windows where the whole does not fit the memory), HEIGHTxWIDTH, or none.")
]
ZoomOption = Annotated[
    str, typer.Option(help="auto (small frames are looked at enlarged), or how many times as large, such as 1 or 2.")
]
PrecisionOption = Annotated[
    str | None, typer.Option(help="full, half (bfloat16) or auto (half where it is fast). [default: auto]")
]
DatasetOption = Annotated[str, typer.Option(help="The dataset's name; `protoformer datasets list` shows them.")]
RootOption = Annotated[Path, typer.Option(help="The folder that holds it, in its official layout.")]
SplitOption = Annotated[str | None, typer.Option(help="train, val, test, ...; by default the one usually evaluated.")]
DatasetOptions = Annotated[
    list[str] | None, typer.Option(help="An option of the dataset, as key=value. Repeat for several.")
]
ScoresFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A folder for samples.csv, scores.json and the worst pictures."),
]
WorstOption = Annotated[int, typer.Option(help="How many of the worst samples to draw.", min=0)]
JsonScores = Annotated[bool, typer.Option("--json", help="Print the scores for programs.")]


def parse_key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Options of a dataset, given as key=value each."""
    split = [pair.partition("=") for pair in pairs or []]
    for name, equals, value in split:
        if not (name and equals):
            raise InputError(f"an option of a dataset is key=value, not {name + equals + value!r}; write it so.")
    return {name: value for name, _, value in split}


def check_dataset_task(dataset: str, task: str) -> None:
    """Refuse a dataset of another task; one that nobody knows is refused where it is opened."""
    if dataset in DATASETS and DATASETS[dataset].task != task:
        fitting = ", ".join(each.name for each in DATASETS.values() if each.task == task)
        raise InputError(f"{dataset} is a dataset of {DATASETS[dataset].task}, not of {task}; choose one of {fitting}.")


def parse_near_far(text: str | None, what: str) -> tuple[float, float] | None:
    """Two depths in meters, given as NEAR,FAR to the option `what`; None stays None."""
    if text is None:
        return None
    try:
        near, far = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{what} is {text!r}, but it takes NEAR,FAR in meters; write it such as 0.5,20.") from None
    if not 0 < near < far < float("inf"):
        raise InputError(f"{what} cannot go from {near:g} to {far:g} m; give a near over 0 and a larger far.")
    return near, far


def parse_depth_range(text: str | None) -> DepthRange:
    """A range of depth by its name, or as NEAR,FAR."""
    return parse_near_far(text, "--range") if text is not None and "," in text else text


def parse_bytes(text: str | None) -> int | None:
    """An amount of memory: a number and B, KB, MB, GB, KiB, MiB or GiB; None stays None."""
    if text is None:
        return None
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?|)B?", text.strip().upper(), re.ASCII)
    if parts is None or float(parts[1]) <= 0:
        raise InputError(f"an amount of memory is a number and a unit, such as 4GB, not {text!r}; write it so.")
    return int(float(parts[1]) * _UNITS[parts[2]])


def parse_tile_sides(text: str) -> tuple[int, int] | None:
    """HEIGHTxWIDTH as two numbers, each over the overlap of windows; None where it is something else."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() and int(side) > MIN_OVERLAP for side in sides):
        return None
    return int(sides[0]), int(sides[1])


def parse_tile(text: str) -> TileSize:
    """Windows by name: auto, none or HEIGHTxWIDTH."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    sides = parse_tile_sides(text)
    if sides is None:
        raise InputError(
            f"a tile is auto, none or HEIGHTxWIDTH with sides over {MIN_OVERLAP} pixels, such as 432x960, not "
            f"{text!r}; give one of these."
        )
    return sides


def parse_size(text: str) -> tuple[int, int]:
    """A size in pixels, given as HEIGHTxWIDTH."""
    sides = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    if sides is None:
        raise InputError(f"--size is {text!r}, but a size is HEIGHTxWIDTH in pixels; write it such as 436x1024.")
    height, width = int(sides[1]), int(sides[2])
    if height * width > MAX_PIXELS:
        raise InputError(f"--size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")
    return height, width


def parse_box(text: str) -> list[float]:
    """A box, given as X,Y,W,H; what the numbers may be, the frame decides."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != 4:
        raise InputError(f"a box is X,Y,W,H, four numbers of pixels such as 51,47,25,62, not {text!r}; write it so.")
    return numbers


def parse_zoom(text: str) -> float | None:
    """How many times as large images are looked at: a number, or None for auto."""
    if text == "auto":
        return None
    try:
        zoom = float(text)
    except ValueError:
        raise InputError(
            f"a zoom is auto or a number from {MIN_ZOOM:g} to {MAX_ZOOM:g}, not {text!r}; give one of these."
        ) from None
    check_zoom(zoom)
    return zoom
