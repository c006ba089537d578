"""How the kernels cut their work: pixels a block, warps, stages of the pipeline, programs a multiprocessor.

These numbers change the speed and never the result beyond the order of a sum; `benchmarks/tiles.py` finds good ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

PRECISIONS = {torch.float32: "ieee", torch.bfloat16: "tf32", torch.float16: "tf32"}
"""How products of float32 numbers are made where the inputs are of this precision."""
MULTIPROCESSORS_OF_NOTHING = 4
"""Where there is no GPU, as in Triton's interpreter."""


@dataclass(frozen=True)
class Tile:
    """pixels: of a block. warps: of a program. stages: of the loads in flight. programs: begun for a multiprocessor."""

    pixels: int
    warps: int
    stages: int
    programs: int


TILES: dict[tuple[str, bool, int], Tile] = {
    # (kernel, half precision, K or, where there are no prototypes, channels, padded to a power of two)
    ("sums", True, 16): Tile(128, 4, 3, 8),
    ("sums", True, 32): Tile(128, 4, 3, 8),
    ("sums", True, 64): Tile(128, 4, 3, 4),
    ("sums", True, 128): Tile(128, 4, 3, 3),
    ("sums", True, 256): Tile(128, 8, 2, 2),
    ("sums_backward", True, 16): Tile(128, 4, 2, 8),
    ("sums_backward", True, 32): Tile(128, 4, 2, 8),
    ("sums_backward", True, 64): Tile(64, 4, 2, 4),
    ("sums_backward", True, 128): Tile(128, 8, 2, 6),
    ("sums_backward", True, 256): Tile(64, 8, 1, 2),
    ("synchronize_backward", True, 128): Tile(64, 4, 2, 3),
    ("synchronize_backward", True, 256): Tile(64, 8, 2, 4),
    ("synchronize", True, 256): Tile(64, 8, 2, 0),
    ("synchronize", False, 256): Tile(64, 8, 2, 0),
}
DEFAULTS = {
    # kernel: in half precision, in float32
    "sums": (Tile(64, 4, 2, 4), Tile(32, 4, 2, 4)),
    "sums_backward": (Tile(64, 4, 1, 4), Tile(32, 4, 1, 4)),
    "synchronize": (Tile(64, 4, 2, 0), Tile(64, 4, 2, 0)),
    "synchronize_backward": (Tile(64, 4, 2, 4), Tile(32, 4, 1, 4)),
    "project": (Tile(64, 4, 1, 0), Tile(32, 4, 1, 0)),
    "mlp": (Tile(64, 4, 2, 0), Tile(32, 4, 1, 0)),
    "mlp_tokens": (Tile(64, 4, 1, 0), Tile(32, 4, 1, 0)),
    "mlp_weights": (Tile(64, 8, 2, 1), Tile(32, 4, 1, 1)),
}


_FITTING: dict[tuple[str, Tile, torch.dtype, int, int], Tile] = {}
"""Smaller tiles, where the one of the table is too large for the device."""


def padded(count: int) -> int:
    """The power of two, at least 16, that matrix units work in."""
    return max(16, 1 << (count - 1).bit_length())


def tile_for(kernel: str, dtype: torch.dtype, size: int) -> Tile:
    """The tile that a kernel works in; size: prototypes, or channels, as TILES lists it."""
    half = dtype != torch.float32
    return TILES.get((kernel, half, padded(size)), DEFAULTS[kernel][0 if half else 1])


def split(pixels: int, rows: int, tile: Tile, device: torch.device) -> tuple[int, int]:
    """Into how many parts to cut the pixels of each of `rows` images and heads, and how many pixels each has.

    It depends on the shape and the device alone, so the partial sums of two runs are the same ones.
    """
    units = MULTIPROCESSORS_OF_NOTHING
    if device.type == "cuda":
        units = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = math.ceil(pixels / tile.pixels)
    parts = min(blocks, math.ceil(units * tile.programs / rows))
    each = math.ceil(blocks / parts)
    return math.ceil(blocks / each), each * tile.pixels


def within_resources(run: Callable[[Tile], None], kernel: str, dtype: torch.dtype, size: int, width: int) -> None:
    """Run with the tile of this kernel, or, where the device has no room for it, with the largest smaller one.

    size, width: what the room that is needed depends on, beside the tile.
    """
    from triton.runtime.errors import OutOfResources

    chosen = tile_for(kernel, dtype, size)
    key = (kernel, chosen, dtype, padded(size), padded(width))
    tile = _FITTING.get(key, chosen)
    while True:
        try:
            run(tile)
            break
        except OutOfResources:
            if tile.pixels == 16 and tile.stages == 1:
                raise
            tile = replace(tile, stages=1) if tile.stages > 1 else replace(tile, pixels=tile.pixels // 2)
            _FITTING[key] = tile


def fits(kernel: str, dtype: torch.dtype, size: int) -> bool:
    """Whether the tile of a kernel has never been too large for this device, whatever the width."""
    chosen = tile_for(kernel, dtype, size)
    return not any(key[:3] == (kernel, chosen, dtype) for key in _FITTING)


def in_rows(tensor: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous, which the kernels rely on; that it is already costs nothing."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
