"""Upsampling by learned weights."""

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
