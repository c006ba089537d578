"""Padding an image to a size that a network takes, and cropping what comes out."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """How many pixels to add at the bottom and on the right, by repeating the last row and column.

    Padding there alone keeps every pixel's coordinates as they are.
    """

    height: int
    width: int
    bottom: int
    right: int

    @classmethod
    def to_multiple(cls, height: int, width: int, multiple: int, least: int = 1) -> "Padding":
        """Padding of a height x width image to the next multiple, and to at least `least` pixels a side."""
        # Not `max`: a side that a graph leaves open is known to reach `least` or not, and its maximum stays a formula.
        grown = (least if side < least else side for side in (height, width))
        padded_height, padded_width = ((side + multiple - 1) // multiple * multiple for side in grown)
        return cls(height, width, padded_height - height, padded_width - width)

    def pad(self, images: Tensor) -> Tensor:
        """N x C x height x width to N x C x (height + bottom) x (width + right)."""
        if _surely_none(self.bottom) and _surely_none(self.right):
            return images
        return F.pad(images, (0, self.right, 0, self.bottom), mode="replicate")

    def crop(self, maps: Tensor, stride: int = 1) -> Tensor:
        """Cut maps of the padded image, at 1/stride of its size, to those of the image itself (rounded up)."""
        height, width = -(-self.height // stride), -(-self.width // stride)
        if isinstance(height, int) and isinstance(width, int):
            return maps[..., :height, :width]
        if _surely_none(self.bottom) and _surely_none(self.right):
            return maps
        # Copied: how a part of a map lies in memory would depend on the size that the graph leaves open.
        rows, columns = torch.arange(height, device=maps.device), torch.arange(width, device=maps.device)
        return maps.index_select(-2, rows).index_select(-1, columns)


def _surely_none(pixels: int) -> bool:
    """Whether no pixels are added, where that is known: of a size that a graph leaves open it may not be."""
    if isinstance(pixels, int):
        return pixels == 0
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(pixels == 0)
