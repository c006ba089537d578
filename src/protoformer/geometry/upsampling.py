"""Upsampling, smoothly or by learned weights."""

import torch
import torch.nn.functional as F
from torch import Tensor


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


def doubled(maps: Tensor) -> Tensor:
    """N x C x H x W to N x C x 2H x 2W, bilinear between the pixels' centres; the outermost values are repeated.

    As torch's own, whose gradient is not the same twice on a GPU.
    """
    for dim in (2, 3):
        length = maps.shape[dim]
        before = torch.cat((maps.narrow(dim, 0, 1), maps.narrow(dim, 0, length - 1)), dim)
        after = torch.cat((maps.narrow(dim, 1, length - 1), maps.narrow(dim, length - 1, 1)), dim)
        near = 0.75 * maps
        maps = torch.stack((near + 0.25 * before, near + 0.25 * after), dim + 1).flatten(dim, dim + 1)
    return maps
