"""Losses on prototypes: motion, planes and instance labels, rebuilt from one value per prototype.

A is `Prototypes.soft_assignment`, K x pixels, the soft form of the assignment of Latent Synchronization. Unlike the
memberships of EM it is what the pixels are assigned by, and it has a gradient in every implementation: through the
features and the centers and, with a spatial prior, through positions, width and temperature.

- Motion: an affine motion per prototype is fitted to the true flow by least squares weighted with A, and the flow is
  rebuilt as sum_k A_k affine_k. Only prototypes whose pixels move alike rebuild it well.
- Planes: the same for the true disparity (inverse depth), which is affine in image coordinates on a plane.
- Instances: the distribution of the true labels in each prototype, spread back to the pixels; cross-entropy.

All of them are plain tensor operations of fixed shapes without synchronization, so that a CUDA graph can hold them, and
each block is recomputed in the backward pass instead of storing several K x pixels maps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from protoformer.geometry.warps import pixel_grid
from protoformer.models.encoder import STRIDES
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import accumulation_dtype, full_precision, maps_to_tokens
from protoformer.training.recipe import Recipe

RIDGE = 1e-4
"""Added to the variances of the positions of a prototype's pixels, in units of (image side / 8) squared."""
MIN_MASS = 1e-4
"""Smallest sum of weights, cells, that a mean is divided by."""
MAX_LABELS = 64
"""Number of different instance labels; pixels with a higher one do not count."""
UNLABELED = -1
"""Instance label of pixels whose object is not known."""
TOLERANCE = 0.1
"""Constant t of the normalizations 1 / (1 + t |flow|), and 1 / (t + disparity) with disparity in units of its mean."""


def label_maps(instances: Tensor | None, mask: Tensor) -> Tensor:
    """Return the instance labels of a sample, or maps (like the mask, B x 1 x H x W) of unknown ones if it has none."""
    return torch.full_like(mask, UNLABELED, dtype=torch.int64) if instances is None else instances


@dataclass(frozen=True)
class Targets:
    """What is rebuilt, sampled at the centers of the cells of a map of h x w.

    Attributes:
        values: B x hw x C, flow, disparity or (as int64, C = 1) labels.
        mask: B x hw, bool, cells that count.
    """

    values: Tensor
    mask: Tensor


