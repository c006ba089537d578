"""How the flow of large images is computed within a budget of memory: whole or in windows, how many at a time."""

import math
import numbers
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.resizing import Padding, enlarged_size
from protoformer.io.memory import BYTES_PER_PIXEL, describe_memory, free_bytes
from protoformer.models.config import ModelConfig
from protoformer.models.heads.correlation import all_pairs_bytes
from protoformer.models.heads.flow import LEAST_SIDE, STORED_LIMIT, cost_bytes
from protoformer.models.heads.matching import CELL
from protoformer.models.heads.update import FACTOR

PAPER_TILE = (432, 960)
"""Height and width of the windows that the paper evaluates with."""
LEAST_OVERLAP = 20
SPREAD = 0.05
"""Standard deviation of the blending weights, as a share of the window: at the paper's size, seams fade over 10 px."""

Tile = tuple[slice, slice]


def tile_starts(length: int, window: int, overlap: int = LEAST_OVERLAP) -> list[int]:
    """Where windows begin along a side: each overlaps the one before by at least `overlap`, the last ends flush."""
    if window >= length:
        return [0]
    if window <= overlap:
        raise InputError(f"a window of {window} pixels cannot overlap the next by {overlap}; choose larger ones.")
    begins = list(range(0, length - window, window - overlap))
    return [*begins, length - window]


def make_tiles(size: tuple[int, int], tile: tuple[int, int], overlap: int = LEAST_OVERLAP) -> list[Tile]:
    """All windows of a tile's size on an image, row by row; a side shorter than the tile is covered by one window."""
    (height, width), (tile_height, tile_width) = size, tile
    return [
        (slice(top, min(top + tile_height, height)), slice(left, min(left + tile_width, width)))
        for top in tile_starts(height, tile_height, overlap)
        for left in tile_starts(width, tile_width, overlap)
    ]


def blending_weights(height: int, width: int) -> Tensor:
    """A Gaussian of the distance to the window's center, in shares of its sides: height x width, float64, positive."""
    y = (torch.arange(height, dtype=torch.float64) + 0.5) / height - 0.5
    x = (torch.arange(width, dtype=torch.float64) + 0.5) / width - 0.5
    return torch.exp(-(y[:, None].square() + x.square()) / (2 * SPREAD**2))


class TileBlender:
    """A map of the whole, put together from maps of its windows."""

    def __init__(self, size: tuple[int, int]) -> None:
        """size: (height, width) of the whole."""
        self.size = size
        self._totals = torch.zeros(0, *size, dtype=torch.float64)
        self._mass = torch.zeros(size, dtype=torch.float64)

    def add(self, window: Tile, part: Tensor) -> None:
        """Take in what is said of a window, C x h x w."""
        if not len(self._totals):
            self._totals = torch.zeros(len(part), *self.size, dtype=torch.float64)
        weights = blending_weights(part.shape[-2], part.shape[-1])
        self._totals[:, *window] += weights * part.double().cpu()
        self._mass[window] += weights

    def whole(self) -> Tensor:
        """The map of the whole, C x H x W, float32; after this the blend is used up."""
        return self._totals.div_(self._mass).float()


def predict_tiled(size: tuple[int, int], tile: tuple[int, int], predict: Callable[[Tile], Tensor]) -> Tensor:
    """Blend what `predict` says of every window (C x h x w) into one map of the whole, C x H x W, float32."""
    blend = TileBlender(size)
    for window in make_tiles(size, tile):
        blend.add(window, predict(window))
    return blend.whole()


TileSize = Literal["auto"] | tuple[int, int] | None
"""Windows as large as the memory allows, if need be; windows of (height, width); or whole images."""
MemoryNeed = Callable[[tuple[int, int], bool], int]
"""Bytes that flow takes for images of (height, width), with all pairs of costs stored (true), or not."""

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
TO_SPARE = 1.1
"""Times as much memory is advised as is needed now: a process does not always hold the same."""
LEAST_ZOOM, MOST_ZOOM = 0.25, 4.0
"""Times a side that images can be asked to be looked at as large."""
MOST_AT_ONCE = 8
"""Pairs or windows in a batch on a GPU; a CPU is no faster with more than one."""


