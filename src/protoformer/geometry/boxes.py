"""Boxes (x, y, w, h): top-left corner and size, in pixels, as floats on a continuous plane."""

from dataclasses import dataclass

import torch
from torch import Tensor


def box_centers(boxes: Tensor) -> Tensor:
    """... x 4 boxes to ... x 2 centers (x, y), pixels."""
    return boxes[..., :2] + boxes[..., 2:] / 2


def box_edges(boxes: Tensor) -> Tensor:
    """... x 4 boxes to ... x 4 (left, top, right, bottom), pixels."""
    return torch.cat((boxes[..., :2], boxes[..., :2] + boxes[..., 2:]), dim=-1)


def box_from_edges(edges: Tensor) -> Tensor:
    """The inverse of `box_edges`."""
    return torch.cat((edges[..., :2], edges[..., 2:] - edges[..., :2]), dim=-1)


def enlarge_boxes(boxes: Tensor, factor: float | Tensor) -> Tensor:
    """Boxes of the same centers, their sides times a factor (or one of ... x 1 each)."""
    size = boxes[..., 2:] * factor
    return torch.cat((box_centers(boxes) - size / 2, size), dim=-1)


def clip_boxes(boxes: Tensor, width: float, height: float) -> Tensor:
    """What of the boxes lies on an image; of one that lies beside it, an empty box at the border."""
    x, y = boxes[..., 0::2], boxes[..., 1::2]
    left, right = (each.clamp(0, width) for each in (x[..., 0], x.sum(dim=-1)))
    top, bottom = (each.clamp(0, height) for each in (y[..., 0], y.sum(dim=-1)))
    return torch.stack((left, top, right - left, bottom - top), dim=-1)


def box_iou(first: Tensor, second: Tensor) -> Tensor:
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


def generalized_iou(first: Tensor, second: Tensor) -> Tensor:
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


SAMPLES = 2
"""Samples along each side of a bin of `roi_align`."""


@dataclass(frozen=True)
class Crops:
    """Where N square pieces lie in their images.

    corners: N x 2, the top-left corner, pixels of the image. sides: N, pixels. size: pixels of a side after resampling.
    """

    corners: Tensor
    sides: Tensor
    size: int

    @classmethod
    def around(cls, boxes: Tensor, factor: float | Tensor, size: int) -> "Crops":
        """Pieces in whose middle a box lies, N x 4 (x, y, w, h), and whose side is factor (or N of them) sqrt(w h)."""
        sides = factor * boxes[:, 2:].clamp_min(0).prod(dim=1).sqrt().clamp_min(1)
        return cls(box_centers(boxes) - sides[:, None] / 2, sides, size)

    @property
    def scale(self) -> Tensor:
        """Pixels of the piece to a pixel of the image: N."""
        return self.size / self.sides

    def cut(self, images: Tensor, fill: Tensor) -> Tensor:
        """The pieces, N x C x size x size, of images, N x C x H x W; `fill`, N x C, is what lies around an image.

        A pixel of a piece is the mean of what it covers, and of no less than one pixel of the image: bilinear where a
        piece is enlarged, and without aliasing where it is reduced.
        """
        across = self._weights(self.corners[:, 0], images.shape[3])
        down = self._weights(self.corners[:, 1], images.shape[2])
        around = fill[:, :, None, None]
        return down[:, None] @ (images - around) @ across[:, None].transpose(2, 3) + around

    def points_in(self, points: Tensor) -> Tensor:
        """Points of the image, N x ... x 2 pixels, in pixels of the piece."""
        return (points - _beside(self.corners, points)) * _beside(self.scale[:, None], points)

    def points_out(self, points: Tensor) -> Tensor:
        """The inverse of `points_in`."""
        return points / _beside(self.scale[:, None], points) + _beside(self.corners, points)

    def boxes_in(self, boxes: Tensor) -> Tensor:
        """Boxes of the image, N x 4 (x, y, w, h) pixels, in pixels of the piece."""
        return torch.cat((self.points_in(boxes[:, :2]), boxes[:, 2:] * self.scale[:, None]), dim=1)

    def boxes_out(self, boxes: Tensor) -> Tensor:
        """The inverse of `boxes_in`."""
        return torch.cat((self.points_out(boxes[:, :2]), boxes[:, 2:] / self.scale[:, None]), dim=1)

    def _weights(self, starts: Tensor, length: int) -> Tensor:
        """How much of each of `length` pixels goes into each pixel of a piece: N x size x length.

        A row's sum is the share of what its pixel covers that lies on the image.
        """
        step = (self.sides / self.size)[:, None, None]
        pixel = torch.arange(self.size, device=starts.device, dtype=torch.float32)[:, None] + 0.5
        middle, wide = starts[:, None, None] + step * pixel, step.clamp_min(1)
        place = torch.arange(length, device=starts.device, dtype=torch.float32)
        shared = torch.minimum(middle + wide / 2, place + 1.0) - torch.maximum(middle - wide / 2, place + 0.0)
        return shared.clamp_min(0) / wide


def roi_align(features: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Features inside a box, averaged over a grid of bins; what lies beyond the map is 0.

    features: N x C x H x W; boxes: N x 4, (x, y, w, h) in cells of the map; returns N x C x size x size. A bin is the
    mean of 2 x 2 bilinear samples at the middles of its quarters.
    """
    across = _sampled(boxes[:, 0], boxes[:, 2], features.shape[3], size)
    down = _sampled(boxes[:, 1], boxes[:, 3], features.shape[2], size)
    return down[:, None] @ features @ across[:, None].transpose(2, 3)


def _sampled(starts: Tensor, lengths: Tensor, count: int, bins: int) -> Tensor:
    """Weights of `count` cells in the mean of the bilinear samples of each bin: N x bins x count."""
    place = (torch.arange(SAMPLES * bins, device=starts.device, dtype=torch.float32) + 0.5) / (SAMPLES * bins)
    positions = starts[:, None] + lengths[:, None] * place - 0.5
    cells = torch.arange(count, device=starts.device)
    hats = (1 - (positions[:, :, None] - cells).abs()).clamp_min(0)
    weights: Tensor = hats.unflatten(1, (bins, SAMPLES)).mean(dim=2)
    return weights


def _beside(values: Tensor, points: Tensor) -> Tensor:
    """Values, N x c, in as many dimensions as points, N x ... x 2."""
    return values.view(len(values), *[1] * (points.dim() - 2), -1)
