"""Trails: where what is seen at the places of a grid lies in the frames before and after.

Places are the centers of cells of `CELL` x `CELL` pixels, and maps of them are h x w = H / CELL x W / CELL.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid, sample

CELL = 8
"""Pixels from one place to the next."""


@dataclass(frozen=True)
class Trajectories:
    """Windows of T frames as seen from one of them, `now`.

    places: B x T x 2 x h x w, pixels: where what is at each place of frame now lies in each frame of the window, minus
    the place itself; so it is zero at now. trust: B x T x 1 x h x w, 0 to 1: whether that is known; 0 also beyond the
    first or last frame of a clip. Where it is 0, places are zero.
    """

    places: Tensor
    trust: Tensor


def cell_centers(size: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Centers of the cells of an image of (height, width): 2 x h x w, (x, y) in its pixels."""
    return pixel_grid(size[0] // CELL, size[1] // CELL, device) * CELL + (CELL - 1) / 2


def chain_flows(
    forward: Tensor, backward: Tensor, forward_trust: Tensor, backward_trust: Tensor, now: int
) -> Trajectories:
    """Trails of T frames from the motions between neighbors, seen from frame `now` of them.

    forward: B x (T - 1) x 2 x h x w, pixels, at the centers of cells: [:, i] leads from frame i to i + 1; backward:
    [:, i] from frame i + 1 to i. The trusts, B x (T - 1) x 1 x h x w, 0 to 1, say how far each is known: 0 where there
    is no such frame. What leaves the frame is not followed any further. Batches are windows of their own, so the
    windows of all frames of a clip are chained at once.
    """
    after = _followed(forward[:, now:], forward_trust[:, now:])
    before = _followed(backward[:, :now].flip(1), backward_trust[:, :now].flip(1)).flip(1)
    here = torch.cat((torch.zeros_like(forward[:, :1]), torch.ones_like(forward_trust[:, :1])), dim=2)
    places, trust = torch.cat((before, here, after), dim=1).split((2, 1), dim=2)
    return trusted_tracks(places, trust)


def trusted_tracks(places: Tensor, trust: Tensor) -> Trajectories:
    """Trails whose places are zero where nothing is known of them."""
    return Trajectories(torch.where(trust > 0, places, 0.0), trust)


def seen_from(trails: Trajectories, warp: Tensor) -> Trajectories:
    """Trails of what a warp brings to each place, as they lie beside that place.

    warp: B x 2 x h x w, pixels: at each place p stands what is at p + warp(p) of frame now. So at now the places are
    those of the warp, and what would stand still there has places around zero.
    """
    frames = trails.places.shape[1]
    at = _grid_of(warp) + warp / CELL
    # Each place counts as much as it is trusted, or those that are not known would draw their neighbors towards zero.
    moved = sample(torch.cat((trails.places * trails.trust, trails.trust), dim=2).flatten(1, 2), at, "border")
    places, trust = moved.unflatten(1, (frames, 3)).split((2, 1), dim=2)
    return trusted_tracks(places / trust.clamp_min(1e-6) + warp[:, None], trust * _within(at)[:, None])


def _followed(motions: Tensor, trusts: Tensor) -> Tensor:
    """Places and trust, B x n x 3 x h x w, after each of n motions in a row."""
    grid, found = _grid_of(motions), []
    place, trust = torch.zeros_like(motions[:, :0].sum(dim=1)), torch.ones_like(trusts[:, :0].sum(dim=1))
    for motion, known in zip(motions.unbind(1), trusts.unbind(1), strict=True):
        step = sample(torch.cat((motion, known), dim=1), grid + place / CELL, "border")
        place = place + step[:, :2]
        trust = trust * step[:, 2:] * _within(grid + place / CELL)
        found.append(torch.cat((place, trust), dim=1))
    return torch.stack(found, dim=1) if found else torch.cat((motions, trusts), dim=2)


def _grid_of(maps: Tensor) -> Tensor:
    return pixel_grid(maps.shape[-2], maps.shape[-1], maps.device)


def _within(cells: Tensor) -> Tensor:
    """Whether places, B x 2 x h x w in cells, lie on the frame: B x 1 x h x w, 0 or 1."""
    x, y = cells[:, :1], cells[:, 1:]
    height, width = cells.shape[-2:]
    return ((x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)).to(cells.dtype)


TERMS = 6
"""1, x, y, x^2, xy, y^2 of the place, which goes from -1 to 1 across the frame and down it."""
RIDGE = (1e-6, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3)
"""How unlikely each term is, in shares of the frame: where few places are known, the higher ones stay small."""
REFITS, NEAR, SPREAD = 2, 0.5, 1.5
"""How often a fit is made again without what strays from it: by more than NEAR pixels and SPREAD times the mean."""


@dataclass(frozen=True)
class SmoothFields:
    """coefficients: B x T x 6 x 2, pixels. weights: B x T x 1 x h x w, 0 to 1, how far each place was believed."""

    coefficients: Tensor
    weights: Tensor


def terms_at(x: Tensor, y: Tensor) -> Tensor:
    """The terms at every pair of places: x: w and y: h, each from -1 to 1; returns 6 x h x w."""
    across, down = x.expand(len(y), len(x)), y[:, None].expand(len(y), len(x))
    return torch.stack((torch.ones_like(across), across, down, across * across, across * down, down * down))


def cell_terms(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """The terms at the centers of height x width cells that fill the frame: 6 x height x width."""
    x, y = ((2 * torch.arange(count, device=device).float() + 1) / count - 1 for count in (width, height))
    return terms_at(x, y)


def evaluate_fields(coefficients: Tensor, terms: Tensor) -> Tensor:
    """The fields of coefficients, ... x n x 2, n of the first terms: ... x 2 x h x w."""
    used = terms[: coefficients.shape[-2]]
    fields: Tensor = (coefficients.transpose(-1, -2) @ used.flatten(1)).unflatten(-1, tuple(terms.shape[1:]))
    return fields


def fit_fields(places: Tensor, trust: Tensor) -> SmoothFields:
    """The fields that most of the trusted places follow.

    places: B x T x 2 x h x w, pixels; trust: B x T x 1 x h x w, 0 to 1. What moves by itself strays from the others,
    and is believed the less.
    """
    terms = cell_terms(places.shape[-2], places.shape[-1], places.device)
    weights = trust
    coefficients = _solved(places, weights, terms)
    for _ in range(REFITS):
        off = (places - evaluate_fields(coefficients, terms)).norm(dim=2, keepdim=True)
        mean = (weights * off).sum(dim=(3, 4), keepdim=True) / weights.sum(dim=(3, 4), keepdim=True).clamp_min(1e-6)
        weights = trust / (1 + (off / (NEAR + SPREAD * mean)).square())
        coefficients = _solved(places, weights, terms)
    return SmoothFields(coefficients, weights)


def _solved(places: Tensor, weights: Tensor, terms: Tensor) -> Tensor:
    """Coefficients of least squares: B x T x 6 x 2."""
    flat = terms.flatten(1)
    products = (flat[:, None] * flat[None]).flatten(0, 1)  # 36 x hw
    normal = (weights.flatten(2) @ products.T / flat.shape[1]).unflatten(-1, (TERMS, TERMS))
    right = ((places * weights).flatten(3) @ flat.T / flat.shape[1]).transpose(-1, -2)
    rows = torch.arange(TERMS, device=places.device)
    ridge = torch.zeros(TERMS, TERMS, device=places.device, dtype=torch.float32)
    for index, value in enumerate(RIDGE):
        ridge = ridge + value * ((rows == index)[:, None] & (rows == index)).float()
    return _eliminated(torch.cat((normal + ridge, right), dim=-1))


def _eliminated(system: Tensor) -> Tensor:
    """Solutions of positive systems, ... x n x (n + m): ... x n x m. Nothing in it waits for a GPU, as solvers do."""
    count = system.shape[-2]
    for index in range(count):
        pivot = system[..., index : index + 1, :] / system[..., index : index + 1, index : index + 1]
        others = system - system[..., index : index + 1] * pivot
        system = torch.cat((others[..., :index, :], pivot, others[..., index + 1 :, :]), dim=-2)
    return system[..., count:]
