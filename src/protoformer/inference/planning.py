"""How the flow of large images is computed within a budget of memory: whole or in windows, how many at a time."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from protoformer.errors import InputError
from protoformer.geometry import Padding, enlarged_size
from protoformer.inference.memory import BYTES_PER_PIXEL, free_bytes
from protoformer.inference.tiles import LEAST_OVERLAP, Window, windows
from protoformer.model import ModelConfig
from protoformer.model.correlation import all_pairs_bytes
from protoformer.model.flow import LEAST_SIDE, STORED_LIMIT
from protoformer.model.fused import kernels_run_there
from protoformer.model.matching import CELL
from protoformer.model.update import FACTOR

Tile = Literal["auto"] | tuple[int, int] | None
"""Windows as large as the memory allows, if need be; windows of (height, width); or whole images."""

BESIDE_COSTS = {"memory": 4000, "recurrent": 1000}
"""Memory for each pixel, by decoder, besides all pairs of costs: what was seen, and some to spare."""
FRAME_BYTES = 150
"""Main memory for each pixel of a frame: two frames, the blend of windows, the picture, what an encoder holds."""
OVERLAP = 64
"""Pixels by which windows overlap, so that each sees beyond its seams."""
LEAST_TILE = 128
"""The smallest side of a window that is chosen by itself: a smaller one sees too little."""
SHARE = 0.75
"""How much of what is free is used by itself: other programs go on."""
LEAST_ZOOM, MOST_ZOOM = 0.25, 4.0
"""Times a side that images can be asked to be looked at as large."""
MOST_AT_ONCE = 8
"""Pairs or windows in a batch on a GPU; a CPU is no faster with more than one."""


@dataclass(frozen=True)
class FlowPlan:
    """How the flow of images of one size is computed.

    size: (height, width) of the images. tile: that of the windows, or None for whole images. batch: how many windows,
    or whole pairs, at a time. low_memory: costs are computed where they are looked for, and not stored. seen: the
    (height, width) at which the network sees the images, in whose pixels windows are; None: their own.
    """

    size: tuple[int, int]
    tile: tuple[int, int] | None
    batch: int
    low_memory: bool
    seen: tuple[int, int] | None = None

    @property
    def zoom(self) -> float:
        """How many times as long a side is as the network sees it."""
        return zoom_between(self.size, self.seen or self.size)

    @property
    def windows(self) -> list[Window]:
        """Where the windows lie; one for whole images."""
        seen = self.seen or self.size
        tile = self.tile or seen
        return windows(seen, tile, max(LEAST_OVERLAP, min(OVERLAP, min(tile) // 4)))

    def __str__(self) -> str:
        at_once = f"{self.batch} at a time" if self.batch > 1 else "one at a time"
        if self.tile is None:
            return f"whole images{self._looked_at}, {at_once}"
        return f"{len(self.windows)} windows of {self.tile[0]}x{self.tile[1]} an image{self._looked_at}, {at_once}"

    @property
    def _looked_at(self) -> str:
        if self.seen is None:
            return ""
        return f" looked at {'enlarged' if self.zoom > 1 else 'shrunk'} {self.zoom:.2g} times"


def check_zoom(zoom: float | None) -> None:
    """Refuse what images cannot be enlarged or shrunk by; None is as the network has it."""
    if zoom is None:
        return
    if isinstance(zoom, bool) or not isinstance(zoom, int | float) or not LEAST_ZOOM <= zoom <= MOST_ZOOM:
        raise InputError(
            f"images cannot be looked at {zoom!r} times as large; give a zoom from {LEAST_ZOOM:g} to {MOST_ZOOM:g}."
        )


def seen_size(size: tuple[int, int], config: ModelConfig, zoom: float | None = None) -> tuple[int, int]:
    """The (height, width) at which a network sees images of a size; zoom: times a side, None: by the configuration."""
    check_zoom(zoom)
    if zoom is None:
        return enlarged_size(size, config.flow_pixels, FACTOR * CELL)
    return max(1, round(zoom * size[0])), max(1, round(zoom * size[1]))


def zoom_between(size: tuple[int, int], seen: tuple[int, int]) -> float:
    """How many times as long a side of an image is as the network sees it, on average over both."""
    return math.sqrt(seen[0] * seen[1] / (size[0] * size[1]))


def seen_words(size: tuple[int, int], seen: tuple[int, int]) -> str:
    """The size at which images are looked at, in words, and their own where it is another."""
    own = "" if seen == size else f" (images of {size[1]}x{size[0]}, with a zoom of {zoom_between(size, seen):.2g})"
    return f"{seen[1]}x{seen[0]} pixels{own}"


def plan_flow(
    size: tuple[int, int],
    config: ModelConfig,
    device: torch.device,
    tile: Tile = "auto",
    memory: int | None = None,
    batch: int | None = None,
    half: bool = False,
    seen: tuple[int, int] | None = None,
) -> FlowPlan:
    """The plan for images of (height, width), or an `InputError` where the memory cannot be enough.

    memory: bytes that may be used, in main memory with what the process holds already; None: most of what is free.
    half: whether products are to be in half precision: a GPU's kernels then keep costs in half the memory. seen: the
    (height, width) at which the network sees them; None: their own. The number of updates is no part of it: they take
    time, and no memory of their own.
    """
    if batch is not None and batch < 1:
        raise InputError(f"{batch} at a time cannot be computed; give a whole number, 1 or more.")
    seen = seen or size
    budget = _budget(device, memory)
    if budget is not None and device.type == "cpu":
        budget -= FRAME_BYTES * max(size[0] * size[1], seen[0] * seen[1])
    halved = half and kernels_run_there(device)  # others keep costs in float32
    if tile == "auto":
        tile = _largest_tile(seen, config, budget, halved)
    window = seen if tile is None else (min(tile[0], seen[0]), min(tile[1], seen[1]))
    tile = None if window == seen else tile
    limit = STORED_LIMIT if budget is None else budget
    low_memory = _bytes(window, config, stored=True, halved=halved) > limit
    needed = _bytes(window, config, stored=not low_memory, halved=halved)
    if budget is not None and needed > budget:
        raise _too_large(size, seen, window, needed, budget)
    fitting = 1 if budget is None else max(1, budget // needed)
    most = MOST_AT_ONCE if device.type == "cuda" else 1
    at_once = min(fitting, most) if batch is None else batch
    return FlowPlan(size, tile, at_once, low_memory, None if seen == size else seen)


def _largest_tile(
    size: tuple[int, int], config: ModelConfig, budget: int | None, halved: bool
) -> tuple[int, int] | None:
    """None where whole images fit, else the windows of which fewest cover the image: the squarest of these.

    Costs must fit as they are stored, because computing them on demand takes several times as long.
    """
    if budget is None or _bytes(size, config, stored=True, halved=halved) <= budget:
        return None
    rows, columns = (_divisions(side) for side in size)
    grids = sorted(
        ((height, width) for height in rows for width in columns),
        key=lambda tile: (rows.index(tile[0]) + 1) * (columns.index(tile[1]) + 1) + abs(tile[0] - tile[1]) / 1e6,
    )
    return next((tile for tile in grids if _bytes(tile, config, stored=True, halved=halved) <= budget), grids[-1])


def _divisions(length: int) -> list[int]:
    """Sides of windows of which one, two, three, ... cover a length, down to the least."""
    sides = [length]
    while sides[-1] > LEAST_TILE:
        count = len(sides) + 1
        side = -(-(length + (count - 1) * OVERLAP) // count)
        side = max(LEAST_TILE, -(-side // FACTOR) * FACTOR)
        if side >= sides[-1]:
            break
        sides.append(side)
    return sides


def _bytes(window: tuple[int, int], config: ModelConfig, stored: bool, halved: bool) -> int:
    """What the flow of one pair of windows takes; halved: costs are stored in half precision."""
    padding = Padding.to_multiple(*window, FACTOR, LEAST_SIDE)
    height, width = window[0] + padding.bottom, window[1] + padding.right
    if not stored:
        return BYTES_PER_PIXEL[config.decoder] * height * width
    levels = config.levels if config.decoder == "recurrent" else 1
    costs = all_pairs_bytes((height // FACTOR, width // FACTOR), levels) // (2 if halved else 1)
    matching = 3 * all_pairs_bytes((height // FACTOR // CELL, width // FACTOR // CELL), 1) if config.matching else 0
    return BESIDE_COSTS[config.decoder] * height * width + costs + matching


def _budget(device: torch.device, memory: int | None) -> int | None:
    free = free_bytes(device)
    if memory is None:
        return None if free is None else int(SHARE * free)
    left = max(0, memory - (_resident() if device.type == "cpu" else 0))
    return left if free is None else min(left, free)


def _resident() -> int:
    """Bytes of main memory that this process has; 0 where the system does not tell."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if told.exists() else 0


def _too_large(
    size: tuple[int, int], seen: tuple[int, int], window: tuple[int, int], needed: int, budget: int
) -> InputError:
    windowed = "" if window == seen else f" in windows of {window[1]}x{window[0]}"
    return InputError(
        f"flow at {seen_words(size, seen)}{windowed} takes about {needed / 2**30:.1f} GiB of memory "
        f"beside the frames and {max(0, budget) / 2**30:.1f} GiB are left for it; "
        "make the images or the windows smaller, or allow more."
    )
