"""Operations on boxes (x, y, w, h): top-left corner and size, float, in continuous pixel coordinates."""

from dataclasses import dataclass

import torch
from torch import Tensor


def box_centers(boxes: Tensor) -> Tensor:
    """Return the centers (x, y) of boxes: ... x 4 to ... x 2, pixels."""
    return boxes[..., :2] + boxes[..., 2:] / 2


def box_edges(boxes: Tensor) -> Tensor:
    """Convert boxes to (left, top, right, bottom): ... x 4 to ... x 4, pixels."""
    return torch.cat((boxes[..., :2], boxes[..., :2] + boxes[..., 2:]), dim=-1)


def box_from_edges(edges: Tensor) -> Tensor:
    """Convert (left, top, right, bottom) to boxes (x, y, w, h): the inverse of `box_edges`."""
    return torch.cat((edges[..., :2], edges[..., 2:] - edges[..., :2]), dim=-1)


def enlarge_boxes(boxes: Tensor, factor: float | Tensor) -> Tensor:
    """Scale boxes, ... x 4 in pixels, about their centers, by one factor or ... x 1 factors: ... x 4."""
    size = boxes[..., 2:] * factor
    return torch.cat((box_centers(boxes) - size / 2, size), dim=-1)


def clip_boxes(boxes: Tensor, width: float, height: float) -> Tensor:
    """Clip boxes, ... x 4, to an image; a box outside it becomes an empty box at the border."""
    x, y = boxes[..., 0::2], boxes[..., 1::2]
    left, right = (edge.clamp(0, width) for edge in (x[..., 0], x.sum(dim=-1)))
    top, bottom = (edge.clamp(0, height) for edge in (y[..., 0], y.sum(dim=-1)))
    return torch.stack((left, top, right - left, bottom - top), dim=-1)


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Compute the intersection over union of pairs of boxes, ... x 4 each, in [0, 1]; 0 for boxes without area.

    Negative sizes count as 0.
    """
    size, other_size = first[..., 2:].clamp_min(0), second[..., 2:].clamp_min(0)
    start = torch.maximum(first[..., :2], second[..., :2])
    end = torch.minimum(first[..., :2] + size, second[..., :2] + other_size)
    intersection = _area((end - start).clamp_min(0))
    union = _area(size) + _area(other_size) - intersection
    # Rounding of x + w - x may make the intersection larger than the box.
    return torch.where(union > 0, intersection / union, torch.zeros_like(union)).clamp_max(1)


def generalized_iou(first: Tensor, second: Tensor) -> Tensor:
    """Compute the generalized IoU of pairs of boxes, ... x 4 each (Rezatofighi et al., 2019), in [-1, 1].

    This is the IoU minus the fraction of the smallest enclosing box that neither box covers, so that it increases as
    disjoint boxes approach each other; -1 for two boxes whose enclosing box has no area. Negative sizes count as 0.
    """
    size, other_size = first[..., 2:].clamp_min(0), second[..., 2:].clamp_min(0)
    end, other_end = first[..., :2] + size, second[..., :2] + other_size
    intersection = _area((torch.minimum(end, other_end) - torch.maximum(first[..., :2], second[..., :2])).clamp_min(0))
    union = _area(size) + _area(other_size) - intersection
    enclosing = _area(torch.maximum(end, other_end) - torch.minimum(first[..., :2], second[..., :2]))
    eps = torch.finfo(union.dtype).eps
    return intersection / union.clamp_min(eps) + union / enclosing.clamp_min(eps) - 1


def _area(size: Tensor) -> Tensor:
    """Return w * h: ... x 2 to ... (the gradient of `Tensor.prod` synchronizes with the GPU to test for zeros)."""
    return size[..., 0] * size[..., 1]


SAMPLES = 2
"""Number of samples along each side of a bin of `roi_align`."""


@dataclass(frozen=True)
class Crops:
    """Square crops of N images, resampled to one size.

    Attributes:
        corners: N x 2, top-left corners (x, y) in pixels of the image.
        sides: N, side lengths in pixels of the image.
        size: Side length after resampling, in pixels of the crop.
    """

    corners: Tensor
    sides: Tensor
    size: int

    @classmethod
    def around(cls, boxes: Tensor, factor: float | Tensor, size: int) -> "Crops":
        """Create crops centered on boxes, N x 4 in pixels, with side factor * sqrt(w h), one factor or N."""
        sides = factor * boxes[:, 2:].clamp_min(0).prod(dim=1).sqrt().clamp_min(1)
        return cls(box_centers(boxes) - sides[:, None] / 2, sides, size)

    @property
    def scale(self) -> Tensor:
        """Pixels of the crop per pixel of the image: N."""
        return self.size / self.sides

    def cut(self, images: Tensor, fill: Tensor) -> Tensor:
        """Crop and resample images, N x C x H x W: N x C x size x size; `fill`, N x C, holds the values outside.

        Each output pixel averages the area that it covers, at least one pixel of the image: this is bilinear for
        magnification and antialiased for reduction.
        """
        across = self._weights(self.corners[:, 0], images.shape[3])
        down = self._weights(self.corners[:, 1], images.shape[2])
        outside = fill[:, :, None, None]
        return down[:, None] @ (images - outside) @ across[:, None].transpose(2, 3) + outside

    def points_in(self, points: Tensor) -> Tensor:
        """Convert points, N x ... x 2, from pixels of the image to pixels of the crop."""
        return (points - _expand_like(self.corners, points)) * _expand_like(self.scale[:, None], points)

    def points_out(self, points: Tensor) -> Tensor:
        """Convert points from pixels of the crop to pixels of the image: the inverse of `points_in`."""
        return points / _expand_like(self.scale[:, None], points) + _expand_like(self.corners, points)

    def boxes_in(self, boxes: Tensor) -> Tensor:
        """Convert boxes, N x 4 (x, y, w, h), from pixels of the image to pixels of the crop."""
        return torch.cat((self.points_in(boxes[:, :2]), boxes[:, 2:] * self.scale[:, None]), dim=1)

    def boxes_out(self, boxes: Tensor) -> Tensor:
        """Convert boxes from pixels of the crop to pixels of the image: the inverse of `boxes_in`."""
        return torch.cat((self.points_out(boxes[:, :2]), boxes[:, 2:] / self.scale[:, None]), dim=1)

    def _weights(self, starts: Tensor, length: int) -> Tensor:
        """Return the weights of `length` image pixels in each pixel of the crop along one axis: N x size x length.

        The sum of a row is the fraction of its area that lies inside the image.
        """
        step = (self.sides / self.size)[:, None, None]
        pixel = torch.arange(self.size, device=starts.device, dtype=torch.float32)[:, None] + 0.5
        center, width = starts[:, None, None] + step * pixel, step.clamp_min(1)
        position = torch.arange(length, device=starts.device, dtype=torch.float32)
        overlap = torch.minimum(center + width / 2, position + 1.0) - torch.maximum(center - width / 2, position + 0.0)
        return overlap.clamp_min(0) / width


def roi_align(features: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Pool features (N x C x H x W, zero outside the map) inside boxes (RoIAlign): N x C x size x size.

    Boxes are N x 4, (x, y, w, h) in cells of the map; each bin is the mean of 2 x 2 bilinear samples.
    """
    across = _bin_weights(boxes[:, 0], boxes[:, 2], features.shape[3], size)
    down = _bin_weights(boxes[:, 1], boxes[:, 3], features.shape[2], size)
    return down[:, None] @ features @ across[:, None].transpose(2, 3)


def _bin_weights(starts: Tensor, lengths: Tensor, count: int, bins: int) -> Tensor:
    """Return the weights of `count` cells in each bin along one axis: N x bins x count."""
    fraction = (torch.arange(SAMPLES * bins, device=starts.device, dtype=torch.float32) + 0.5) / (SAMPLES * bins)
    positions = starts[:, None] + lengths[:, None] * fraction - 0.5
    cells = torch.arange(count, device=starts.device)
    hats = (1 - (positions[:, :, None] - cells).abs()).clamp_min(0)
    weights: Tensor = hats.unflatten(1, (bins, SAMPLES)).mean(dim=2)
    return weights


def _expand_like(values: Tensor, points: Tensor) -> Tensor:
    """Add dimensions to values, N x c, so that they broadcast with points, N x ... x 2."""
    return values.view(len(values), *[1] * (points.dim() - 2), -1)
