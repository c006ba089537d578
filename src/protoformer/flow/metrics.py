"""Optical flow metrics: end-point error and outlier rates as defined by Sintel and KITTI."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from protoformer.viz.report import Tally

COLUMNS = 12
"""Number of averaged fields of `FlowScores`."""


@dataclass(frozen=True)
class FlowScores:
    """Flow errors; lower is better in all of them. NaN if no pixel falls into the category.

    The end-point error of a pixel is |flow - truth|, pixels. A mean "over pixels" weights every valid pixel of all
    samples equally, as in the tables of Sintel and KITTI; "per image" is the mean over samples of their own means.
    """

    epe: float
    """Mean end-point error over pixels."""
    epe_per_image: float
    """Mean end-point error per image."""
    fl: float
    """Fl-all: percent of pixels whose error is more than 3 px and more than 5 % of |truth|."""
    fl_per_image: float
    """Fl-all per image, percent."""
    px1: float
    """Outliers: percent of pixels whose error is MORE than 1 px (not the inlier rate)."""
    px3: float
    """Percent of pixels whose error is more than 3 px."""
    px5: float
    """Percent of pixels whose error is more than 5 px."""
    s0_10: float
    """End-point error over pixels whose |truth| is less than 10 px."""
    s10_40: float
    """End-point error over pixels whose |truth| is 10 to 40 px, both included."""
    s40_plus: float
    """End-point error over pixels whose |truth| is more than 40 px."""
    matched: float
    """End-point error over pixels visible in both images, of samples with a known occlusion mask."""
    unmatched: float
    """End-point error over occluded pixels, of samples with a known occlusion mask."""
    samples: int = field(kw_only=True)
    """Number of samples with at least one valid pixel; others are ignored."""
    pixels: int = field(kw_only=True)
    """Number of valid pixels."""


def flow_scores(flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None = None) -> FlowScores:
    """Compute the scores of N samples.

    Args:
        flow: predicted flow, N x 2 x H x W, pixels.
        truth: true flow, N x 2 x H x W, pixels.
        valid: N x 1 x H x W, bool; values where it is False are ignored.
        occlusion: pixels that are not visible in the second image, N x 1 x H x W, bool, if known.

    Raises:
        ValueError: if a shape or type is wrong, or if the flow or the truth is not finite at a valid pixel: a failed
            prediction must not be scored as a missing one.
    """
    return mean_flow_scores(flow_tally(flow, truth, valid, occlusion).total())


def flow_tally(flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None) -> Tally:
    """Sum the fields of `FlowScores`, up to `unmatched`, for each sample: N x 12. Arguments as in `flow_scores`."""
    _check(flow, truth, valid, occlusion)
    zero = torch.zeros((), dtype=torch.float64, device=truth.device)
    error = torch.where(valid, flow.double() - truth.double(), zero).norm(dim=1, keepdim=True)
    speed = torch.where(valid, truth.double(), zero).norm(dim=1, keepdim=True)
    has_occlusion = valid if occlusion is not None else torch.zeros_like(valid)
    occluded = occlusion if occlusion is not None else has_occlusion
    epe, epe_pixels = _masked_sum(error, valid)
    fl, fl_pixels = _masked_sum(_percent((error > 3) & (error > 0.05 * speed)), valid)
    columns = (
        (epe, epe_pixels),
        _per_image(epe, epe_pixels),
        (fl, fl_pixels),
        _per_image(fl, fl_pixels),
        *(_masked_sum(_percent(error > limit), valid) for limit in (1, 3, 5)),
        _masked_sum(error, valid & (speed < 10)),
        _masked_sum(error, valid & (speed >= 10) & (speed <= 40)),
        _masked_sum(error, valid & (speed > 40)),
        _masked_sum(error, has_occlusion & ~occluded),
        _masked_sum(error, has_occlusion & occluded),
    )
    return Tally(torch.stack([sums for sums, _ in columns], dim=1), torch.stack([count for _, count in columns], dim=1))


def _masked_sum(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of the values inside a mask, per sample: N and N."""
    return torch.where(mask, values, 0.0).sum(dim=(1, 2, 3)), mask.sum(dim=(1, 2, 3))


def _per_image(sums: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each sample with a count of 1, or of 0 for samples without pixels."""
    return sums / pixels.clamp_min(1), (pixels > 0).long()


def _percent(outlier: Tensor) -> Tensor:
    return 100 * outlier.double()


def mean_flow_scores(total: Tally) -> FlowScores:
    """Convert summed tallies to scores."""
    pixels, samples = total.counts[:2].tolist()
    return FlowScores(*total.means(), samples=samples, pixels=pixels)


def _check(flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None) -> None:
    if truth.ndim != 4 or truth.shape[1] != 2 or flow.shape != truth.shape:
        raise ValueError(f"flow and truth must both be N x 2 x H x W, not {list(flow.shape)} and {list(truth.shape)}")
    for name, mask in (("valid", valid), ("occlusion", occlusion)):
        if mask is not None and (mask.dtype != torch.bool or mask.shape != truth[:, :1].shape):
            shape = list(truth[:, :1].shape)
            raise ValueError(f"{name} must be a bool tensor of shape {shape}, not {mask.dtype} of {list(mask.shape)}")
    for name, vectors in (("flow", flow), ("true flow", truth)):
        broken = (valid & ~vectors.isfinite().all(dim=1, keepdim=True)).sum(dim=(1, 2, 3))
        if broken.any():
            sample = int(broken.nonzero()[0])
            raise ValueError(f"the {name} of sample {sample} is not finite at {int(broken[sample])} valid pixels")