def sample_cells(values: Tensor, mask: Tensor, size: tuple[int, int], stride: int) -> Targets:
    """Sample values (B x C x H x W) and mask (B x 1 x H x W) at the center pixel of each cell of a map of (h, w).

    Cells beyond the image, where it was padded, do not count.
    """
    rows, columns = (torch.arange(count, device=values.device) * stride + stride // 2 for count in size)
    inside = (rows < values.shape[2])[:, None] & (columns < values.shape[3])
    rows, columns = rows.clamp_max(values.shape[2] - 1), columns.clamp_max(values.shape[3] - 1)

    def sample(maps: Tensor) -> Tensor:
        return maps_to_tokens(maps[:, :, rows][:, :, :, columns])

    return Targets(sample(values), sample(mask)[..., 0] & inside.flatten())


def affine_terms(size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the terms (1, x, y) at the cells of a map of (h, w): hw x 3; x and y are in units of an eighth of a side.

    Positions are relative to the center of the map, and a unit is about the distance between two prototypes.
    """
    x, y = pixel_grid(*size, device).flatten(1)
    # Numbers, not a tensor made of them, whose copy to a GPU would synchronize it.
    x, y = ((position + 0.5) * (8 / side) - 4 for position, side in ((x, size[1]), (y, size[0])))
    return torch.stack((torch.ones_like(x), x, y), dim=1)


def rebuild_affine(assignment: Tensor, targets: Targets, terms: Tensor) -> Tensor:
    """Fit one affine function of position per prototype, and rebuild the values from them.

    Args:
        assignment: A, B x K x hw.
        targets: values, B x hw x C, and the mask of the cells that enter the fit.
        terms: hw x 3, from `affine_terms`.

    Returns:
        sum_k A_k affine_k, B x hw x C.
    """
    dtype = accumulation_dtype(assignment.dtype)
    values, terms = torch.where(targets.mask[..., None], targets.values, 0.0).to(dtype), terms.to(dtype)
    batch, cells, channels = values.shape
    # The mean value of the image is rebuilt exactly; without it the sums below lose fewer digits.
    offset = values.sum(dim=1, keepdim=True) / targets.mask.sum(dim=1)[:, None, None].clamp_min(1)
    values = values - offset
    x, y = terms[:, 1], terms[:, 2]
    products = (values[:, :, None] * terms[:, :, None]).flatten(2)  # values, x values, y values
    squares = torch.stack((x * x, x * y, y * y), dim=1)
    moments = torch.cat((torch.cat((terms, squares), dim=1).expand(batch, -1, -1), products), dim=2)
    sums = (assignment * targets.mask[:, None]) @ moments  # B x K x (6 + 3C)
    means = sums[..., 1:] / sums[..., :1].clamp_min(MIN_MASS)
    position, (xx, xy, yy) = means[..., :2], means[..., 2:5].unbind(dim=-1)
    mean, x_mean, y_mean = means[..., 5:].split(channels, dim=-1)
    center_x, center_y = position.unbind(dim=-1)
    xx, xy, yy = xx - center_x**2 + RIDGE, xy - center_x * center_y, yy - center_y**2 + RIDGE
    x_cov, y_cov = x_mean - center_x[..., None] * mean, y_mean - center_y[..., None] * mean
    scale = 1 / (xx * yy - xy**2).clamp_min(RIDGE**2)
    slope_x = (yy[..., None] * x_cov - xy[..., None] * y_cov) * scale[..., None]
    slope_y = (xx[..., None] * y_cov - xy[..., None] * x_cov) * scale[..., None]
    constant = mean - slope_x * center_x[..., None] - slope_y * center_y[..., None]
    coefficients = torch.cat((constant, slope_x, slope_y), dim=-1)  # B x K x 3C
    mixed = (assignment.transpose(1, 2) @ coefficients).view(batch, cells, 3, channels)
    rebuilt: Tensor = (mixed * terms[:, :, None]).sum(dim=2) + offset
    return rebuilt


def motion_error(assignment: Tensor, targets: Targets, terms: Tensor) -> Tensor:
    """Sum |rebuilt - flow|_1 / (1 + 0.1 |flow|) over the cells that count: scalar."""
    flow = torch.where(targets.mask[..., None], targets.values, 0.0)
    error = (rebuild_affine(assignment, targets, terms) - flow).abs().sum(dim=2)
    return torch.where(targets.mask, error / (1 + TOLERANCE * flow.norm(dim=2)), 0.0).sum()


def plane_error(assignment: Tensor, targets: Targets, terms: Tensor) -> Tensor:
    """Sum |rebuilt - disparity| / (0.1 + disparity) over the cells that count: scalar.

    Disparities are in units of their mean over the image, so that the scale of a scene does not matter.
    """
    masked = torch.where(targets.mask[..., None], targets.values, 0.0)
    mean = masked.sum(dim=1, keepdim=True) / targets.mask.sum(dim=1)[:, None, None].clamp_min(1)
    disparity = masked / mean.clamp_min(1e-6)
    error = (rebuild_affine(assignment, Targets(disparity, targets.mask), terms) - disparity).abs()[..., 0]
    return torch.where(targets.mask, error / (TOLERANCE + disparity[..., 0]), 0.0).sum()


def instance_error(assignment: Tensor, targets: Targets, terms: Tensor) -> Tensor:
    """Sum the cross-entropy of the labels, pooled into the prototypes and spread back: scalar, nats."""
    labels = targets.values[..., 0]
    mask = targets.mask & (labels >= 0) & (labels < MAX_LABELS)
    index = torch.where(mask, labels, 0)
    weights = assignment * mask[:, None]
    one_hot = (index[..., None] == torch.arange(MAX_LABELS, device=labels.device)).to(assignment.dtype)
    shares = (weights @ one_hot) / weights.sum(dim=2, keepdim=True).clamp_min(MIN_MASS)  # B x K x labels
    likelihood = (assignment.transpose(1, 2) @ shares).gather(2, index[..., None])[..., 0]
    return torch.where(mask, -likelihood.clamp_min(1e-6).log(), 0.0).sum()


ERRORS: dict[str, Callable[[Tensor, Targets, Tensor], Tensor]] = {
    "motion": motion_error,
    "plane": plane_error,
    "instances": instance_error,
}
"""Maps the soft assignment, the targets and the terms of a block to a sum of errors over its cells. `LossSection` has
their weights as `prototype_NAME`."""


def prototype_weights(recipe: Recipe, *names: str) -> dict[str, float]:
    """Return the weights above 0 of some terms of `ERRORS`; none for a network without prototypes."""
    if recipe.model.config().encoder.mixer != "prototypes":
        return {}
    weights = {name: float(getattr(recipe.loss, f"prototype_{name}")) for name in names}
    return {name: weight for name, weight in weights.items() if weight}


def mean_errors(
    blocks: tuple[tuple[Prototypes, ...], ...], truth: dict[str, Tensor], mask: Tensor, pixels: Tensor
) -> dict[str, Tensor]:
    """Average errors over the pixels of the images and over all blocks of the encoder.

    Args:
        blocks: Prototypes of every block of every stage, of the images that the truth is of.
        truth: By name in `ERRORS`, B x C x H x W: flow in pixels, disparity in 1/m, or instance labels (int64).
        mask: B x 1 x H x W, bool, pixels that count.
        pixels: Scalar above 0, number of pixels that the sums are divided by, as in `flow_loss`.

    Returns:
        A scalar for each name.
    """
    if not truth:
        return {}
    totals = {name: torch.zeros((), device=mask.device) for name in truth}
    with full_precision(mask):
        for stride, stage in zip(STRIDES, blocks, strict=True):
            size = stage[0].size
            targets = {name: sample_cells(values, mask, size, stride) for name, values in truth.items()}
            compute = partial(_block_errors, targets, affine_terms(size, mask.device))
            for block in stage:
                errors = checkpoint(compute, block, use_reentrant=False, preserve_rng_state=False)
                totals = {name: total + stride**2 * errors[name] for name, total in totals.items()}
        return {name: total / (pixels * sum(map(len, blocks))) for name, total in totals.items()}


def _block_errors(targets: dict[str, Targets], terms: Tensor, prototypes: Prototypes) -> dict[str, Tensor]:
    assignment = prototypes.soft_assignment()
    return {name: ERRORS[name](assignment, each, terms) for name, each in targets.items()}
