"""Boxes (x, y, w, h): top-left corner and size, in pixels, as floats on a continuous plane."""

import torch
from torch import Tensor


def box_centres(boxes: Tensor) -> Tensor:
    """... x 4 boxes to ... x 2 centres (x, y), pixels."""
    return boxes[..., :2] + boxes[..., 2:] / 2


def box_overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union, 0 .. 1, of the boxes of two lists taken pair by pair: ... x 4 and ... x 4 to ...

    A box of negative size has none, and two boxes without area overlap by 0.
    """
    size, other_size = first[..., 2:].clamp_min(0), second[..., 2:].clamp_min(0)
    start = torch.maximum(first[..., :2], second[..., :2])
    end = torch.minimum(first[..., :2] + size, second[..., :2] + other_size)
    shared = (end - start).clamp_min(0).prod(dim=-1)
    union = size.prod(dim=-1) + other_size.prod(dim=-1) - shared
    # Rounding of x + w - x may make a box larger than itself.
    return torch.where(union > 0, shared / union, torch.zeros_like(union)).clamp_max(1)
