"""Tiling and memory planning for optical flow: working size, tiles, batch size and blending."""

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
from protoformer.geometry.warps import Padding, enlarged_size
from protoformer.io.memory import BYTES_PER_PIXEL, describe_memory, free_bytes
from protoformer.models.config import ModelConfig
from protoformer.models.heads.correlation import all_pairs_bytes
from protoformer.models.heads.flow import MIN_SIDE, STORED_LIMIT, cost_bytes
from protoformer.models.heads.matching import BLOCK
from protoformer.models.heads.update import FLOW_STRIDE

PAPER_TILE = (432, 960)
"""(height, width) of the tiles of the paper's evaluation."""
MIN_OVERLAP = 20
"""Smallest overlap of neighboring tiles, pixels."""
SPREAD = 0.05
"""Standard deviation of the blending weights as a fraction of the tile: seams of the paper's tiles fade over 10 px."""

Tile = tuple[slice, slice]
"""Rows and columns of a tile."""


def tile_starts(length: int, tile: int, overlap: int = MIN_OVERLAP) -> list[int]:
    """Return the start positions of tiles of `tile` pixels along a side of `length` pixels.

    Neighbors overlap by at least `overlap` pixels, and the last tile ends at the border.
    """
    if tile >= length:
        return [0]
    if tile <= overlap:
        raise InputError(f"a tile of {tile} pixels cannot overlap the next by {overlap}; choose larger ones.")
    starts = list(range(0, length - tile, tile - overlap))
    return [*starts, length - tile]


def make_tiles(size: tuple[int, int], tile: tuple[int, int], overlap: int = MIN_OVERLAP) -> list[Tile]:
    """Cover an image with overlapping tiles, in row-major order.

    Args:
        size: (height, width) of the image.
        tile: (height, width) of a tile; a shorter image side is covered by one tile.
        overlap: smallest overlap of neighboring tiles, pixels.
    """
    (height, width), (tile_height, tile_width) = size, tile
    return [
        (slice(top, min(top + tile_height, height)), slice(left, min(left + tile_width, width)))
        for top in tile_starts(height, tile_height, overlap)
        for left in tile_starts(width, tile_width, overlap)
    ]


def blending_weights(height: int, width: int) -> Tensor:
    """Return Gaussian weights of the relative distance to the tile center, height x width, float64, positive."""
    y = (torch.arange(height, dtype=torch.float64) + 0.5) / height - 0.5
    x = (torch.arange(width, dtype=torch.float64) + 0.5) / width - 0.5
    return torch.exp(-(y[:, None].square() + x.square()) / (2 * SPREAD**2))


class TileBlender:
    """Merges per-tile predictions into one map by Gaussian weighting.

    Args:
        size: (height, width) of the merged map.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self._sum = torch.zeros(0, *size, dtype=torch.float64)
        self._weight_sum = torch.zeros(size, dtype=torch.float64)

    def add(self, tile: Tile, prediction: Tensor) -> None:
        """Add the prediction of one tile, C x h x w."""
        if not len(self._sum):
            self._sum = torch.zeros(len(prediction), *self.size, dtype=torch.float64)
        weights = blending_weights(prediction.shape[-2], prediction.shape[-1])
        self._sum[:, *tile] += weights * prediction.double().cpu()
        self._weight_sum[tile] += weights

    def merge(self) -> Tensor:
        """Return the merged map, C x H x W, float32. It is computed in place: call it once, after all tiles."""
        return self._sum.div_(self._weight_sum).float()


def predict_tiled(size: tuple[int, int], tile: tuple[int, int], predict: Callable[[Tile], Tensor]) -> Tensor:
    """Predict every tile of an image of (height, width), C x h x w each, and blend the results: C x H x W, float32."""
    blender = TileBlender(size)
    for each in make_tiles(size, tile):
        blender.add(each, predict(each))
    return blender.merge()


TileSize = Literal["auto"] | tuple[int, int] | None
"""Tile size option: "auto" tiles only if memory requires it; (height, width) of tiles; None for whole images."""
MemoryNeed = Callable[[tuple[int, int], bool], int]
"""Maps (height, width) and whether the all-pairs cost volume is stored to the required bytes."""

BYTES_BESIDE_COSTS = {"memory": 4000, "recurrent": 1000}
"""Bytes per pixel without the cost volume, by decoder: the measured amount plus a margin."""
FRAME_BYTES = 150
"""Bytes of main memory per frame pixel: two frames, the blended tiles, the drawn image and the encoder's buffers."""
OVERLAP = 64
"""Preferred overlap of tiles, pixels, so that each tile has context beyond its seams."""
MIN_TILE = 128
"""Smallest side of an automatically chosen tile, pixels; smaller tiles have too little context."""
MEMORY_FRACTION = 0.75
"""Fraction of the free memory that is used by default."""
MEMORY_MARGIN = 1.1
"""Factor on the memory that an error message suggests, because the memory of a process varies."""
MIN_ZOOM, MAX_ZOOM = 0.25, 4.0
"""Limits of the zoom: working size divided by image size."""
MAX_BATCH_SIZE = 8
"""Pairs or tiles in a batch on a GPU; a CPU is no faster with more than one."""


