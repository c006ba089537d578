"""Large images in windows that overlap, and their results put together again."""

from collections.abc import Callable

import torch
from torch import Tensor

from protoformer.errors import InputError

PAPER_TILE = (432, 960)
"""Height and width of the windows that the paper evaluates with."""
LEAST_OVERLAP = 20
SPREAD = 0.05
"""Standard deviation of the blending weights, as a share of the window: at the paper's size, seams fade over 10 px."""

Window = tuple[slice, slice]


def starts(length: int, window: int, overlap: int = LEAST_OVERLAP) -> list[int]:
    """Where windows begin along a side: each overlaps the one before by at least `overlap`, the last ends flush."""
    if window >= length:
        return [0]
    if window <= overlap:
        raise InputError(f"a window of {window} pixels cannot overlap the next by {overlap}; choose larger ones.")
    begins = list(range(0, length - window, window - overlap))
    return [*begins, length - window]


def windows(size: tuple[int, int], tile: tuple[int, int], overlap: int = LEAST_OVERLAP) -> list[Window]:
    """All windows of a tile's size on an image, row by row; a side shorter than the tile is covered by one window."""
    (height, width), (tile_height, tile_width) = size, tile
    return [
        (slice(top, min(top + tile_height, height)), slice(left, min(left + tile_width, width)))
        for top in starts(height, tile_height, overlap)
        for left in starts(width, tile_width, overlap)
    ]


def blending_weights(height: int, width: int) -> Tensor:
    """A Gaussian of the distance to the window's centre, in shares of its sides: height x width, float64, positive."""
    y = (torch.arange(height, dtype=torch.float64) + 0.5) / height - 0.5
    x = (torch.arange(width, dtype=torch.float64) + 0.5) / width - 0.5
    return torch.exp(-(y[:, None].square() + x.square()) / (2 * SPREAD**2))


class Blend:
    """A map of the whole, put together from maps of its windows."""

    def __init__(self, size: tuple[int, int]) -> None:
        """size: (height, width) of the whole."""
        self.size = size
        self._totals = torch.zeros(0, *size, dtype=torch.float64)
        self._mass = torch.zeros(size, dtype=torch.float64)

    def add(self, window: Window, part: Tensor) -> None:
        """Take in what is said of a window, C x h x w."""
        if not len(self._totals):
            self._totals = torch.zeros(len(part), *self.size, dtype=torch.float64)
        weights = blending_weights(part.shape[-2], part.shape[-1])
        self._totals[:, *window] += weights * part.double().cpu()
        self._mass[window] += weights

    def whole(self) -> Tensor:
        """The map of the whole, C x H x W, float32; after this the blend is used up."""
        return self._totals.div_(self._mass).float()


def in_tiles(size: tuple[int, int], tile: tuple[int, int], predict: Callable[[Window], Tensor]) -> Tensor:
    """Blend what `predict` says of every window (C x h x w) into one map of the whole, C x H x W, float32."""
    blend = Blend(size)
    for window in windows(size, tile):
        blend.add(window, predict(window))
    return blend.whole()
