"""Boxes (x, y, w, h): top-left corner and size, in pixels, as floats on a continuous plane."""

import torch
from torch import Tensor


def box_centres(boxes: Tensor) -> Tensor:
    """... x 4 boxes to ... x 2 centres (x, y), pixels."""
    return boxes[..., :2] + boxes[..., 2:] / 2


def box_edges(boxes: Tensor) -> Tensor:
    """... x 4 boxes to ... x 4 (left, top, right, bottom), pixels."""
    return torch.cat((boxes[..., :2], boxes[..., :2] + boxes[..., 2:]), dim=-1)


def box_of_edges(edges: Tensor) -> Tensor:
    """The inverse of `box_edges`."""
    return torch.cat((edges[..., :2], edges[..., 2:] - edges[..., :2]), dim=-1)


def enlarged(boxes: Tensor, factor: float | Tensor) -> Tensor:
    """Boxes of the same centres, their sides times a factor (or one of ... x 1 each)."""
    size = boxes[..., 2:] * factor
    return torch.cat((box_centres(boxes) - size / 2, size), dim=-1)


def clipped(boxes: Tensor, width: float, height: float) -> Tensor:
    """What of the boxes lies on an image; of one that lies beside it, an empty box at the border."""
    x, y = boxes[..., 0::2], boxes[..., 1::2]
    left, right = (each.clamp(0, width) for each in (x[..., 0], x.sum(dim=-1)))
    top, bottom = (each.clamp(0, height) for each in (y[..., 0], y.sum(dim=-1)))
    return torch.stack((left, top, right - left, bottom - top), dim=-1)


def box_overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union, 0 .. 1, of the boxes of two lists taken pair by pair: ... x 4 and ... x 4 to ...

    A box of negative size has none, and two boxes without area overlap by 0.
    """
    size, other_size = first[..., 2:].clamp_min(0), second[..., 2:].clamp_min(0)
    start = torch.maximum(first[..., :2], second[..., :2])
    end = torch.minimum(first[..., :2] + size, second[..., :2] + other_size)
    shared = _area((end - start).clamp_min(0))
    union = _area(size) + _area(other_size) - shared
    # Rounding of x + w - x may make a box larger than itself.
    return torch.where(union > 0, shared / union, torch.zeros_like(union)).clamp_max(1)


def generalised_overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union less the share of the smallest box around both that neither covers: -1 .. 1.

    It grows as boxes that do not meet come nearer (Rezatofighi et al., 2019). Boxes as in `box_overlap`: ... x 4 and
    ... x 4 to ...; two that have no extent together give -1.
    """
    size, other_size = first[..., 2:].clamp_min(0), second[..., 2:].clamp_min(0)
    end, other_end = first[..., :2] + size, second[..., :2] + other_size
    shared = _area((torch.minimum(end, other_end) - torch.maximum(first[..., :2], second[..., :2])).clamp_min(0))
    union = _area(size) + _area(other_size) - shared
    around = _area(torch.maximum(end, other_end) - torch.minimum(first[..., :2], second[..., :2]))
    least = torch.finfo(union.dtype).eps
    return shared / union.clamp_min(least) + union / around.clamp_min(least) - 1


def _area(size: Tensor) -> Tensor:
    """... x 2 to ...; the gradient of torch's `prod` waits for the device, to see whether a factor is 0."""
    return size[..., 0] * size[..., 1]
