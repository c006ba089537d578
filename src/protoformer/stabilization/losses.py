"""Loss functions for stabilization."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.motion_fields import CELL
from protoformer.geometry.warps import inside_image, pixel_grid, sample, upsample_2x
from protoformer.models.heads.stabilization import StabilizationPrediction
from protoformer.synthetic.samples import StabilityWindows
from protoformer.training.recipe import LossSection

DOWNSCALE = CELL // 2
"""Factor by which images are downscaled for the alignment loss."""
MAX_CORNER_SHIFT = 0.1
"""Displacement of a corner, as a fraction of the side, above which the border loss is positive."""


@dataclass(frozen=True)
class StabilizeLoss:
    """Scalar losses and metrics of a batch.

    Attributes:
        total: Loss to minimize.
        distance: |warp - truth|_1 of the last warp, pixels.
        consistency: The same for the change from the first frame to the second.
        shape: Second differences in excess of those of the truth, pixels per cell.
        alignment: Mean color difference of the warped images.
        borders: Excess displacement of the corners, pixels.
        error: Mean over the corners of |warp - truth|, pixels.
        shake: Mean over the corners of |truth|, pixels.
        relative_error: error / shake.
    """

    total: Tensor
    distance: Tensor
    consistency: Tensor
    shape: Tensor
    alignment: Tensor
    borders: Tensor
    error: Tensor
    shake: Tensor
    relative_error: Tensor


def stabilize_loss(
    prediction: StabilizationPrediction, windows: StabilityWindows, weights: LossSection, cells: Tensor | None = None
) -> StabilizeLoss:
    """Compute the loss of a prediction for both frames of N windows.

    The sum over stages of gamma^(remaining stages) times the mean distance, plus weighted terms of the last stage.

    Args:
        prediction: Warps of 2 N frames, the two of a window next to each other.
        windows: N windows with true warps.
        weights: Weights of the terms.
        cells: Number of valid cells to divide by instead of that of this batch. Processes that share a batch each pass
            the mean of their counts.

    Returns:
        The loss and its parts.
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
        "shape": _excess_curvature(last, truth, valid) / cells,
        # One value per frame, so it is weighted like all cells of a frame.
        "alignment": 2 * _alignment_error(last[:, 0], windows) * valid[0, 0].numel() / cells,
        "borders": _border_excess(last) * valid[0, 0].numel() / cells,
    }
    total = sum((factor * distance for factor, distance in zip(decay, distances, strict=True)), cells.new_zeros(()))
    total = total + sum((getattr(weights, name) * part for name, part in parts.items()), cells.new_zeros(()))
    error, shake = (each.mean() for each in corner_lengths(last, truth, valid))
    return StabilizeLoss(
        total=total,
        distance=distances[-1],
        error=error,
        shake=shake,
        relative_error=error / shake.clamp_min(1e-3),
        **parts,
    )


def valid_cells(valid: Tensor) -> Tensor:
    """Count the valid cells of a batch: scalar, float."""
    return valid.sum().float()


def _excess_curvature(warp: Tensor, truth: Tensor, valid: Tensor) -> Tensor:
    """Sum the excess of second differences over those of the truth, for warps N x 2 x 2 x h x w, pixels."""
    total = warp.new_zeros(())
    for dim in (3, 4):
        predicted, expected = (each.diff(n=2, dim=dim).abs() for each in (warp, truth))
        inner_valid = valid.narrow(dim, 1, valid.shape[dim] - 2)
        total = total + (F.relu(predicted - expected) * inner_valid).sum()
    return total


def _alignment_error(warp: Tensor, windows: StabilityWindows) -> Tensor:
    """Compare the first unstable images, warped by N x 2 x h x w, pixels, with the stable ones.

    Returns the sum over images of the mean absolute color difference of valid pixels.
    """
    unstable, stable = (F.avg_pool2d(each, DOWNSCALE) for each in (windows.unstable[:, 0], windows.stable))
    flow = upsample_2x(warp) / DOWNSCALE
    height, width = flow.shape[2:]
    coordinates = pixel_grid(height, width, flow.device) + flow
    inside = inside_image(coordinates.detach(), height, width).float()
    error = (sample(unstable, coordinates) - stable).abs().mean(dim=1, keepdim=True)
    return ((error * inside).sum(dim=(1, 2, 3)) / inside.sum(dim=(1, 2, 3)).clamp_min(1)).sum()


def _border_excess(warp: Tensor) -> Tensor:
    """Sum over frames the mean displacement of corners beyond `MAX_CORNER_SHIFT`, pixels."""
    height, width = (CELL * side for side in warp.shape[-2:])
    corners = corners_of(warp).abs()
    excess = torch.stack(
        (corners[:, :, 0] - MAX_CORNER_SHIFT * width, corners[:, :, 1] - MAX_CORNER_SHIFT * height), dim=2
    )
    return F.relu(excess).mean(dim=(2, 3)).sum()


def corner_lengths(predicted: Tensor, truth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return errors and true displacements of the corners of warps, N x 2 x 2 x h x w: N x 2 x 4 each, pixels."""
    return corners_of((predicted - truth) * valid).norm(dim=2), corners_of(truth).norm(dim=2)


def corners_of(fields: Tensor) -> Tensor:
    """Return the values in the four corners: N x 2 x C x 4."""
    return torch.stack([fields[..., row, column] for row in (0, -1) for column in (0, -1)], dim=-1)
