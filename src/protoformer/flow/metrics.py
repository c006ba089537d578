"""How far a flow is from the truth: end-point error and shares of outliers, as Sintel and KITTI count them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from protoformer.training.task import Tally

COLUMNS = 12


@dataclass(frozen=True)
class FlowScores:
    """Errors of flows; less is better in all of them. NaN where no pixel of the kind was seen.

    The end-point error of a pixel is |flow - truth|, pixels. A mean "over pixels" weighs every valid pixel of all
    samples alike, as Sintel's and KITTI's tables do; "per image" is the mean over samples of their own means.
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
    """Outliers: percent of pixels whose error is MORE than 1 px (not the share within it)."""
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
    """End-point error over pixels that both images show, of the samples whose occlusion is known."""
    unmatched: float
    """End-point error over occluded pixels, of the samples whose occlusion is known."""
    samples: int = field(kw_only=True)
    """Samples with at least one valid pixel; others add nothing."""
    pixels: int = field(kw_only=True)
    """Valid pixels."""


def flow_scores(flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None = None) -> FlowScores:
    """Scores of N flows taken together; of one sample, the row of a table, where N is 1.

    flow, truth: N x 2 x H x W, pixels; valid, occlusion: N x 1 x H x W, bool. What the flow or the truth hold where
    `valid` is False is never looked at. A flow or truth that is not finite where it is True is a ValueError: an
    estimate that failed must not count as one that was not made.
    """
    return mean_flow_scores(flow_tally(flow, truth, valid, occlusion).total())


def flow_tally(flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None) -> Tally:
    """The columns of FlowScores, up to `unmatched`, for each sample: N x 12."""
    _check(flow, truth, valid, occlusion)
    zero = torch.zeros((), dtype=torch.float64, device=truth.device)
    error = torch.where(valid, flow.double() - truth.double(), zero).norm(dim=1, keepdim=True)
    speed = torch.where(valid, truth.double(), zero).norm(dim=1, keepdim=True)
    known = valid if occlusion is not None else torch.zeros_like(valid)
    hidden = occlusion if occlusion is not None else known
    epe, epe_pixels = _over(error, valid)
    fl, fl_pixels = _over(_percent((error > 3) & (error > 0.05 * speed)), valid)
    columns = (
        (epe, epe_pixels),
        _per_image(epe, epe_pixels),
        (fl, fl_pixels),
        _per_image(fl, fl_pixels),
        *(_over(_percent(error > limit), valid) for limit in (1, 3, 5)),
        _over(error, valid & (speed < 10)),
        _over(error, valid & (speed >= 10) & (speed <= 40)),
        _over(error, valid & (speed > 40)),
        _over(error, known & ~hidden),
        _over(error, known & hidden),
    )
    return Tally(torch.stack([sums for sums, _ in columns], dim=1), torch.stack([count for _, count in columns], dim=1))


def _over(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and number of the values where a mask is True, for each sample: N and N."""
    return torch.where(mask, values, 0.0).sum(dim=(1, 2, 3)), mask.sum(dim=(1, 2, 3))


def _per_image(sums: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Means of samples, each to be counted as one, or as none where it has no pixel."""
    return sums / pixels.clamp_min(1), (pixels > 0).long()


def _percent(outlier: Tensor) -> Tensor:
    return 100 * outlier.double()


def mean_flow_scores(total: Tally) -> FlowScores:
    """The scores of all that was added up."""
    pixels, samples = total.counts[:2].tolist()
    return FlowScores(*total.means(), samples=samples, pixels=pixels)


def _check(flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None) -> None:
    if truth.ndim != 4 or truth.shape[1] != 2 or flow.shape != truth.shape:
        raise ValueError(f"a flow and its truth are both N x 2 x H x W, not {list(flow.shape)} and {list(truth.shape)}")
    for name, mask in (("valid", valid), ("occlusion", occlusion)):
        if mask is not None and (mask.dtype != torch.bool or mask.shape != truth[:, :1].shape):
            shape = list(truth[:, :1].shape)
            raise ValueError(f"{name} must be a bool tensor of shape {shape}, not {mask.dtype} of {list(mask.shape)}")
    for name, vectors in (("flow", flow), ("true flow", truth)):
        broken = (valid & ~vectors.isfinite().all(dim=1, keepdim=True)).sum(dim=(1, 2, 3))
        if broken.any():
            sample = int(broken.nonzero()[0])
            raise ValueError(f"the {name} of sample {sample} is not finite at {int(broken[sample])} valid pixels")
