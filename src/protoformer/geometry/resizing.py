"""Resizing, padding and upsampling of images, flows and maps."""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Points = TypeVar("Points", float, Tensor)


def limited_size(size: tuple[int, int], pixels: int) -> tuple[int, int]:
    """Return the (height, width) of an image reduced to about `pixels` pixels at most; it is never enlarged."""
    height, width = size
    scale = min(1.0, math.sqrt(pixels / (height * width)))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrink(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Reduce images, N x 3 x H x W in [0, 1], to (height, width) with antialiasing."""
    if (images.shape[2], images.shape[3]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)


def shrink_position(position: Points, before: int, after: int) -> Points:
    """Convert a pixel coordinate along a side of `before` pixels to its coordinate after resizing to `after` pixels.

    The center of the first pixel is 0. The edges of the image, half a pixel outside the outer centers, stay aligned.
    """
    return (position + 0.5) * after / before - 0.5


MAX_ENLARGEMENT = 2.0
"""Maximum factor per side; further enlargement adds no detail."""
MIN_ENLARGEMENT = 1.1
"""Minimum factor per side; below it resampling loses more than it gains."""
MULTIPLE_TOLERANCE = 0.05
"""Relative change of a side that is accepted to make it a multiple."""


def enlarged_size(size: tuple[int, int], pixels: int, multiple: int = 1) -> tuple[int, int]:
    """Return the (height, width) of an image enlarged to about a number of pixels, at most twice per side.

    It is never reduced. Each side is rounded to a multiple of `multiple`, to avoid padding, if one lies within 5 % of
    the exact side and within twice the original; else it is rounded to a pixel.
    """
    scale = min(MAX_ENLARGEMENT, math.sqrt(pixels / (size[0] * size[1])))
    if scale < MIN_ENLARGEMENT:
        return size
    return _enlarged_side(size[0], scale, multiple), _enlarged_side(size[1], scale, multiple)


def _enlarged_side(side: int, scale: float, multiple: int) -> int:
    exact = scale * side
    rounded = multiple * round(exact / multiple)
    near = abs(rounded - exact) <= MULTIPLE_TOLERANCE * exact and rounded <= MAX_ENLARGEMENT * side
    return rounded if near else round(exact)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images, N x 3 x H x W in [0, 1], to (height, width): antialiased to fewer pixels, bicubic to more."""
    height, width = images.shape[2:]
    if size[0] * size[1] <= height * width:
        return shrink(images, size)
    return F.interpolate(images, size, mode="bicubic", align_corners=False).clamp(0, 1)


def resize_flow(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a flow, N x C x H x W, to (height, width) and scale its vectors.

    The first two channels are (u, v) in pixels; further channels are only resized.
    """
    height, width = flow.shape[2:]
    if (height, width) == size:
        return flow
    # Bilinear interpolation to less than half the size would leave out pixels.
    antialias = height > 2 * size[0] or width > 2 * size[1]
    resized = F.interpolate(flow, size, mode="bilinear", align_corners=False, antialias=antialias)
    resized[:, 0] *= size[1] / width
    resized[:, 1] *= size[0] / height
    return resized


def convex_upsample(field: Tensor, weights: Tensor, factor: int = 8) -> Tensor:
    """Upsample N x C x H x W by convex combinations of the 3x3 coarse neighbors of each fine pixel (as in RAFT).

    `weights` are logits, N x (9 factor^2) x H x W. At the border the outermost value is repeated, so that a constant
    field stays constant.
    """
    batch, channels, height, width = field.shape
    probabilities = weights.view(batch, 1, 9, factor, factor, height, width).float().softmax(dim=2)
    neighbors = F.unfold(F.pad(field.float(), (1, 1, 1, 1), mode="replicate"), kernel_size=3)
    neighbors = neighbors.view(batch, channels, 9, 1, 1, height, width)
    fine = (probabilities * neighbors).sum(dim=2)
    return fine.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, factor * height, factor * width)


def upsample_2x(maps: Tensor) -> Tensor:
    """Upsample maps bilinearly: N x C x H x W to N x C x 2H x 2W.

    Equal to `F.interpolate` with align_corners=False, whose gradient is not deterministic on a GPU.
    """
    for dim in (2, 3):
        length = maps.shape[dim]
        before = torch.cat((maps.narrow(dim, 0, 1), maps.narrow(dim, 0, length - 1)), dim)
        after = torch.cat((maps.narrow(dim, 1, length - 1), maps.narrow(dim, length - 1, 1)), dim)
        center = 0.75 * maps
        maps = torch.stack((center + 0.25 * before, center + 0.25 * after), dim + 1).flatten(dim, dim + 1)
    return maps


@dataclass(frozen=True)
class Padding:
    """Rows at the bottom and columns on the right that repeat the last ones of an image of height x width.

    Padding on these sides only leaves the coordinates of all pixels unchanged.
    """

    height: int
    width: int
    bottom: int
    right: int

    @classmethod
    def to_multiple(cls, height: int, width: int, multiple: int, min_side: int = 1) -> "Padding":
        """Pad both sides to a multiple of `multiple`, and to at least `min_side` pixels."""
        # Not `max`: on a symbolic side of an exported graph the comparison is decided, but `max` stays an expression.
        grown = (min_side if side < min_side else side for side in (height, width))
        padded_height, padded_width = ((side + multiple - 1) // multiple * multiple for side in grown)
        return cls(height, width, padded_height - height, padded_width - width)

    def pad(self, images: Tensor) -> Tensor:
        """Pad images: N x C x height x width to N x C x (height + bottom) x (width + right)."""
        if _is_surely_zero(self.bottom) and _is_surely_zero(self.right):
            return images
        return F.pad(images, (0, self.right, 0, self.bottom), mode="replicate")

    def crop(self, maps: Tensor, stride: int = 1) -> Tensor:
        """Crop maps of the padded image, at 1/stride of its size, to the size of the image (rounded up)."""
        height, width = -(-self.height // stride), -(-self.width // stride)
        if isinstance(height, int) and isinstance(width, int):
            return maps[..., :height, :width]
        if _is_surely_zero(self.bottom) and _is_surely_zero(self.right):
            return maps
        # Copied, because the strides of a view would depend on the symbolic size of an exported graph.
        rows, columns = torch.arange(height, device=maps.device), torch.arange(width, device=maps.device)
        return maps.index_select(-2, rows).index_select(-1, columns)


def _is_surely_zero(pixels: int) -> bool:
    """Return whether a number of pixels is 0; False if it is symbolic and cannot be decided."""
    if isinstance(pixels, int):
        return pixels == 0
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(pixels == 0)
