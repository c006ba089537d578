"""Block sizes of the Triton kernels: pixels, warps, pipeline stages, programs per multiprocessor.

They change the speed, and of the result only the order of sums; `benchmarks/tiles.py` searches for good ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

PRECISIONS = {torch.float32: "ieee", torch.bfloat16: "tf32", torch.float16: "tf32"}
"""Precision of float32 matrix products in a kernel, by the dtype of its inputs."""
CPU_MULTIPROCESSORS = 4
"""Multiprocessors to assume without a GPU, that is, in Triton's interpreter."""


@dataclass(frozen=True)
class Tile:
    """How a kernel splits its work.

    Attributes:
        pixels: Pixels of a block.
        warps: Warps of a program.
        stages: Loads in flight, the stages of the pipeline.
        programs: Programs per multiprocessor, for kernels that sum over pixels.
    """

    pixels: int
    warps: int
    stages: int
    programs: int


TILES: dict[tuple[str, bool, int], Tile] = {
    # (kernel, half precision, K or, for kernels without prototypes, channels, padded to a power of two)
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
    # kernel: (half precision, float32)
    "sums": (Tile(64, 4, 2, 4), Tile(32, 4, 2, 4)),
    "sums_backward": (Tile(64, 4, 1, 4), Tile(32, 4, 1, 4)),
    "synchronize": (Tile(64, 4, 2, 0), Tile(64, 4, 2, 0)),
    "synchronize_backward": (Tile(64, 4, 2, 4), Tile(32, 4, 1, 4)),
    "project": (Tile(64, 4, 1, 0), Tile(32, 4, 1, 0)),
    "mlp": (Tile(64, 4, 2, 0), Tile(32, 4, 1, 0)),
    "mlp_tokens": (Tile(64, 4, 1, 0), Tile(32, 4, 1, 0)),
    "mlp_weights": (Tile(64, 8, 2, 1), Tile(32, 4, 1, 1)),
}


_SMALLER_TILES: dict[tuple[str, Tile, torch.dtype, int, int], Tile] = {}
"""Replacements of tiles that are too large for the device."""


def padded(size: int) -> int:
    """Return the smallest power of two that is at least `size` and 16, the smallest side of a matrix unit."""
    return max(16, 1 << (size - 1).bit_length())


def tile_for(kernel: str, dtype: torch.dtype, size: int) -> Tile:
    """Return the tile of a kernel; size: prototypes or channels, as in the keys of `TILES`."""
    half = dtype != torch.float32
    return TILES.get((kernel, half, padded(size)), DEFAULTS[kernel][0 if half else 1])


def split(pixels: int, rows: int, tile: Tile, device: torch.device) -> tuple[int, int]:
    """Split the pixels of each of `rows` images and heads into parts; return their number and pixels per part.

    The split depends on the shape and the device alone, so that two runs have the same partial sums.
    """
    multiprocessors = CPU_MULTIPROCESSORS
    if device.type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = math.ceil(pixels / tile.pixels)
    parts = min(blocks, math.ceil(multiprocessors * tile.programs / rows))
    blocks_per_part = math.ceil(blocks / parts)
    return math.ceil(blocks / blocks_per_part), blocks_per_part * tile.pixels


def launch(run: Callable[[Tile], Result], kernel: str, dtype: torch.dtype, size: int, width: int) -> Result:
    """Run with the tile of a kernel, or with the largest smaller one that fits the registers and shared memory.

    Args:
        run: Launches the kernel with a tile.
        kernel: Name of the kernel in `DEFAULTS`.
        dtype: Precision of the inputs.
        size: Prototypes or channels, as in the keys of `TILES`.
        width: Other size that the memory of a block depends on.
    """
    from triton.runtime.errors import OutOfResources

    default = tile_for(kernel, dtype, size)
    key = (kernel, default, dtype, padded(size), padded(width))
    tile = _SMALLER_TILES.get(key, default)
    while True:
        try:
            return run(tile)
        except OutOfResources:
            if tile.pixels == 16 and tile.stages == 1:
                raise
            tile = replace(tile, stages=1) if tile.stages > 1 else replace(tile, pixels=tile.pixels // 2)
            _SMALLER_TILES[key] = tile


def fits(kernel: str, dtype: torch.dtype, size: int) -> bool:
    """Return whether the tile of a kernel has never been too large for this device, at any width."""
    tile = tile_for(kernel, dtype, size)
    return not any(key[:3] == (kernel, tile, dtype) for key in _SMALLER_TILES)


def with_contiguous_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with a contiguous last dimension, which the kernels require; a copy only if necessary."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
