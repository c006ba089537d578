"""Trails: where what is seen at the places of a grid lies in the frames before and after.

Places are the centres of cells of `CELL` x `CELL` pixels, and maps of them are h x w = H / CELL x W / CELL.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry.grids import pixel_grid
from protoformer.geometry.warps import sample

CELL = 8
"""Pixels from one place to the next."""


@dataclass(frozen=True)
class Trails:
    """Windows of T frames as seen from one of them, `now`.

    places: B x T x 2 x h x w, pixels: where what is at each place of frame now lies in each frame of the window, minus
    the place itself; so it is zero at now. trust: B x T x 1 x h x w, 0 to 1: whether that is known; 0 also beyond the
    first or last frame of a clip. Where it is 0, places are zero.
    """

    places: Tensor
    trust: Tensor


def cell_centres(size: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Centres of the cells of an image of (height, width): 2 x h x w, (x, y) in its pixels."""
    return pixel_grid(size[0] // CELL, size[1] // CELL, device) * CELL + (CELL - 1) / 2


def chained(forward: Tensor, backward: Tensor, forward_trust: Tensor, backward_trust: Tensor, now: int) -> Trails:
    """Trails of T frames from the motions between neighbours, seen from frame `now` of them.

    forward: B x (T - 1) x 2 x h x w, pixels, at the centres of cells: [:, i] leads from frame i to i + 1; backward:
    [:, i] from frame i + 1 to i. The trusts, B x (T - 1) x 1 x h x w, 0 to 1, say how far each is known: 0 where there
    is no such frame. What leaves the frame is not followed any further. Batches are windows of their own, so the
    windows of all frames of a clip are chained at once.
    """
    after = _followed(forward[:, now:], forward_trust[:, now:])
    before = _followed(backward[:, :now].flip(1), backward_trust[:, :now].flip(1)).flip(1)
    here = torch.cat((torch.zeros_like(forward[:, :1]), torch.ones_like(forward_trust[:, :1])), dim=2)
    places, trust = torch.cat((before, here, after), dim=1).split((2, 1), dim=2)
    return trusted(places, trust)


def trusted(places: Tensor, trust: Tensor) -> Trails:
    """Trails whose places are zero where nothing is known of them."""
    return Trails(torch.where(trust > 0, places, 0.0), trust)


def seen_from(trails: Trails, warp: Tensor) -> Trails:
    """Trails of what a warp brings to each place, as they lie beside that place.

    warp: B x 2 x h x w, pixels: at each place p stands what is at p + warp(p) of frame now. So at now the places are
    those of the warp, and what would stand still there has places around zero.
    """
    frames = trails.places.shape[1]
    at = _grid_of(warp) + warp / CELL
    # Each place counts as much as it is trusted, or those that are not known would draw their neighbours towards zero.
    moved = sample(torch.cat((trails.places * trails.trust, trails.trust), dim=2).flatten(1, 2), at, "border")
    places, trust = moved.unflatten(1, (frames, 3)).split((2, 1), dim=2)
    return trusted(places / trust.clamp_min(1e-6) + warp[:, None], trust * _within(at)[:, None])


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