@dataclass(frozen=True)
class FlowPlan:
    """How the flow of images of one size is computed.

    Attributes:
        size: (height, width) of the images.
        working: (height, width) at which the network runs (the working size); tiles are in its pixels.
        tile: (height, width) of the tiles, or None for whole images.
        batch_size: number of tiles, or of whole pairs, in a batch.
        low_memory: compute costs on demand instead of storing the all-pairs cost volume.
    """

    size: tuple[int, int]
    working: tuple[int, int]
    tile: tuple[int, int] | None
    batch_size: int
    low_memory: bool

    @property
    def zoom(self) -> float:
        """Working size divided by image size."""
        return zoom_between(self.size, self.working)

    @property
    def input_size(self) -> tuple[int, int] | None:
        """The working size, or None if it equals the image size."""
        return None if self.working == self.size else self.working

    @property
    def tiles(self) -> list[Tile]:
        """Tiles of an image; a single one for whole images."""
        tile = self.tile or self.working
        return make_tiles(self.working, tile, max(MIN_OVERLAP, min(OVERLAP, min(tile) // 4)))

    def __str__(self) -> str:
        batch = f"{self.batch_size} at a time" if self.batch_size > 1 else "one at a time"
        if self.tile is None:
            return f"whole images{self._zoom_note}, {batch}"
        return f"{len(self.tiles)} tiles of {self.tile[0]}x{self.tile[1]} per image{self._zoom_note}, {batch}"

    @property
    def _zoom_note(self) -> str:
        return "" if self.working == self.size else f" resized by {self.zoom:.2g}"


@dataclass(frozen=True)
class Budget:
    """Memory that flow inference may use.

    Attributes:
        total: bytes, or None if the free memory is unknown.
        holds_frames: whether the frames are stored in the same memory.
    """

    total: int | None
    holds_frames: bool

    def beside_frames(self, size: tuple[int, int], working: tuple[int, int]) -> int | None:
        """Return the bytes left for the network beside frames of (height, width) and of the working size."""
        if self.total is None or not self.holds_frames:
            return self.total
        return self.total - FRAME_BYTES * max(size[0] * size[1], working[0] * working[1])


def check_zoom(zoom: float | None) -> None:
    """Validate a zoom factor; None means the network's default."""
    if zoom is None:
        return
    is_number = isinstance(zoom, numbers.Real) and not isinstance(zoom, bool)
    if not is_number or not MIN_ZOOM <= zoom <= MAX_ZOOM:
        raise InputError(
            f"images cannot be resized by a zoom of {zoom!r}; give a zoom from {MIN_ZOOM:g} to {MAX_ZOOM:g}."
        )


def working_size(
    size: tuple[int, int],
    config: ModelConfig,
    device: torch.device,
    zoom: float | None = None,
    tile: TileSize = None,
    pairs: int = 1,
) -> tuple[int, int]:
    """Return the (height, width) at which a network runs, in float32 and within the default memory budget.

    Args:
        size: (height, width) of the images.
        config: configuration of the network.
        device: device of the network.
        zoom: working size divided by image size. None: enlarge small images to the configured `min_pixels` if a whole
            image still fits into memory with its cost volume, and into one tile; else keep the image size.
        tile: tile size.
        pairs: number of pairs in a batch.
    """
    return _choose_working_size(
        size, config, zoom, tile, partial(_required_bytes, config, device, False, pairs), _memory_budget(device, None)
    )


def _choose_working_size(
    size: tuple[int, int], config: ModelConfig, zoom: float | None, tile: TileSize, needed: MemoryNeed, budget: Budget
) -> tuple[int, int]:
    """Return the working size within a memory budget; see `working_size`."""
    check_zoom(zoom)
    if zoom is not None:
        return max(1, round(float(zoom) * size[0])), max(1, round(float(zoom) * size[1]))
    enlarged = enlarged_size(size, config.flow.min_pixels, FLOW_STRIDE * BLOCK)
    is_single_tile = not isinstance(tile, tuple) or (enlarged[0] <= tile[0] and enlarged[1] <= tile[1])
    available = budget.beside_frames(size, enlarged)
    # For small images the estimate for on-demand costs exceeds that of the stored volume; both must fit.
    fits = available is None or max(needed(enlarged, True), needed(enlarged, False)) <= available
    return enlarged if is_single_tile and fits else size


def zoom_between(size: tuple[int, int], working: tuple[int, int]) -> float:
    """Return the working size divided by the image size, as the geometric mean of both sides."""
    return math.sqrt(working[0] * working[1] / (size[0] * size[1]))


def describe_working_size(size: tuple[int, int], working: tuple[int, int]) -> str:
    """Format the working size, and the image size where it differs, for messages."""
    note = (
        "" if working == size else f" (images of {size[1]}x{size[0]}, with a zoom of {zoom_between(size, working):.2g})"
    )
    return f"{working[1]}x{working[0]} pixels{note}"


def plan_flow(
    size: tuple[int, int],
    config: ModelConfig,
    device: torch.device,
    tile: TileSize = "auto",
    memory: int | None = None,
    batch_size: int | None = None,
    half: bool = False,
    zoom: float | None = None,
    pairs: int = 1,
) -> FlowPlan:
    """Choose working size, tiles and batch size so that flow inference fits into memory.

    The number of updates does not matter: they take time, but no memory of their own.

    Args:
        size: (height, width) of the images.
        config: configuration of the network.
        device: device of the network.
        tile: tile size.
        memory: memory budget in bytes, including what the process already holds in main memory; None: most of what is
            free.
        batch_size: batch size; None chooses it by memory.
        half: matrix products run in half precision, in which some devices also store the cost volume.
        zoom: as in `working_size`; None never makes an image fail, or need tiles, by enlarging it.
        pairs: number of pairs that are always processed together, such as forward and backward flow.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"a batch size of {batch_size} is not possible; give a whole number, 1 or more.")
    budget = _memory_budget(device, memory)
    needed = partial(_required_bytes, config, device, half, pairs)
    needed_for_batch = partial(_required_bytes, config, device, half, pairs * (batch_size or 1))
    working = _choose_working_size(size, config, zoom, tile, needed_for_batch, budget)
    available = budget.beside_frames(size, working)
    if tile == "auto":
        tile = _largest_tile(working, needed, available)
    crop = working if tile is None else (min(tile[0], working[0]), min(tile[1], working[1]))
    tile = None if crop == working else tile
    low_memory = needed(crop, True) > (STORED_LIMIT if available is None else available)
    required = needed(crop, not low_memory)
    if available is not None and required > available:
        tile_note = "" if crop == working else f" in tiles of {crop[1]}x{crop[0]}"
        with_frames = min(required, needed(crop, True)) + (budget.total or 0) - available
        raise InputError(
            f"flow at {describe_working_size(size, working)}{tile_note} takes about "
            f"{describe_memory(required)} of memory besides the frames "
            f"and {describe_memory(max(0, available))} are left for it; {_memory_advice(with_frames, device, zoom)}."
        )
    fitting = 1 if available is None else max(1, available // required)
    max_batch = MAX_BATCH_SIZE if device.type == "cuda" else 1
    batch_size = min(fitting, max_batch) if batch_size is None else batch_size
    return FlowPlan(size, working, tile, batch_size, low_memory)


def _largest_tile(size: tuple[int, int], needed: MemoryNeed, available: int | None) -> tuple[int, int] | None:
    """Return the tile size that covers an image with the fewest tiles, the squarest of these; None if it fits whole.

    The stored cost volume must fit, because computing costs on demand takes several times as long.
    """
    if available is None or needed(size, True) <= available:
        return None
    rows, columns = (_tile_sides(side) for side in size)
    candidates = sorted(
        ((height, width) for height in rows for width in columns),
        key=lambda tile: (rows.index(tile[0]) + 1) * (columns.index(tile[1]) + 1) + abs(tile[0] - tile[1]) / 1e6,
    )
    return next((tile for tile in candidates if needed(tile, True) <= available), candidates[-1])


def _tile_sides(length: int) -> list[int]:
    """Return the sides of tiles of which one, two, three, ... cover a length, down to `MIN_TILE`."""
    sides = [length]
    while sides[-1] > MIN_TILE:
        count = len(sides) + 1
        side = -(-(length + (count - 1) * OVERLAP) // count)
        side = max(MIN_TILE, -(-side // FLOW_STRIDE) * FLOW_STRIDE)
        if side >= sides[-1]:
            break
        sides.append(side)
    return sides


def _required_bytes(
    config: ModelConfig, device: torch.device, half: bool, pairs: int, crop: tuple[int, int], store_costs: bool
) -> int:
    """Return the bytes that the flow of a batch of `pairs` crops of (height, width) takes.

    `half` runs matrix products in half precision; `store_costs` stores the all-pairs cost volume instead of computing
    costs on demand.
    """
    padding = Padding.to_multiple(*crop, FLOW_STRIDE, MIN_SIDE)
    height, width = crop[0] + padding.bottom, crop[1] + padding.right
    if not store_costs:
        return pairs * BYTES_PER_PIXEL[config.flow.decoder] * height * width
    levels = config.flow.corr_levels if config.flow.decoder == "recurrent" else 1
    costs = cost_bytes((height // FLOW_STRIDE, width // FLOW_STRIDE), levels, config.flow.corr_radius, device, half)
    matching = (
        3 * all_pairs_bytes((height // FLOW_STRIDE // BLOCK, width // FLOW_STRIDE // BLOCK), 1)
        if config.flow.global_matching
        else 0
    )
    return pairs * (BYTES_BESIDE_COSTS[config.flow.decoder] * height * width + costs + matching)


def _memory_budget(device: torch.device, memory: int | None) -> Budget:
    free, holds_frames = free_bytes(device), device.type == "cpu"
    if memory is None:
        return Budget(None if free is None else int(MEMORY_FRACTION * free), holds_frames)
    available = max(0, memory - (_resident_bytes() if holds_frames else 0))
    return Budget(available if free is None else min(available, free), holds_frames)


def _resident_bytes() -> int:
    """Return the resident memory of this process; 0 on systems without /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def _memory_advice(amount: int, device: torch.device, zoom: float | None) -> str:
    """Return advice for insufficient memory; `amount` bytes would suffice beside what the process holds."""
    inputs = "the images or the tiles" if zoom is None else "the images, the tiles or the zoom"
    free = free_bytes(device)
    if free is not None and amount > free:
        return f"make {inputs} smaller, or close other programs"
    resident = _resident_bytes() if device.type == "cpu" else 0
    tenths = math.ceil((amount + resident) * MEMORY_MARGIN / 1e8)
    return f"make {inputs} smaller, or allow more memory, such as {tenths / 10:g}GB"
