"""What training makes small where a frame is moved onto a stable path."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.motion_fields import CELL
from protoformer.geometry.resizing import upsample_2x
from protoformer.geometry.warps import inside_image, pixel_grid, sample
from protoformer.models.heads.stabilization import StabilizePrediction
from protoformer.synthetic.samples import StabilityWindows
from protoformer.training.recipe import LossSection

SHRINK = CELL // 2
"""Pictures are compared at this part of their size."""
CROP = 0.1
"""Share of the frame's side that a corner may be moved by before it counts as border."""


@dataclass(frozen=True)
class StabilizeLoss:
    """Scalars. total: what to minimize. distance: |warp - truth|_1 of the last warp, pixels. consistency: the same of
    the change from the first frame to the second. shape: of bends that the truth has not, pixels a cell. alignment: the
    mean difference of the pictures' colors. borders: pixels by which corners leave the frame too far. error, shake:
    means over the corners of |warp - truth| and of |truth|, pixels. share: error over shake.
    """

    total: Tensor
    distance: Tensor
    consistency: Tensor
    shape: Tensor
    alignment: Tensor
    borders: Tensor
    error: Tensor
    shake: Tensor
    share: Tensor


def stabilize_loss(
    prediction: StabilizePrediction, windows: StabilityWindows, weights: LossSection, cells: Tensor | None = None
) -> StabilizeLoss:
    """Of a prediction for both frames of N windows: warps of 2 N, the two of a window side by side.

    The sum over stages of gamma^(stages left) times the mean distance, and the weighted rest, of the last stage. cells:
    how many valid cells to divide by instead of this batch's own; processes that share a batch each take the mean of
    theirs.
    """
    valid, truth = windows.valid.float(), windows.warp
    cells = valid_cells(windows.valid).clamp_min(1) if cells is None else cells
    warps = [warp.float().unflatten(0, truth.shape[:2]) for warp in prediction.warps]
    last = warps[-1]
    distances = [((warp - truth).abs() * valid).sum() / cells for warp in warps]
    decay = [weights.gamma ** (len(warps) - 1 - stage) for stage in range(len(warps))]
    change, both = (last - truth)[:, 1] - (last - truth)[:, 0], valid[:, 0] * valid[:, 1]
    parts = {
        "consistency": 2 * (change.abs() * both).sum() / cells,
        "shape": _bends(last, truth, valid) / cells,
        # One number for each frame, so it counts as much as all cells of one do.
        "alignment": 2 * _misaligned(last[:, 0], windows) * valid[0, 0].numel() / cells,
        "borders": _beyond(last) * valid[0, 0].numel() / cells,
    }
    total = sum((factor * distance for factor, distance in zip(decay, distances, strict=True)), cells.new_zeros(()))
    total = total + sum((getattr(weights, name) * part for name, part in parts.items()), cells.new_zeros(()))
    error, shake = (each.mean() for each in corner_lengths(last, truth, valid))
    return StabilizeLoss(
        total=total, distance=distances[-1], error=error, shake=shake, share=error / shake.clamp_min(1e-3), **parts
    )


def valid_cells(valid: Tensor) -> Tensor:
    """How many cells of a batch are valid: scalar, float."""
    return valid.sum().float()


def _bends(warp: Tensor, truth: Tensor, valid: Tensor) -> Tensor:
    """By how much second differences exceed those of the truth: the sum over N x 2 x 2 x h x w, pixels."""
    total = warp.new_zeros(())
    for dim in (3, 4):
        found, true = (each.diff(n=2, dim=dim).abs() for each in (warp, truth))
        known = valid.narrow(dim, 1, valid.shape[dim] - 2)
        total = total + (F.relu(found - true) * known).sum()
    return total


def _misaligned(warp: Tensor, windows: StabilityWindows) -> Tensor:
    """Difference of the first shaky pictures, moved by their warp, from the steady ones, where both are.

    warp: N x 2 x h x w; returns the sum over pictures of the mean over pixels.
    """
    shaky, steady = (F.avg_pool2d(each, SHRINK) for each in (windows.unstable[:, 0], windows.stable))
    flow = upsample_2x(warp) / SHRINK
    height, width = flow.shape[2:]
    at = pixel_grid(height, width, flow.device) + flow
    known = inside_image(at.detach(), height, width).float()
    off = (sample(shaky, at) - steady).abs().mean(dim=1, keepdim=True)
    return ((off * known).sum(dim=(1, 2, 3)) / known.sum(dim=(1, 2, 3)).clamp_min(1)).sum()


def _beyond(warp: Tensor) -> Tensor:
    """Pixels by which corners are moved further than `CROP` allows: the sum over frames of the mean."""
    height, width = (CELL * side for side in warp.shape[-2:])
    corners = corners_of(warp).abs()
    far = torch.stack((corners[:, :, 0] - CROP * width, corners[:, :, 1] - CROP * height), dim=2)
    return F.relu(far).mean(dim=(2, 3)).sum()


def corner_lengths(found: Tensor, truth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """How far the corners of warps, N x 2 x 2 x h x w, are off, and how far they are to go: N x 2 x 4 each, pixels."""
    return corners_of((found - truth) * valid).norm(dim=2), corners_of(truth).norm(dim=2)


def corners_of(fields: Tensor) -> Tensor:
    """The values in the four corners: N x 2 x C x 4."""
    return torch.stack([fields[..., row, column] for row in (0, -1) for column in (0, -1)], dim=-1)
