"""Padding an image to a size that a network takes, and cropping what comes out."""

from dataclasses import dataclass

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
        padded_height, padded_width = (-(-max(side, least) // multiple) * multiple for side in (height, width))
        return cls(height, width, padded_height - height, padded_width - width)

    def pad(self, images: Tensor) -> Tensor:
        """N x C x height x width to N x C x (height + bottom) x (width + right)."""
        if not (self.bottom or self.right):
            return images
        return F.pad(images, (0, self.right, 0, self.bottom), mode="replicate")

    def crop(self, maps: Tensor, stride: int = 1) -> Tensor:
        """Cut maps of the padded image, at 1/stride of its size, to those of the image itself (rounded up)."""
        return maps[..., : -(-self.height // stride), : -(-self.width // stride)]
