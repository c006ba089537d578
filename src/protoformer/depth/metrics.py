"""Depth metrics as defined by the KITTI and NYU benchmarks, and temporal flicker."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from protoformer.geometry.warps import warp_back
from protoformer.viz.report import Tally

Crop = Literal["garg", "eigen"]
"""Evaluated image region: "garg" is Garg's crop of KITTI, "eigen" is Eigen's crop of NYU (not that of KITTI)."""

ROWS, COLUMNS = 3, 8
"""Number of alignments of `DepthTable` and of fields of `DepthScores`."""
EIGEN_SIZE = (480, 640)
"""(height, width) of the images for which Eigen's crop of NYU is defined."""


@dataclass(frozen=True)
class DepthScores:
    """Depth errors of predictions p and ground truth g, meters, averaged per image and then over images.

    NaN if no image has an evaluated pixel.
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
    """100 sqrt(mean d^2 - (mean d)^2): KITTI's definition, with lambda = 1 (not 0.85, as in the loss)."""
    delta1: float
    """Fraction of pixels with max(p / g, g / p) < 1.25; higher is better."""
    delta2: float
    """Fraction of pixels below 1.25^2."""
    delta3: float
    """Fraction of pixels below 1.25^3."""


@dataclass(frozen=True)
class DepthTable:
    """Scores of the same predictions under three alignments, which must not be compared with each other."""

    metric: DepthScores
    """As predicted, in meters."""
    median_scaled: DepthScores
    """Each prediction times median(truth) / median(prediction): invariant to scale."""
    aligned: DepthScores
    """Each prediction as s p + t, with s and t by least squares: invariant to scale and shift."""
    samples: int
    """Number of images with at least one evaluated pixel; others are ignored."""


def crop_region(crop: Crop | None, height: int, width: int) -> tuple[slice, slice]:
    """Return the evaluated rows and columns of an image.

    garg: rows .40810811 to .99189189 and columns .03594771 to .96405229 of any size, both ends rounded down, the end
    exclusive (375 x 1242: rows 153:371, columns 44:1197). eigen: rows 45:471, columns 41:601 of 480 x 640; there is no
    agreed way to scale it.
    """
    if crop is None:
        return slice(0, height), slice(0, width)
    if crop == "garg":
        rows = slice(int(0.40810811 * height), int(0.99189189 * height))
        return rows, slice(int(0.03594771 * width), int(0.96405229 * width))
    if (height, width) != EIGEN_SIZE:
        raise ValueError(f"the eigen crop is defined for 480 x 640 images, not for {height} x {width}")
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
    """Compute the scores of N images, each weighted equally.

    A pixel is evaluated if it is valid, inside the crop, and minimum < truth < maximum. Scale and shift are fitted to
    the evaluated pixels; predictions are clamped to [minimum, maximum] after the alignment.

    Args:
        depth: predicted depth, N x 1 x H x W, meters.
        truth: true depth, N x 1 x H x W, meters.
        valid: N x 1 x H x W, bool.
        minimum: lower bound of the true depth, meters, exclusive.
        maximum: upper bound of the true depth, meters, exclusive.
        crop: evaluated image region; None for the whole image.

    Raises:
        ValueError: if a shape, type or option is wrong, or if a prediction is not finite at an evaluated pixel or has a
            median that is not positive.
    """
    return mean_depth_table(depth_tally(depth, truth, valid, minimum, maximum, crop).total())