@dataclass(frozen=True)
class FlowPlan:
    """How the flow of images of one size is computed.

    size: (height, width) of the images. seen: that at which the network sees them, in whose pixels windows are. tile:
    that of the windows, or None for whole images. batch: how many windows, or whole pairs, at a time. low_memory: costs
    are computed where they are looked for, and not stored.
    """

    size: tuple[int, int]
    seen: tuple[int, int]
    tile: tuple[int, int] | None
    batch: int
    low_memory: bool

    @property
    def zoom(self) -> float:
        """How many times as long a side is as the network sees it."""
        return zoom_between(self.size, self.seen)

    @property
    def other_size(self) -> tuple[int, int] | None:
        """`seen` as results tell it: None where it is the images' own size."""
        return None if self.seen == self.size else self.seen

    @property
    def windows(self) -> list[Tile]:
        """Where the windows lie; one for whole images."""
        tile = self.tile or self.seen
        return make_tiles(self.seen, tile, max(LEAST_OVERLAP, min(OVERLAP, min(tile) // 4)))

    def __str__(self) -> str:
        at_once = f"{self.batch} at a time" if self.batch > 1 else "one at a time"
        if self.tile is None:
            return f"whole images{self._looked_at}, {at_once}"
        return f"{len(self.windows)} windows of {self.tile[0]}x{self.tile[1]} an image{self._looked_at}, {at_once}"

    @property
    def _looked_at(self) -> str:
        return "" if self.seen == self.size else f" looked at {self.zoom:.2g} times as large"


@dataclass(frozen=True)
class Budget:
    """Bytes that may be taken, None where nobody can tell; holds_frames: whether frames lie in the same memory."""

    total: int | None
    holds_frames: bool

    def beside_frames(self, size: tuple[int, int], seen: tuple[int, int]) -> int | None:
        """What is left for flow beside frames of (height, width), and as they are seen."""
        if self.total is None or not self.holds_frames:
            return self.total
        return self.total - FRAME_BYTES * max(size[0] * size[1], seen[0] * seen[1])


def check_zoom(zoom: float | None) -> None:
    """Refuse what images cannot be enlarged or shrunk by; None is as the network has it."""
    if zoom is None:
        return
    number = isinstance(zoom, numbers.Real) and not isinstance(zoom, bool)
    if not number or not LEAST_ZOOM <= zoom <= MOST_ZOOM:
        raise InputError(
            f"images cannot be looked at {zoom!r} times as large; give a zoom from {LEAST_ZOOM:g} to {MOST_ZOOM:g}."
        )


def working_size(
    size: tuple[int, int],
    config: ModelConfig,
    device: torch.device,
    zoom: float | None = None,
    tile: TileSize = None,
    pairs: int = 1,
) -> tuple[int, int]:
    """The (height, width) at which a network sees images of a size, in float32 and within most of the free memory.

    zoom: times a side. None: as the configuration says, if the images then still go as a whole, with all pairs of costs
    stored, into the memory and into one of `tile`; else they are seen as they are. pairs: how many go at once.
    """
    return _seen_size(size, config, zoom, tile, partial(_bytes, config, device, False, pairs), _budget(device, None))


def _seen_size(
    size: tuple[int, int], config: ModelConfig, zoom: float | None, tile: TileSize, needed: MemoryNeed, budget: Budget
) -> tuple[int, int]:
    """As `seen_size`, within a budget."""
    check_zoom(zoom)
    if zoom is not None:
        return max(1, round(float(zoom) * size[0])), max(1, round(float(zoom) * size[1]))
    seen = enlarged_size(size, config.flow_pixels, FACTOR * CELL)
    in_one = not isinstance(tile, tuple) or (seen[0] <= tile[0] and seen[1] <= tile[1])
    left = budget.beside_frames(size, seen)
    # Of small images, costs on demand are thought to take more than all of them; neither may lack memory.
    fits = left is None or max(needed(seen, True), needed(seen, False)) <= left
    return seen if in_one and fits else size


def zoom_between(size: tuple[int, int], seen: tuple[int, int]) -> float:
    """How many times as long a side of an image is as the network sees it, on average over both."""
    return math.sqrt(seen[0] * seen[1] / (size[0] * size[1]))


def describe_working_size(size: tuple[int, int], seen: tuple[int, int]) -> str:
    """The size at which images are looked at, in words, and their own where it is another."""
    own = "" if seen == size else f" (images of {size[1]}x{size[0]}, with a zoom of {zoom_between(size, seen):.2g})"
    return f"{seen[1]}x{seen[0]} pixels{own}"


def plan_flow(
    size: tuple[int, int],
    config: ModelConfig,
    device: torch.device,
    tile: TileSize = "auto",
    memory: int | None = None,
    batch: int | None = None,
    half: bool = False,
    zoom: float | None = None,
    pairs: int = 1,
) -> FlowPlan:
    """The plan for images of (height, width), or an `InputError` where the memory cannot be enough.

    memory: bytes that may be used, in main memory with what the process holds already; None: most of what is free.
    half: whether products are to be in half precision, in which some devices keep costs, too. zoom: as in `seen_size`,
    so that no image fails, or goes in windows, only because it would be enlarged. pairs: how many always go together,
    as those forth and back. The number of updates is no part of it: they take time, and no memory of their own.
    """
    if batch is not None and batch < 1:
        raise InputError(f"{batch} at a time cannot be computed; give a whole number, 1 or more.")
    budget = _budget(device, memory)
    needed = partial(_bytes, config, device, half, pairs)
    of_batch = partial(_bytes, config, device, half, pairs * (batch or 1))
    seen = _seen_size(size, config, zoom, tile, of_batch, budget)
    left = budget.beside_frames(size, seen)
    if tile == "auto":
        tile = _largest_tile(seen, needed, left)
    window = seen if tile is None else (min(tile[0], seen[0]), min(tile[1], seen[1]))
    tile = None if window == seen else tile
    low_memory = needed(window, True) > (STORED_LIMIT if left is None else left)
    takes = needed(window, not low_memory)
    if left is not None and takes > left:
        windowed = "" if window == seen else f" in windows of {window[1]}x{window[0]}"
        with_frames = min(takes, needed(window, True)) + (budget.total or 0) - left
        raise InputError(
            f"flow at {describe_working_size(size, seen)}{windowed} takes about "
            f"{describe_memory(takes)} of memory beside the frames "
            f"and {describe_memory(max(0, left))} are left for it; {_way_out(with_frames, device, zoom)}."
        )
    fitting = 1 if left is None else max(1, left // takes)
    most = MOST_AT_ONCE if device.type == "cuda" else 1
    at_once = min(fitting, most) if batch is None else batch
    return FlowPlan(size, seen, tile, at_once, low_memory)


def _largest_tile(size: tuple[int, int], needed: MemoryNeed, left: int | None) -> tuple[int, int] | None:
    """None where whole images fit, else the windows of which fewest cover the image: the squarest of these.

    Costs must fit as they are stored, because computing them on demand takes several times as long.
    """
    if left is None or needed(size, True) <= left:
        return None
    rows, columns = (_divisions(side) for side in size)
    grids = sorted(
        ((height, width) for height in rows for width in columns),
        key=lambda tile: (rows.index(tile[0]) + 1) * (columns.index(tile[1]) + 1) + abs(tile[0] - tile[1]) / 1e6,
    )
    return next((tile for tile in grids if needed(tile, True) <= left), grids[-1])


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


def _bytes(
    config: ModelConfig, device: torch.device, half: bool, pairs: int, window: tuple[int, int], stored: bool
) -> int:
    """What the flow of pairs of windows takes at once; half: products are in half precision; stored: costs are kept."""
    padding = Padding.to_multiple(*window, FACTOR, LEAST_SIDE)
    height, width = window[0] + padding.bottom, window[1] + padding.right
    if not stored:
        return pairs * BYTES_PER_PIXEL[config.decoder] * height * width
    levels = config.levels if config.decoder == "recurrent" else 1
    costs = cost_bytes((height // FACTOR, width // FACTOR), levels, config.radius, device, half)
    matching = 3 * all_pairs_bytes((height // FACTOR // CELL, width // FACTOR // CELL), 1) if config.matching else 0
    return pairs * (BESIDE_COSTS[config.decoder] * height * width + costs + matching)


def _budget(device: torch.device, memory: int | None) -> Budget:
    free, holds_frames = free_bytes(device), device.type == "cpu"
    if memory is None:
        return Budget(None if free is None else int(SHARE * free), holds_frames)
    left = max(0, memory - (_resident() if holds_frames else 0))
    return Budget(left if free is None else min(left, free), holds_frames)


def _resident() -> int:
    """Bytes of main memory that this process has; 0 where the system does not tell."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if told.exists() else 0


def _way_out(amount: int, device: torch.device, zoom: float | None) -> str:
    """What to do where there is too little memory. amount: bytes that would be enough beside what the process holds."""
    smaller = "the images or the windows" if zoom is None else "the images, the windows or the zoom"
    free = free_bytes(device)
    if free is not None and amount > free:
        return f"make {smaller} smaller, or close other programs"
    held = _resident() if device.type == "cpu" else 0
    tenths = math.ceil((amount + held) * TO_SPARE / 1e8)
    return f"make {smaller} smaller, or allow more memory, such as {tenths / 10:g}GB"
