"""Small images made larger, so that thin things are seen, and what was found in them brought back to their own size."""

import math

import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.shrinking import shrunk

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


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images, N x 3 x H x W in [0, 1], at another size: smaller, or larger by cubic interpolation."""
    height, width = images.shape[2:]
    if size[0] * size[1] <= height * width:
        return shrunk(images, size)
    return F.interpolate(images, size, mode="bicubic", align_corners=False).clamp(0, 1)


def resized_flow(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """A flow, N x 2 x H x W or with further maps below it, of the same images at another size, in pixels of that size.

    The edges of an image stay its edges, so vectors have only to be as much longer or shorter as the sides are.
    """
    height, width = flow.shape[2:]
    if (height, width) == size:
        return flow
    # At half the size, the four neighbours of a place are all that there is; at less, some would not be heard.
    averaged = height > 2 * size[0] or width > 2 * size[1]
    moved = F.interpolate(flow, size, mode="bilinear", align_corners=False, antialias=averaged)
    moved[:, 0] *= size[1] / width
    moved[:, 1] *= size[0] / height
    return moved
