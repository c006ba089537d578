"""True trails: where what is seen at the places of a grid lies at other moments. Nothing is rendered for them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from protoformer.geometry.trails import CELL, Trails, cell_centres, trusted
from protoformer.geometry.warps import inside
from protoformer.world.render import Motion, Renderer
from protoformer.world.scene import Frame

LOOKS = 12
"""Frames from one to the next of those in which it is asked whether something stands before a place."""


def true_trails(renderer: Renderer, frames: Sequence[Frame], now: int) -> Trails:
    """Trails through all frames as seen from frame `now` of them; trusted as long as they are seen, 0 or 1.

    As a chain of motions would, a trail ends where it leaves the frame or is hidden, even if it comes back.
    """
    (height, width), count = frames[now].size, renderer.scenes.count
    centres = cell_centres((height, width), renderer.device).flatten(1).expand(count, -1, -1)
    hit = renderer.meet(frames[now], centres)
    places, seen = [], []
    for number, frame in enumerate(frames):
        target, _, ahead = renderer.reached(hit, centres, frame)
        shown = ahead[:, None] & inside(target[:, :, None], height, width)[:, :, 0]
        if (number - now) % LOOKS == 0 and number != now:
            shown = shown & ~renderer.moved(hit, centres, frame)[2]
        places.append(target - centres)
        seen.append(shown)
    trust = outward(torch.stack(seen, dim=1).float(), now)
    cells = (height // CELL, width // CELL)
    return trusted(torch.stack(places, dim=1).unflatten(-1, cells), trust.unflatten(-1, cells))


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
