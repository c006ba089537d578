"""The numbers of an augmentation: what its settings may be, and how those of one sample are drawn.

A key is (seed, epoch, index). Each random number of a sample has a name, and is the first 53 bits of the 8-byte BLAKE2b
hash of "seed epoch index name" (decimal, a space between, ASCII), read as a little-endian number without its 11 lowest
bits, as a fraction of 2^53. So it depends neither on worker nor batch nor device, nor on the other numbers drawn.
"""

import math
from dataclasses import fields
from hashlib import blake2b
from typing import Any, Protocol

from protoformer.data.augmentation_photometric import Box, Jitter
from protoformer.errors import InputError

Key = tuple[int, int, int]

_SIZES = {"crop", "erase_size"}
_SWITCHES = {"sparse"}
_EXPONENTS = {"min_scale", "max_scale"}
_PROBABILITIES = {
    "scale_probability",
    "stretch_probability",
    "flip_horizontal",
    "flip_vertical",
    "asymmetric",
    "blur_probability",
    "noise_probability",
    "erase",
    "shadow",
}
_SHARES = {"shade"}


class Colours(Protocol):
    """The settings of an augmentation that say how colours change and what is erased."""

    @property
    def brightness(self) -> float: ...
    @property
    def contrast(self) -> float: ...
    @property
    def saturation(self) -> float: ...
    @property
    def hue(self) -> float: ...
    @property
    def erase(self) -> float: ...
    @property
    def erase_size(self) -> tuple[int, int]: ...


class Draws:
    """The random numbers of one key, by name."""

    def __init__(self, key: Key) -> None:
        self.key = " ".join(str(int(part)) for part in key)

    def fraction(self, name: str) -> float:
        """From 0 to below 1."""
        digest = blake2b(f"{self.key} {name}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / 2**53

    def between(self, name: str, low: float, high: float) -> float:
        """From low to high."""
        return low + (high - low) * self.fraction(name)

    def whole(self, name: str, low: int, high: int) -> int:
        """From low to high, both included."""
        return low + int(self.fraction(name) * (high - low + 1))

    def happens(self, name: str, probability: float) -> bool:
        """Whether something of this probability does."""
        return self.fraction(name) < probability


def check_settings(config: Any) -> None:
    """Raise `InputError` for the first field of an augmentation that is not what its name demands."""
    check_numbers(config, "augmentation")
    if not config.min_scale <= config.max_scale:
        raise InputError(f"the augmentation's min_scale {config.min_scale} is above its max_scale {config.max_scale}.")


def check_numbers(config: Any, what: str) -> None:
    """As `check_settings`, of any record with an `erase_size`. what: the word for such settings."""
    for field in fields(config):
        value = getattr(config, field.name)
        wanted = _wanted(field.name, value)
        if wanted:
            raise InputError(f"the {what}'s {field.name} is {value!r}, but it must be {wanted}.")
    if not config.erase_size[0] <= config.erase_size[1]:
        raise InputError(f"the {what}'s erase_size {config.erase_size} must go from the least to the most.")


def _wanted(name: str, value: object) -> str:
    """What a field's value must be, if it is not; else nothing."""
    if name in _SWITCHES:
        return "" if isinstance(value, bool) else "true or false"
    if name in _SIZES:
        sides = value if isinstance(value, tuple) else ()
        right = len(sides) == 2 and all(isinstance(side, int) and side >= 1 for side in sides)
        return "" if right else "two whole numbers, 1 or more"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "a number"
    if name in _PROBABILITIES:
        return "" if 0 <= value <= 1 else "a probability, 0 to 1"
    if name in _SHARES:
        return "" if 0 <= value <= 1 else "a share, 0 to 1"
    if name in _EXPONENTS:
        return ""
    return "" if value >= 0 else "0 or more"


def draw_jitter(config: Colours, draws: Draws, image: str) -> Jitter:
    """How the colours of an image change; image: what its numbers are called after."""

    def factor(name: str, strength: float) -> float:
        return draws.between(f"{image} {name}", max(0.0, 1 - strength), 1 + strength)

    return Jitter(
        brightness=factor("brightness", config.brightness),
        contrast=factor("contrast", config.contrast),
        saturation=factor("saturation", config.saturation),
        hue=draws.between(f"{image} hue", -config.hue, config.hue),
    )


def draw_boxes(config: Colours, draws: Draws, size: tuple[int, int]) -> tuple[Box, ...]:
    """Boxes to erase from an image of (height, width), one or two of them or none."""
    if not draws.happens("erase", config.erase):
        return ()
    (height, width), (least, most) = size, config.erase_size
    return tuple(
        (
            draws.whole(f"box {box} x", 0, width - 1),
            draws.whole(f"box {box} y", 0, height - 1),
            draws.whole(f"box {box} width", least, most),
            draws.whole(f"box {box} height", least, most),
        )
        for box in range(draws.whole("boxes", 1, 2))
    )
