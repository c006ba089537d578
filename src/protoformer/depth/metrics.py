"""How far a depth is from the truth, as KITTI's and NYU's tables count it."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from protoformer.geometry.warps import warp_back
from protoformer.training.task import Tally

Crop = Literal["garg", "eigen"]
"""The part of an image that counts. garg: Garg's crop of KITTI. eigen: Eigen's crop of NYU (not his of KITTI)."""

ROWS, COLUMNS = 3, 8
EIGEN_SIZE = (480, 640)
"""(height, width) of the images that Eigen's crop of NYU is one of."""


@dataclass(frozen=True)
class DepthScores:
    """One row of a table: p predicted and g true depth, meters, averaged over an image, then over images.

    NaN where no image had a pixel to count.
    """

    abs_rel: float
    """mean |p - g| / g."""
    sq_rel: float
    """mean (p - g)^2 / g, meters."""
    rmse: float
    """sqrt(mean (p - g)^2), meters."""
    rmse_log: float
    """sqrt(mean d^2) with d = ln p - ln g."""
    silog: float
    """100 sqrt(mean d^2 - (mean d)^2): KITTI's, all of the mean taken off (not 0.85 of it, as in losses)."""
    delta1: float
    """Share, 0 .. 1, of pixels with max(p / g, g / p) < 1.25; more is better."""
    delta2: float
    """The same below 1.25^2."""
    delta3: float
    """The same below 1.25^3."""


@dataclass(frozen=True)
class DepthTable:
    """The same predictions scored in three ways; a figure means nothing without the name of its row."""

    metric: DepthScores
    """As predicted, in meters."""
    median_scaled: DepthScores
    """Each prediction times median(truth) / median(prediction): relative depth, free of scale."""
    aligned: DepthScores
    """Each prediction as s p + t, with the s and t that make sum (s p + t - g)^2 least: free of scale and shift."""
    samples: int
    """Images with at least one pixel that counts; others add nothing."""


def crop_window(crop: Crop | None, height: int, width: int) -> tuple[slice, slice]:
    """Rows and columns that count.

    garg: rows .40810811 .. .99189189 and columns .03594771 .. .96405229 of any size, both ends rounded down and the
    last left out (375 x 1242: rows 153:371, columns 44:1197). eigen: rows 45:471, columns 41:601 of 480 x 640; there
    is no agreed way to scale it, so any other size is a ValueError.
    """
    if crop is None:
        return slice(0, height), slice(0, width)
    if crop == "garg":
        rows = slice(int(0.40810811 * height), int(0.99189189 * height))
        return rows, slice(int(0.03594771 * width), int(0.96405229 * width))
    if (height, width) != EIGEN_SIZE:
        raise ValueError(f"the eigen crop is one of 480 x 640 images, not of {height} x {width}")
    return slice(45, 471), slice(41, 601)


def depth_scores(
    depth: Tensor,
    truth: Tensor,
    valid: Tensor,
    *,
    minimum: float = 1e-3,
    maximum: float = 80.0,
    crop: Crop | None = None,
) -> DepthTable:
    """Scores of N depths, each image weighed alike; of one sample where N is 1.

    depth, truth: N x 1 x H x W, meters; valid: N x 1 x H x W, bool. A pixel counts if it is valid, lies in the crop and
    minimum < truth < maximum; scale and shift are found over the pixels that count. Afterwards, and without any
    alignment too, the prediction is clamped to minimum .. maximum. A prediction that is not finite at a pixel that
    counts is a ValueError, and so is one whose median is not above 0, as no scale can mend it.
    """
    return mean_depth_table(depth_tally(depth, truth, valid, minimum, maximum, crop).total())


