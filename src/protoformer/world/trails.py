"""True trails: where what is seen at the places of a grid lies at other moments. Nothing is rendered for them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protoformer.geometry.trails import CELL, Trails, cell_centres, trusted
from protoformer.geometry.warps import inside
from protoformer.world.render import Motion, Renderer
from protoformer.world.scene import Frame
from protoformer.world.surface import Hits

LOOKS = 12
"""Frames from one to the next of those in which it is asked whether something stands before a place."""
TOGETHER = 32
"""Frames that are made at once: a GPU is asked a few times for much, not often for little."""


def true_trails(renderer: Renderer, frames: Sequence[Frame], now: int) -> Trails:
    """Trails through all frames as seen from frame `now` of them; trusted as long as they are seen, 0 or 1.

    As a chain of motions would, a trail ends where it leaves the frame or is hidden, even if it comes back.
    """
    (height, width), count = frames[now].size, renderer.scenes.count
    centres = cell_centres((height, width), renderer.device).flatten(1).expand(count, -1, -1)
    hit = renderer.meet(frames[now], centres)
    groups = [frames[start : start + TOGETHER] for start in range(0, len(frames), TOGETHER)]
    targets, within = zip(*(_reached(renderer, hit, centres, group) for group in groups), strict=True)
    places, seen = torch.cat(targets, dim=1) - centres[:, None], torch.cat(within, dim=1)
    for number in range(now % LOOKS, len(frames), LOOKS):
        if number != now:
            seen[:, number] &= ~renderer.moved(hit, centres, frames[number])[2]
    trust = outward(seen.float(), now)
    cells = (height // CELL, width // CELL)
    return trusted(places.unflatten(-1, cells), trust.unflatten(-1, cells))


def _reached(renderer: Renderer, hit: Hits, positions: Tensor, frames: Sequence[Frame]) -> tuple[Tensor, Tensor]:
    """Where what was met at positions (B x 2 x N) lies in T frames, pixels, B x T x 2 x N, and whether that is ahead of
    the camera and within the frame, hidden or not, B x T x 1 x N.
    """
    many, first = len(frames), frames[0]
    joined = replace(first, table=torch.cat([frame.table for frame in frames], dim=1), lens=first.lens.repeat(many, 1))
    here = replace(hit.frame, table=hit.frame.table.repeat(1, many, 1))
    hits = Hits(here, hit.index.repeat(many, 1), hit.depth.repeat(many, 1), hit.ray.repeat(1, many, 1))
    target, _, ahead = renderer.reached(hits, positions.repeat(many, 1, 1), joined)
    within = ahead[:, None] & inside(target[:, :, None], *first.size)[:, :, 0]
    return target.unflatten(0, (many, -1)).transpose(0, 1), within.unflatten(0, (many, -1)).transpose(0, 1)


def true_warp(renderer: Renderer, steady: Frame, shaky: Frame) -> Motion:
    """From the centres of the cells of a steady frame to the shaky one of the same moment: N x 2 x h x w, pixels."""
    centres = cell_centres(steady.size, renderer.device)
    positions = centres.flatten(1).expand(renderer.scenes.count, -1, -1)
    flow, valid, unseen = renderer.moved(renderer.meet(steady, positions), positions, shaky)
    cells = tuple(centres.shape[1:])
    return Motion(flow.unflatten(-1, cells), valid.unflatten(-1, cells), unseen.unflatten(-1, cells))


def outward(shares: Tensor, now: int) -> Tensor:
    """Products of shares, B x T x ..., from frame now on to each frame, on both sides; 1 at now."""
    after = shares[:, now + 1 :].cumprod(dim=1)
    before = shares[:, :now].flip(1).cumprod(dim=1).flip(1)
    return torch.cat((before, torch.ones_like(shares[:, :1]), after), dim=1)
