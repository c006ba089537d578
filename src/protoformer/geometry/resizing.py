"""Small images made larger, so that thin things are seen, and what was found in them brought back to their own size."""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Points = TypeVar("Points", float, Tensor)


def limited_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """The (height, width) of an image of a size once it has no more than about so many pixels; none is enlarged."""
    height, width = size
    scale = min(1.0, math.sqrt(pixels / (height * width)))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrink(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images, N x 3 x H x W in [0, 1], at a size not larger than their own; every pixel is heard."""
    if (images.shape[2], images.shape[3]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)


def shrink_position(position: Points, before: int, after: int) -> Points:
    """Where a place along a side of so many pixels lies once there are fewer, the center of the first pixel being 0.

    It is the edges of an image that stay its edges, half a pixel outside the centers of its outer pixels.
    """
    return (position + 0.5) * after / before - 0.5


MOST_ENLARGED = 2.0
"""Times a side: beyond that an image shows no more."""
WORTH_ENLARGING = 1.1
"""Times a side: below that it is left as it is, because to be resampled costs it more than it gains."""
NEAR_ENOUGH = 0.05
"""Share of a side by which it may be longer or shorter to be a multiple."""


def enlarged_size(size: tuple[int, int], pixels: int, multiple: int = 1) -> tuple[int, int]:
    """The (height, width) of an image once it has about so many pixels, or twice its sides; none is shrunk.

    A side is a multiple of `multiple`, so that a network pads nothing, where one lies within 5 % of what the side is to
    be and within twice what it was; else it is rounded to a pixel.
    """
    scale = min(MOST_ENLARGED, math.sqrt(pixels / (size[0] * size[1])))
    if scale < WORTH_ENLARGING:
        return size
    return _enlarged_side(size[0], scale, multiple), _enlarged_side(size[1], scale, multiple)


def _enlarged_side(side: int, scale: float, multiple: int) -> int:
    wanted = scale * side
    whole = multiple * round(wanted / multiple)
    near = abs(whole - wanted) <= NEAR_ENOUGH * wanted and whole <= MOST_ENLARGED * side
    return whole if near else round(wanted)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images, N x 3 x H x W in [0, 1], at another size: smaller, or larger by cubic interpolation."""
    height, width = images.shape[2:]
    if size[0] * size[1] <= height * width:
        return shrink(images, size)
    return F.interpolate(images, size, mode="bicubic", align_corners=False).clamp(0, 1)


def resize_flow(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """A flow, N x 2 x H x W or with further maps below it, of the same images at another size, in pixels of that size.

    The edges of an image stay its edges, so vectors have only to be as much longer or shorter as the sides are.
    """
    height, width = flow.shape[2:]
    if (height, width) == size:
        return flow
    # At half the size, the four neighbors of a place are all that there is; at less, some would not be heard.
    averaged = height > 2 * size[0] or width > 2 * size[1]
    moved = F.interpolate(flow, size, mode="bilinear", align_corners=False, antialias=averaged)
    moved[:, 0] *= size[1] / width
    moved[:, 1] *= size[0] / height
    return moved


def convex_upsample(field: Tensor, weights: Tensor, factor: int = 8) -> Tensor:
    """Each fine pixel is a convex combination of the 3x3 coarse pixels around it.

    field: N x C x H x W; weights: N x (9 factor^2) x H x W, logits; returns N x C x (factor H) x (factor W).
    At the border the outermost value is repeated, so a constant field stays constant up to the edge.
    """
    batch, channels, height, width = field.shape
    shares = weights.view(batch, 1, 9, factor, factor, height, width).float().softmax(dim=2)
    around = F.unfold(F.pad(field.float(), (1, 1, 1, 1), mode="replicate"), kernel_size=3)
    around = around.view(batch, channels, 9, 1, 1, height, width)
    fine = (shares * around).sum(dim=2)
    return fine.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, factor * height, factor * width)


def upsample_2x(maps: Tensor) -> Tensor:
    """N x C x H x W to N x C x 2H x 2W, bilinear between the pixels' centers; the outermost values are repeated.

    As torch's own, whose gradient is not the same twice on a GPU.
    """
    for dim in (2, 3):
        length = maps.shape[dim]
        before = torch.cat((maps.narrow(dim, 0, 1), maps.narrow(dim, 0, length - 1)), dim)
        after = torch.cat((maps.narrow(dim, 1, length - 1), maps.narrow(dim, length - 1, 1)), dim)
        near = 0.75 * maps
        maps = torch.stack((near + 0.25 * before, near + 0.25 * after), dim + 1).flatten(dim, dim + 1)
    return maps


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