def scale_and_shift(depth: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """The s and t that make sum (s depth + t - truth)^2 least; 0 and the truth's mean where the depth is constant.

    depth, truth: N values each, in meters, of the pixels that count, at least one.
    """
    middle = depth.mean()
    away = depth - middle
    spread = away.square().sum()
    scale = torch.where(spread > 0, (away * truth).sum() / spread, torch.zeros_like(spread))
    return scale, truth.mean() - scale * middle


def depth_tally(
    depth: Tensor, truth: Tensor, valid: Tensor, minimum: float, maximum: float, crop: Crop | None
) -> Tally:
    """Metric, median-scaled and aligned scores of each image side by side: N x 24."""
    check_depth_options(minimum, maximum, crop)
    if truth.ndim != 4 or truth.shape[1] != 1 or depth.shape != truth.shape:
        shapes = f"{list(depth.shape)} and {list(truth.shape)}"
        raise ValueError(f"a depth and its truth are both N x 1 x H x W, not {shapes}")
    if valid.dtype != torch.bool or valid.shape != truth.shape:
        raise ValueError(f"valid must be bool of shape {list(truth.shape)}, not {valid.dtype} of {list(valid.shape)}")
    rows, columns = crop_window(crop, *truth.shape[-2:])
    depth, truth, valid = (field[..., rows, columns] for field in (depth, truth, valid))
    counted = valid & (truth > minimum) & (truth < maximum)
    images = range(len(truth))
    scores = [_image(depth[i][counted[i]], truth[i][counted[i]], i, minimum, maximum) for i in images]
    return Tally.of_rows(torch.stack(scores) if scores else truth.new_zeros(0, ROWS * COLUMNS))


def _image(depth: Tensor, truth: Tensor, index: int, minimum: float, maximum: float) -> Tensor:
    """The three rows of one image, end to end (24), from the pixels that count: two lists of one length."""
    if not len(truth):
        return torch.full((ROWS * COLUMNS,), torch.nan, dtype=torch.float64, device=truth.device)
    if not depth.isfinite().all():
        count = int((~depth.isfinite()).sum())
        raise ValueError(f"the depth of sample {index} is not finite at {count} pixels that count")
    depth, truth = depth.double(), truth.double()
    middle = _median(depth)
    if middle <= 0:
        raise ValueError(f"the median depth of sample {index} is {middle.item():g} m; it must be above 0")
    scale, shift = scale_and_shift(depth, truth)
    rows = (depth, depth * (_median(truth) / middle), scale * depth + shift)
    return torch.cat([_row(row.clamp(minimum, maximum), truth) for row in rows])


def _row(depth: Tensor, truth: Tensor) -> Tensor:
    """The eight figures of DepthScores."""
    gap, log_gap = depth - truth, depth.log() - truth.log()
    ratio = torch.maximum(depth / truth, truth / depth)
    return torch.stack(
        [
            (gap.abs() / truth).mean(),
            (gap.square() / truth).mean(),
            gap.square().mean().sqrt(),
            log_gap.square().mean().sqrt(),
            100 * log_gap.std(correction=0),
            *((ratio < 1.25**power).double().mean() for power in (1, 2, 3)),
        ]
    )


def _median(values: Tensor) -> Tensor:
    """The middle value, or the mean of the two middle ones (torch.median takes the lower)."""
    ordered = values.sort().values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def mean_depth_table(total: Tally) -> DepthTable:
    """The scores of all that was added up."""
    means = total.means()
    metric, median_scaled, aligned = (DepthScores(*means[i * COLUMNS : (i + 1) * COLUMNS]) for i in range(ROWS))
    return DepthTable(metric, median_scaled, aligned, samples=int(total.counts[0]))


def check_depth_options(minimum: float, maximum: float, crop: Crop | None) -> None:
    """Refuse bounds between which no depth lies, and a crop that is not known."""
    if not 0 < minimum < maximum:
        raise ValueError(f"depths count between a minimum above 0 and a larger maximum, not {minimum:g} .. {maximum:g}")
    if crop is not None and crop not in get_args(Crop):
        raise ValueError(f"the crop is None, 'garg' or 'eigen', not {crop!r}")


def depth_flicker(depths: Tensor, flows: Tensor, visible: Tensor) -> float:
    """Mean |ln d_t+1(p + flow_t(p)) - ln d_t(p)| over the visible pixels of a clip; 0.01 is 1 % from frame to frame.

    depths: T x 1 x H x W, meters, over 0. flows: (T - 1) x 2 x H x W, pixels, from each frame to the next. visible:
    (T - 1) x 1 x H x W, bool, pixels whose flow is known and that the next frame shows. NaN where none is visible. A
    depth that is true flickers as well where things come nearer or go away: compare with the flicker of the truth.
    """
    frames, _, height, width = depths.shape
    wanted = {"flows": (frames - 1, 2, height, width), "visible": (frames - 1, 1, height, width)}
    for name, given in (("flows", flows), ("visible", visible)):
        if given.shape != wanted[name]:
            raise ValueError(f"{name} of {frames} depths are {list(wanted[name])}, not {list(given.shape)}")
    logs = depths.clamp_min(torch.finfo(torch.float32).tiny).log()
    change = (warp_back(logs[1:], flows) - logs[:-1]).abs()
    return float(change[visible].double().mean())