def scale_and_shift(depth: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Fit s and t that minimize sum (s depth + t - truth)^2 over N values, N > 0; s is 0 if the depth is constant."""
    mean = depth.mean()
    centered = depth - mean
    variance = centered.square().sum()
    scale = torch.where(variance > 0, (centered * truth).sum() / variance, torch.zeros_like(variance))
    return scale, truth.mean() - scale * mean


def depth_tally(
    depth: Tensor, truth: Tensor, valid: Tensor, minimum: float, maximum: float, crop: Crop | None
) -> Tally:
    """Compute metric, median-scaled and aligned scores of each image: N x 24. Arguments as in `depth_scores`."""
    check_depth_options(minimum, maximum, crop)
    if truth.ndim != 4 or truth.shape[1] != 1 or depth.shape != truth.shape:
        shapes = f"{list(depth.shape)} and {list(truth.shape)}"
        raise ValueError(f"depth and truth must both be N x 1 x H x W, not {shapes}")
    if valid.dtype != torch.bool or valid.shape != truth.shape:
        raise ValueError(f"valid must be bool of shape {list(truth.shape)}, not {valid.dtype} of {list(valid.shape)}")
    rows, columns = crop_region(crop, *truth.shape[-2:])
    depth, truth, valid = (field[..., rows, columns] for field in (depth, truth, valid))
    mask = valid & (truth > minimum) & (truth < maximum)
    images = range(len(truth))
    scores = [_score_image(depth[i][mask[i]], truth[i][mask[i]], i, minimum, maximum) for i in images]
    return Tally.of_rows(torch.stack(scores) if scores else truth.new_zeros(0, ROWS * COLUMNS))


def _score_image(depth: Tensor, truth: Tensor, index: int, minimum: float, maximum: float) -> Tensor:
    """Return the scores of one image under the three alignments (24), given its evaluated pixels (M values each)."""
    if not len(truth):
        return torch.full((ROWS * COLUMNS,), torch.nan, dtype=torch.float64, device=truth.device)
    if not depth.isfinite().all():
        count = int((~depth.isfinite()).sum())
        raise ValueError(f"the depth of sample {index} is not finite at {count} evaluated pixels")
    depth, truth = depth.double(), truth.double()
    median = _median(depth)
    if median <= 0:
        raise ValueError(f"the median depth of sample {index} is {median.item():g} m; it must be above 0")
    scale, shift = scale_and_shift(depth, truth)
    predictions = (depth, depth * (_median(truth) / median), scale * depth + shift)
    return torch.cat([_compute_scores(each.clamp(minimum, maximum), truth) for each in predictions])


def _compute_scores(depth: Tensor, truth: Tensor) -> Tensor:
    """Return the eight fields of `DepthScores`."""
    error, log_error = depth - truth, depth.log() - truth.log()
    ratio = torch.maximum(depth / truth, truth / depth)
    return torch.stack(
        [
            (error.abs() / truth).mean(),
            (error.square() / truth).mean(),
            error.square().mean().sqrt(),
            log_error.square().mean().sqrt(),
            100 * log_error.std(correction=0),
            *((ratio < 1.25**power).double().mean() for power in (1, 2, 3)),
        ]
    )


def _median(values: Tensor) -> Tensor:
    """Return the median, as the mean of the two middle values for even counts (torch.median takes the lower)."""
    ordered = values.sort().values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def mean_depth_table(total: Tally) -> DepthTable:
    """Convert summed tallies to scores."""
    means = total.means()
    metric, median_scaled, aligned = (DepthScores(*means[i * COLUMNS : (i + 1) * COLUMNS]) for i in range(ROWS))
    return DepthTable(metric, median_scaled, aligned, samples=int(total.counts[0]))


def check_depth_options(minimum: float, maximum: float, crop: Crop | None) -> None:
    """Validate the options of `depth_scores`."""
    if not 0 < minimum < maximum:
        raise ValueError(f"the depth bounds must satisfy 0 < minimum < maximum, not {minimum:g} .. {maximum:g}")
    if crop is not None and crop not in get_args(Crop):
        raise ValueError(f"the crop must be None, 'garg' or 'eigen', not {crop!r}")


def depth_flicker(depths: Tensor, flows: Tensor, visible: Tensor) -> float:
    """Compute the mean |ln d_t+1(p + flow_t(p)) - ln d_t(p)| over the visible pixels of a video.

    True depth also changes where objects approach or recede: compare with the flicker of the ground truth.

    Args:
        depths: T x 1 x H x W, meters, above 0.
        flows: flow from each frame to the next, (T - 1) x 2 x H x W, pixels.
        visible: pixels with known flow that are visible in the next frame, (T - 1) x 1 x H x W, bool.

    Returns:
        The flicker; 0.01 is a change of 1 % per frame. NaN if no pixel is visible.
    """
    frames, _, height, width = depths.shape
    shapes = {"flows": (frames - 1, 2, height, width), "visible": (frames - 1, 1, height, width)}
    for name, tensor in (("flows", flows), ("visible", visible)):
        if tensor.shape != shapes[name]:
            raise ValueError(f"{name} of {frames} depths must be {list(shapes[name])}, not {list(tensor.shape)}")
    logs = depths.clamp_min(torch.finfo(torch.float32).tiny).log()
    change = (warp_back(logs[1:], flows) - logs[:-1]).abs()
    return float(change[visible].double().mean())
