"""What several commands make of their arguments."""

import re
from typing import Annotated, Any

import typer

from protoformer.errors import InputError
from protoformer.files import MAX_PIXELS
from protoformer.inference.planning import Tile
from protoformer.inference.tiles import LEAST_OVERLAP

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

ModelOption = Annotated[str, typer.Option(help="A task, a preset or a .safetensors file; see `protoformer models`.")]
UpdatesOption = Annotated[int | None, typer.Option(help="Refinements; more are slower and better, up to a point.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")]
TileOption = Annotated[
    str, typer.Option(help="auto (windows where the whole does not fit the memory), HEIGHTxWIDTH, or none.")
]


def key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Options of a dataset, given as key=value each."""
    split = [pair.partition("=") for pair in pairs or []]
    for name, equals, value in split:
        if not (name and equals):
            raise InputError(f"an option of a dataset is key=value, not {name + equals + value!r}; write it so.")
    return {name: value for name, _, value in split}


def byte_count(text: str | None) -> int | None:
    """An amount of memory: a number and B, KB, MB, GB, KiB, MiB or GiB; None stays None."""
    if text is None:
        return None
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?|)B?", text.strip().upper(), re.ASCII)
    if parts is None or float(parts[1]) <= 0:
        raise InputError(f"an amount of memory is a number and a unit, such as 4GB, not {text!r}; write it so.")
    return int(float(parts[1]) * _UNITS[parts[2]])


def tile_sides(text: str) -> tuple[int, int] | None:
    """HEIGHTxWIDTH as two numbers, each over the overlap of windows; None where it is something else."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdecimal() and int(side) > LEAST_OVERLAP for side in sides):
        return None
    return int(sides[0]), int(sides[1])


def tile_choice(text: str) -> Tile:
    """Windows by name: auto, none or HEIGHTxWIDTH."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    sides = tile_sides(text)
    if sides is None:
        raise InputError(
            f"a tile is auto, none or HEIGHTxWIDTH with sides over {LEAST_OVERLAP} pixels, such as 432x960, not "
            f"{text!r}; give one of these."
        )
    return sides


def height_and_width(text: str) -> tuple[int, int]:
    """A size in pixels, given as HEIGHTxWIDTH."""
    sides = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    if sides is None:
        raise InputError(f"--size is {text!r}, but a size is HEIGHTxWIDTH in pixels; write it such as 436x1024.")
    height, width = int(sides[1]), int(sides[2])
    if height * width > MAX_PIXELS:
        raise InputError(f"--size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")
    return height, width
