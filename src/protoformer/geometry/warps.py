"""Moving images and flows along a flow."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def pixel_grid(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Coordinates of every pixel center, (x right, y down) in pixels: 2 x height x width, float32."""
    y = torch.arange(height, device=device, dtype=torch.float32)
    x = torch.arange(width, device=device, dtype=torch.float32)
    return torch.stack((x.expand(height, width), y[:, None].expand(height, width)))


def grid_shape(count: int) -> tuple[int, int]:
    """The most nearly square (rows, columns) with rows * columns == count and rows <= columns.

    100 is 10 x 10, 10 is 2 x 5, 50 is 5 x 10, 200 is 10 x 20; a prime number is one row.
    """
    if count < 1:
        raise ValueError(f"a grid needs at least one cell, not {count}")
    rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)
    return rows, count // rows


def cells(length: int, count: int, device: torch.device | None = None) -> Tensor:
    """Which of `length` positions lie in which of `count` bands: count x length, bool.

    The bands are those of adaptive average pooling: band i is floor(i length / count) .. ceil((i + 1) length / count),
    so neighbors share a position where the division leaves a remainder.
    """
    band = torch.arange(count, device=device)[:, None]
    position = torch.arange(length, device=device)
    start = torch.div(band * length, count, rounding_mode="floor")
    end = torch.div((band + 1) * length + count - 1, count, rounding_mode="floor")
    return (position >= start) & (position < end)


def cell_of_pixel(size: tuple[int, int], grid: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """The one cell, 0 .. rows * columns - 1, that each pixel lies in: height * width, int64."""
    (height, width), (rows, columns) = size, grid
    row = torch.div(torch.arange(height, device=device) * rows, height, rounding_mode="floor")
    column = torch.div(torch.arange(width, device=device) * columns, width, rounding_mode="floor")
    return (row[:, None] * columns + column).flatten()


def sample(image: Tensor, positions: Tensor, beyond: str = "zeros") -> Tensor:
    """Bilinear samples of an image; beyond it there are "zeros", or its "border" goes on.

    image: N x C x H x W; positions: N x 2 x h x w, (x, y) in the image's pixels; returns N x C x h x w.
    """
    height, width = image.shape[-2:]
    normalized = torch.stack([(2 * positions[:, axis] + 1) / side - 1 for axis, side in enumerate((width, height))], -1)
    return F.grid_sample(image, normalized, padding_mode=beyond, align_corners=False)


def warp_back(second: Tensor, flow: Tensor) -> Tensor:
    """The second image seen from the first: pixel p of the result is second(p + flow(p)), N x C x H x W."""
    height, width = flow.shape[-2:]
    return sample(second, pixel_grid(height, width, flow.device) + flow)


def inside_image(positions: Tensor, height: int, width: int) -> Tensor:
    """Whether positions (N x 2 x h x w, pixels) lie on an image of that size: N x 1 x h x w, bool."""
    x, y = positions[:, :1], positions[:, 1:]
    return (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)


def occlusion_by_consistency(forward: Tensor, backward: Tensor) -> Tensor:
    """Pixels of the first image that the second does not show, N x 1 x H x W, bool.

    A visible pixel comes back to where it started: |f(p) + b(p + f(p))|^2 <= 0.01 (|f|^2 + |b|^2) + 0.5, the criterion
    of Sundaram, Brox and Keutzer (2010). Pixels that leave the image count as occluded. Flows: N x 2 x H x W, pixels.
    """
    height, width = forward.shape[-2:]
    target = pixel_grid(height, width, forward.device) + forward
    returned = sample(backward, target)
    length = forward.square().sum(dim=1, keepdim=True) + returned.square().sum(dim=1, keepdim=True)
    gap = (forward + returned).square().sum(dim=1, keepdim=True)
    return (gap > 0.01 * length + 0.5) | ~inside_image(target, height, width)


def carry_forward(flow: Tensor) -> Tensor:
    """The flow of the next pair, if everything goes on moving as it does: a start for its estimation.

    Every vector is moved along itself to the nearest pixel (the longest wins where several meet, as near things move
    most); pixels that nothing reached take the mean of their known neighbors, ring by ring. N x 2 x H x W, pixels.
    """
    batch, _, height, width = flow.shape
    target = (pixel_grid(height, width, flow.device) + flow).round()
    lands = inside_image(target, height, width).flatten()
    row = torch.arange(batch, device=flow.device).view(-1, 1, 1) * height * width
    index = (target[:, 1].long() * width + target[:, 0].long() + row).flatten()[lands]
    vectors = flow.permute(0, 2, 3, 1).reshape(-1, 2)[lands]
    # Of writes to one index the last stays only by chance on a GPU; so find the longest vector first, then write that.
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


def _fill_from_neighbors(field: Tensor, known: Tensor) -> Tensor:
    """Spread known values (known: N x 1 x H x W, bool) into the unknown pixels; zero where nothing is known at all."""
    mask = known.to(field.dtype)
    while bool((mask.amax(dim=(1, 2, 3)) > mask.amin(dim=(1, 2, 3))).any()):
        share = F.avg_pool2d(mask, 3, stride=1, padding=1)
        mean = F.avg_pool2d(field * mask, 3, stride=1, padding=1) / share.clamp_min(1e-6)
        field = torch.where(mask > 0, field, mean)
        mask = (share > 0).to(field.dtype)
    return field


def rotation(vector: Tensor) -> Tensor:
    """The turn about a vector by its length in radians, right-handed: ... x 3 to ... x 3 x 3."""
    angle = vector.norm(dim=-1, keepdim=True)[..., None]
    x, y, z = (vector / angle[..., 0].clamp_min(1e-30)).unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), dim=-1).unflatten(-1, (3, 3))
    identity = torch.eye(3, dtype=vector.dtype, device=vector.device)
    turned: Tensor = identity + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)
    return turned
