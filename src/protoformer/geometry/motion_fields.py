"""Trajectories on a grid of cells, chained from optical flow, and smooth polynomial fields fitted to them.

Cells are `CELL` x `CELL` pixels, and maps are h x w = H / CELL x W / CELL.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.warps import pixel_grid, sample

CELL = 8
"""Side of a cell, in pixels."""


@dataclass(frozen=True)
class Trajectories:
    """Displacements of the cell centers of one frame, the reference, to all frames of a window of T frames.

    Attributes:
        displacements: B x T x 2 x h x w, pixels; zero at the reference frame and where the confidence is 0.
        confidence: B x T x 1 x h x w, in [0, 1]; 0 beyond the first or last frame of a clip.
    """

    displacements: Tensor
    confidence: Tensor


def cell_centers(size: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Return the centers of the cells of an image of (height, width): 2 x h x w, (x, y) in pixels."""
    return pixel_grid(size[0] // CELL, size[1] // CELL, device) * CELL + (CELL - 1) / 2


def chain_flows(
    forward: Tensor, backward: Tensor, forward_confidence: Tensor, backward_confidence: Tensor, now: int
) -> Trajectories:
    """Chain the flows between neighboring frames to trajectories of T frames.

    Trajectories end where they leave the frame. Windows are independent, so those of all frames of a clip can be
    chained as one batch.

    Args:
        forward: B x (T - 1) x 2 x h x w, pixels, at the cell centers; [:, i] is the flow from frame i to i + 1.
        backward: B x (T - 1) x 2 x h x w, pixels; [:, i] is the flow from frame i + 1 to i.
        forward_confidence: B x (T - 1) x 1 x h x w, confidence of `forward` in [0, 1]; 0 if there is no such frame.
        backward_confidence: B x (T - 1) x 1 x h x w, confidence of `backward`.
        now: Index of the reference frame in the window.

    Returns:
        The trajectories.
    """
    after = _accumulate(torch.cat((forward[:, now:], forward_confidence[:, now:]), dim=2).unbind(1))
    before = _accumulate(torch.cat((backward[:, :now], backward_confidence[:, :now]), dim=2).unbind(1)[::-1])
    reference = torch.cat((torch.zeros_like(forward[:, 0]), torch.ones_like(forward_confidence[:, 0])), dim=1)
    displacements, confidence = torch.stack((*before[::-1], reference, *after), dim=1).split((2, 1), dim=2)
    return build_trajectories(displacements, confidence)


def build_trajectories(displacements: Tensor, confidence: Tensor) -> Trajectories:
    """Create trajectories whose displacements are zero where the confidence is 0; see `Trajectories`."""
    return Trajectories(torch.where(confidence > 0, displacements, 0.0), confidence)


def resample_trajectories(trajectories: Trajectories, warp: Tensor) -> Trajectories:
    """Resample trajectories at warped positions, with displacements relative to the cell centers of the output.

    Args:
        trajectories: The trajectories.
        warp: B x 2 x h x w, pixels: cell p of the output shows what is at p + warp(p) of the reference frame.

    Returns:
        The trajectories; at the reference frame the displacements equal the warp.
    """
    frames = trajectories.displacements.shape[1]
    at = _grid_of(warp) + warp / CELL
    weighted = torch.cat((trajectories.displacements * trajectories.confidence, trajectories.confidence), dim=2)
    # Weighted by confidence, because invalid cells are zero and would bias their neighbors.
    sampled = sample(weighted.flatten(1, 2), at, "border")
    displacements, confidence = sampled.unflatten(1, (frames, 3)).split((2, 1), dim=2)
    return build_trajectories(
        displacements / confidence.clamp_min(1e-6) + warp[:, None], confidence * _within(at)[:, None]
    )


INVERSION_STEPS = 4
"""Fixed-point steps of `invert_flow`; the error of a step is the one before times the gradient of the flow."""


def invert_flow(flow: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Invert a flow at the cell centers: the flow from the second frame back to the first.

    Args:
        flow: B x 2 x h x w, pixels, from the first frame to the second.
        confidence: B x 1 x h x w, in [0, 1].

    Returns:
        The inverse flow b, with b(p) = -flow(p + b(p)), and its confidence, which is 0 where it leads outside the first
        frame.
    """
    grid, maps = _grid_of(flow), torch.cat((flow, confidence), dim=1)
    inverse, sampled = -flow, maps
    for _ in range(INVERSION_STEPS):
        sampled = sample(maps, grid + inverse / CELL, "border")
        inverse = -sampled[:, :2]
    return inverse, sampled[:, 2:] * _within(grid + inverse / CELL)


def _accumulate(steps: Sequence[Tensor]) -> list[Tensor]:
    """Chain flows and their confidence, B x 3 x h x w each; returns displacement and confidence after each of them."""
    if not steps:
        return []
    # Positions in the coordinates of grid_sample, -1 to 1 across the frame, save a conversion in each of many steps.
    sides = steps[0].new_tensor([steps[0].shape[-1], steps[0].shape[-2]])
    start = (2 * _grid_of(steps[0]).movedim(0, -1) + 1) / sides - 1
    positions = start.expand(steps[0].shape[0], *start.shape)
    offset, product = torch.zeros_like(steps[0][:, :2]), torch.ones_like(steps[0][:, 2:])
    outputs = []
    for maps in steps:
        step = F.grid_sample(maps, positions, padding_mode="border", align_corners=False)
        offset = offset + step[:, :2]
        positions = start + offset.movedim(1, -1) * (2 / CELL / sides)
        product = product * step[:, 2:] * (positions.abs() <= 1).all(dim=-1)[:, None]
        outputs.append(torch.cat((offset, product), dim=1))
    return outputs


def _grid_of(maps: Tensor) -> Tensor:
    return pixel_grid(maps.shape[-2], maps.shape[-1], maps.device)


def _within(cells: Tensor) -> Tensor:
    """Return whether positions, B x 2 x h x w in cells, lie inside the frame: B x 1 x h x w, 0 or 1."""
    x, y = cells[:, :1], cells[:, 1:]
    height, width = cells.shape[-2:]
    return ((x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)).to(cells.dtype)


TERMS = 6
"""Number of polynomial terms 1, x, y, x^2, xy, y^2; x and y go from -1 to 1 across the frame."""
RIDGE = (1e-6, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3)
"""Ridge penalty of each term relative to the mean weight; it keeps higher terms small if few cells are valid."""
REFITS, NEAR, SPREAD = 2, 0.5, 1.5
"""Number of reweighted fits, and the residual scale of their weights: NEAR pixels + SPREAD times the mean residual."""


@dataclass(frozen=True)
class SmoothFields:
    """Quadratic motion fields.

    Attributes:
        coefficients: B x T x 6 x 2, pixels.
        weights: B x T x 1 x h x w, weight of each cell in the fit, in [0, 1].
    """

    coefficients: Tensor
    weights: Tensor


def terms_at(x: Tensor, y: Tensor) -> Tensor:
    """Evaluate the terms on a grid of x (w values) and y (h values), each in [-1, 1]: 6 x h x w."""
    across, down = x.expand(len(y), len(x)), y[:, None].expand(len(y), len(x))
    return torch.stack((torch.ones_like(across), across, down, across * across, across * down, down * down))


def cell_terms(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """Evaluate the terms at the centers of height x width cells that fill the frame: 6 x height x width."""
    x, y = ((2 * torch.arange(count, device=device).float() + 1) / count - 1 for count in (width, height))
    return terms_at(x, y)


def evaluate_fields(coefficients: Tensor, terms: Tensor) -> Tensor:
    """Evaluate fields on a grid: ... x 2 x h x w, pixels.

    `coefficients`: ... x n x 2, pixels, of the first n terms. `terms`: 6 x h x w, from `terms_at` or `cell_terms`.
    """
    used = terms[: coefficients.shape[-2]]
    fields: Tensor = (coefficients.transpose(-1, -2) @ used.flatten(1)).unflatten(-1, tuple(terms.shape[1:]))
    return fields


def fit_fields(displacements: Tensor, confidence: Tensor) -> SmoothFields:
    """Fit quadratic fields to displacements by iteratively reweighted least squares.

    Independently moving objects have large residuals and get small weights.

    Args:
        displacements: B x T x 2 x h x w, pixels.
        confidence: B x T x 1 x h x w, in [0, 1].
    """
    terms = cell_terms(displacements.shape[-2], displacements.shape[-1], displacements.device)
    weights = confidence
    coefficients = _solve_least_squares(displacements, weights, terms)
    for _ in range(REFITS):
        x, y = (displacements - evaluate_fields(coefficients, terms)).split(1, dim=2)
        # Not `norm`, which is several times slower on a CPU. The small term keeps the gradient at zero finite.
        residual = (x.square() + y.square() + 1e-24).sqrt()
        mean = (weights * residual).sum(dim=(3, 4), keepdim=True) / weights.sum(dim=(3, 4), keepdim=True).clamp_min(
            1e-6
        )
        weights = confidence / (1 + (residual / (NEAR + SPREAD * mean)).square())
        coefficients = _solve_least_squares(displacements, weights, terms)
    return SmoothFields(coefficients, weights)


def _solve_least_squares(displacements: Tensor, weights: Tensor, terms: Tensor) -> Tensor:
    """Solve the weighted least squares problem: coefficients, B x T x 6 x 2."""
    flat = terms.flatten(1)
    products = (flat[:, None] * flat[None]).flatten(0, 1)  # 36 x hw
    normal = (weights.flatten(2) @ products.T / flat.shape[1]).unflatten(-1, (TERMS, TERMS))
    right = ((displacements * weights).flatten(3) @ flat.T / flat.shape[1]).transpose(-1, -2)
    rows = torch.arange(TERMS, device=displacements.device)
    ridge = torch.zeros(TERMS, TERMS, device=displacements.device, dtype=torch.float32)
    for index, value in enumerate(RIDGE):
        ridge = ridge + value * ((rows == index)[:, None] & (rows == index)).float()
    return _gauss_jordan(torch.cat((normal + ridge, right), dim=-1))


def _gauss_jordan(system: Tensor) -> Tensor:
    """Solve positive definite systems, ... x n x (n + m), to ... x n x m, without a GPU synchronization as in torch."""
    count = system.shape[-2]
    for index in range(count):
        pivot = system[..., index : index + 1, :] / system[..., index : index + 1, index : index + 1]
        others = system - system[..., index : index + 1] * pivot
        system = torch.cat((others[..., :index, :], pivot, others[..., index + 1 :, :]), dim=-2)
    return system[..., count:]
