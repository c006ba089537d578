"""Pixel grids, sampling, warping along a flow, rotations, resizing and padding."""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor


def pixel_grid(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Return the coordinates of all pixel centers, (x right, y down) in pixels: 2 x height x width, float32."""
    y = torch.arange(height, device=device, dtype=torch.float32)
    x = torch.arange(width, device=device, dtype=torch.float32)
    return torch.stack((x.expand(height, width), y[:, None].expand(height, width)))


def grid_shape(count: int) -> tuple[int, int]:
    """Return the most nearly square (rows, columns) with rows * columns == count and rows <= columns.

    100 is 10 x 10, 10 is 2 x 5, 50 is 5 x 10, 200 is 10 x 20; a prime number is one row.
    """
    if count < 1:
        raise ValueError(f"a grid needs at least one cell, not {count}")
    rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)
    return rows, count // rows


def cells(length: int, count: int, device: torch.device | None = None) -> Tensor:
    """Return which of `length` positions lie in which of `count` bins: count x length, bool.

    The bins are those of adaptive average pooling: bin i is floor(i length / count) .. ceil((i + 1) length / count), so
    neighboring bins share a position if the division leaves a remainder.
    """
    bins = torch.arange(count, device=device)[:, None]
    position = torch.arange(length, device=device)
    start = torch.div(bins * length, count, rounding_mode="floor")
    end = torch.div((bins + 1) * length + count - 1, count, rounding_mode="floor")
    return (position >= start) & (position < end)


def cell_of_pixel(size: tuple[int, int], grid: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Return which cell of a (rows, columns) grid, numbered row by row, each pixel lies in: height * width, int64."""
    (height, width), (rows, columns) = size, grid
    row = torch.div(torch.arange(height, device=device) * rows, height, rounding_mode="floor")
    column = torch.div(torch.arange(width, device=device) * columns, width, rounding_mode="floor")
    return (row[:, None] * columns + column).flatten()


def sample(image: Tensor, positions: Tensor, padding_mode: str = "zeros") -> Tensor:
    """Sample an image, N x C x H x W, bilinearly at positions, N x 2 x h x w, (x, y) in its pixels: N x C x h x w.

    Outside the image values are 0, or those of the border with the padding mode "border".
    """
    height, width = image.shape[-2:]
    normalized = torch.stack([(2 * positions[:, axis] + 1) / side - 1 for axis, side in enumerate((width, height))], -1)
    return F.grid_sample(image, normalized, padding_mode=padding_mode, align_corners=False)


def warp_back(second: Tensor, flow: Tensor) -> Tensor:
    """Warp the second image, N x C x H x W, to the first: pixel p of the result is second(p + flow(p)).

    `flow` is N x 2 x H x W, pixels, from the first image to the second; zero where it leads outside the second image.
    """
    height, width = flow.shape[-2:]
    return sample(second, pixel_grid(height, width, flow.device) + flow)


def inside_image(positions: Tensor, height: int, width: int) -> Tensor:
    """Return whether positions, N x 2 x h x w in pixels, lie inside an image: N x 1 x h x w, bool."""
    x, y = positions[:, :1], positions[:, 1:]
    return (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)


def occlusion_by_consistency(forward: Tensor, backward: Tensor) -> Tensor:
    """Estimate occlusion by the forward-backward consistency check of Sundaram, Brox and Keutzer (2010).

    The flows, N x 2 x H x W, are those from the first image to the second and back. A pixel of the first image is
    visible if |f(p) + b(p + f(p))|^2 <= 0.01 (|f|^2 + |b|^2) + 0.5. Pixels that leave the image count as occluded. N x
    1 x H x W, bool.
    """
    height, width = forward.shape[-2:]
    target = pixel_grid(height, width, forward.device) + forward
    backward_at_target = sample(backward, target)
    length = forward.square().sum(dim=1, keepdim=True) + backward_at_target.square().sum(dim=1, keepdim=True)
    error = (forward + backward_at_target).square().sum(dim=1, keepdim=True)
    return (error > 0.01 * length + 0.5) | ~inside_image(target, height, width)


def carry_forward(flow: Tensor) -> Tensor:
    """Predict the flow of the next pair by constant motion, to initialize its estimation: N x 2 x H x W, pixels.

    Each vector is splatted along itself to the nearest pixel. If several meet, the longest wins, because near objects
    move most. Holes are filled with the mean of their neighbors, ring by ring.
    """
    batch, _, height, width = flow.shape
    target = (pixel_grid(height, width, flow.device) + flow).round()
    inside = inside_image(target, height, width).flatten()
    row = torch.arange(batch, device=flow.device).view(-1, 1, 1) * height * width
    index = (target[:, 1].long() * width + target[:, 0].long() + row).flatten()[inside]
    vectors = flow.permute(0, 2, 3, 1).reshape(-1, 2)[inside]
    # Concurrent writes to one index are not deterministic on a GPU, so the longest vector is determined first.
    length = vectors.square().sum(dim=1)
    longest = torch.full((batch * height * width,), -1.0, device=flow.device, dtype=flow.dtype)
    longest = longest.scatter_reduce(0, index, length, reduce="amax")
    winner = length == longest[index]
    carried = torch.zeros(batch * height * width, 2, device=flow.device, dtype=flow.dtype)
    count = torch.zeros(batch * height * width, 1, device=flow.device, dtype=flow.dtype)
    carried = carried.index_add(0, index[winner], vectors[winner])
    count = count.index_add(0, index[winner], torch.ones_like(vectors[winner][:, :1]))
    carried = (carried / count.clamp_min(1)).view(batch, height, width, 2).permute(0, 3, 1, 2)
    return _fill_from_neighbors(carried, count.view(batch, 1, height, width) > 0)


def _fill_from_neighbors(field: Tensor, valid: Tensor) -> Tensor:
    """Fill invalid pixels (valid: N x 1 x H x W, bool) from their neighbors; zero if no pixel is valid."""
    mask = valid.to(field.dtype)
    while bool((mask.amax(dim=(1, 2, 3)) > mask.amin(dim=(1, 2, 3))).any()):
        coverage = F.avg_pool2d(mask, 3, stride=1, padding=1)
        mean = F.avg_pool2d(field * mask, 3, stride=1, padding=1) / coverage.clamp_min(1e-6)
        field = torch.where(mask > 0, field, mean)
        mask = (coverage > 0).to(field.dtype)
    return field


def rotation(vector: Tensor) -> Tensor:
    """Convert rotation vectors (axis times angle in radians, right-handed) to matrices: ... x 3 to ... x 3 x 3."""
    angle = vector.norm(dim=-1, keepdim=True)[..., None]
    x, y, z = (vector / angle[..., 0].clamp_min(1e-30)).unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), dim=-1).unflatten(-1, (3, 3))
    identity = torch.eye(3, dtype=vector.dtype, device=vector.device)
    matrix: Tensor = identity + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)
    return matrix


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
