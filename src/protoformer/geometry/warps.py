"""Pixel grids, sampling, warping along a flow, and rotations."""

import math

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
