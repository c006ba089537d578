"""What several commands make of their arguments."""

import re
from typing import Any

from protoformer.errors import InputError
from protoformer.files import MAX_PIXELS


def key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Options of a dataset, given as key=value each."""
    split = [pair.partition("=") for pair in pairs or []]
    for name, equals, value in split:
        if not (name and equals):
            raise InputError(f"an option of a dataset is key=value, not {name + equals + value!r}; write it so.")
    return {name: value for name, _, value in split}


def height_and_width(text: str) -> tuple[int, int]:
    """A size in pixels, given as HEIGHTxWIDTH."""
    sides = re.fullmatch(r"([0-9]{1,6})[xX]([0-9]{1,6})", text)
    if sides is None:
        raise InputError(f"--size is {text!r}, but a size is HEIGHTxWIDTH in pixels; write it such as 436x1024.")
    height, width = int(sides[1]), int(sides[2])
    if height * width > MAX_PIXELS:
        raise InputError(f"--size {text} is over the limit of {MAX_PIXELS} pixels; choose a smaller one.")
    return height, width
