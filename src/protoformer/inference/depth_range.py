"""How near and how far a depth may be."""

import math

from protoformer.errors import InputError, nearest
from protoformer.files.short_values import shown
from protoformer.model import ModelConfig
from protoformer.model.depth import CANONICAL_FOCAL

RANGES: dict[str, tuple[float, float]] = {"indoor": (0.1, 10.0), "driving": (1.0, 80.0)}
"""Metres of the nearest and the farthest that is to be expected, by name."""

LEAST, MOST = 1e-6, 1e9
"""Metres that a range may have at all: what is computed within them is finite in float32."""

DepthRange = str | tuple[float, float] | None
"""A name of `RANGES`, (nearest, farthest) in metres, or all that the network can say."""


def checked_range(wanted: DepthRange) -> tuple[float, float] | None:
    """The range of a name, or numbers that can be one; None stays None."""
    if isinstance(wanted, str):
        if wanted not in RANGES:
            close = nearest(wanted, list(RANGES))
            raise InputError(f"there is no range {shown(wanted)}; the nearest one is {close!r}, or give two numbers.")
        return RANGES[wanted]
    if wanted is None:
        return None
    try:
        near, far = (float(each) for each in wanted)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"a range is a name or two numbers of metres, not {shown(wanted)}; give one of these."
        ) from None
    if not 0 < near < far < math.inf:
        raise InputError(f"a range cannot go from {near:g} to {far:g} m; give a nearest over 0 and a larger farthest.")
    if not LEAST <= near < far <= MOST:
        raise InputError(f"a range cannot go from {near:g} to {far:g} m; give metres from {LEAST:g} to {MOST:g}.")
    return near, far


def network_range(config: ModelConfig, focal: float) -> tuple[float, float]:
    """What a network can say of an image with this focal length, pixels of the size it works at; metres."""
    return config.nearest * focal / CANONICAL_FOCAL, config.farthest * focal / CANONICAL_FOCAL
