"""Large images made smaller, so that a thing is as many pixels wide whatever camera took it."""

import math
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor

Places = TypeVar("Places", float, Tensor)


def shrunk_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """The (height, width) of an image of a size once it has no more than about so many pixels; none is enlarged."""
    height, width = size
    scale = min(1.0, math.sqrt(pixels / (height * width)))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images, N x 3 x H x W in [0, 1], at a size not larger than their own; every pixel is heard."""
    if (images.shape[2], images.shape[3]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)


def shrunk_position(position: Places, before: int, after: int) -> Places:
    """Where a place along a side of so many pixels lies once there are fewer, the centre of the first pixel being 0.

    It is the edges of an image that stay its edges, half a pixel outside the centres of its outer pixels.
    """
    return (position + 0.5) * after / before - 0.5
