"""Moving images and flows along a flow."""

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.grids import pixel_grid


def sample(image: Tensor, positions: Tensor, beyond: str = "zeros") -> Tensor:
    """Bilinear samples of an image; beyond it there are "zeros", or its "border" goes on.

    image: N x C x H x W; positions: N x 2 x h x w, (x, y) in the image's pixels; returns N x C x h x w.
    """
    height, width = image.shape[-2:]
    normalised = torch.stack([(2 * positions[:, axis] + 1) / side - 1 for axis, side in enumerate((width, height))], -1)
    return F.grid_sample(image, normalised, padding_mode=beyond, align_corners=False)


def warp_back(second: Tensor, flow: Tensor) -> Tensor:
    """The second image seen from the first: pixel p of the result is second(p + flow(p)), N x C x H x W."""
    height, width = flow.shape[-2:]
    return sample(second, pixel_grid(height, width, flow.device) + flow)


def inside(positions: Tensor, height: int, width: int) -> Tensor:
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
    return (gap > 0.01 * length + 0.5) | ~inside(target, height, width)


def carry_forward(flow: Tensor) -> Tensor:
    """The flow of the next pair, if everything goes on moving as it does: a start for its estimation.

    Every vector is moved along itself to the nearest pixel (the longest wins where several meet, as near things move
    most); pixels that nothing reached take the mean of their known neighbours, ring by ring. N x 2 x H x W, pixels.
    """
    batch, _, height, width = flow.shape
    target = (pixel_grid(height, width, flow.device) + flow).round()
    lands = inside(target, height, width).flatten()
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
    return _fill_from_neighbours(carried, count.view(batch, 1, height, width) > 0)


def _fill_from_neighbours(field: Tensor, known: Tensor) -> Tensor:
    """Spread known values (known: N x 1 x H x W, bool) into the unknown pixels; zero where nothing is known at all."""
    mask = known.to(field.dtype)
    while bool((mask.amax(dim=(1, 2, 3)) > mask.amin(dim=(1, 2, 3))).any()):
        share = F.avg_pool2d(mask, 3, stride=1, padding=1)
        mean = F.avg_pool2d(field * mask, 3, stride=1, padding=1) / share.clamp_min(1e-6)
        field = torch.where(mask > 0, field, mean)
        mask = (share > 0).to(field.dtype)
    return field
