"""Stabilization: from the trails of a window of frames to the warp that moves one of them onto a stable path."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protoformer.geometry.motion_fields import (
    CELL,
    Trajectories,
    cell_terms,
    evaluate_fields,
    fit_fields,
    seen_from,
    terms_at,
)
from protoformer.geometry.warps import pixel_grid, sample
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import Encoder, build_block
from protoformer.models.heads.cost_memory import sine_positions
from protoformer.models.layers import TokenNorm
from protoformer.models.runtime import full_precision, map_size, maps_to_tokens, tokens_to_maps

KERNEL = 14.0
"""Frames, the deviation of the Gaussian that the kernel begins as."""
STIFFNESS = 1e-4
"""Of the line's slope: with hardly any frames beside now there is none."""
QUIET = 0.5
"""Pixels: a path that strays less than this is not looked at any closer."""
REACH = 0.1
"""What 1 means in the filter, at now; far from it less, as paths stray the more from a line the longer it is."""
ENOUGH = 0.05
"""Share of the places of a frame that must be known for the frame to count by half."""


class PathFilter(nn.Module):
    """Weights over the frames of a window, by which a trail's stable place at now is a sum of its places.

    A line is fitted to the window by least squares, weighted by a kernel over time (a softmax of `kernel`) and by how
    much is known of each frame; its value at now is the stable place. So whatever moves evenly stays as it is, at the
    ends of a clip too. To that a filter of what strays from the line is added: `filter`, the same for all clips, and
    what a perceptron makes of the path itself, each direction by itself. Both begin at zero.

    past, future: frames beside now. width: channels of the summary of what is seen. hidden: of the perceptron.
    """

    moments: Tensor
    reach: Tensor

    def __init__(self, past: int, future: int, width: int, hidden: int) -> None:
        super().__init__()
        frames = past + 1 + future
        steps = torch.arange(-past, future + 1).float()
        self.register_buffer("moments", steps / max(past, future), persistent=False)
        self.register_buffer("reach", REACH / (1 + (steps / KERNEL).square()), persistent=False)
        self.kernel = nn.Parameter(-0.5 * (steps / KERNEL).square())
        self.slope = nn.Parameter(torch.ones(()))
        self.filter = nn.Parameter(torch.zeros(frames))
        self.perceptron = nn.Sequential(
            nn.Linear(2 * frames + 4 + width, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, frames + 1),
        )
        last = self.perceptron[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, path: Tensor, known: Tensor, summary: Tensor) -> Tensor:
        """The weights, B x 2 x T, for the x and y of places.

        path: B x T x 2, pixels, how the middle of the frame moved; known: B x T, 0 to 1, how much is known of each
        frame; summary: B x width.
        """
        known = (known / (known + ENOUGH) * (1 + ENOUGH))[:, None]
        shares = self.kernel.softmax(dim=0) * known  # B x 1 x T
        shares = shares / shares.sum(dim=2, keepdim=True).clamp_min(1e-6)
        middle = (shares * self.moments).sum(dim=2, keepdim=True)
        apart = self.moments - middle
        slopes = shares * apart / ((shares * apart.square()).sum(dim=2, keepdim=True) + STIFFNESS)
        path = path.transpose(1, 2)  # B x 2 x T
        change = self._change(path, known, (shares - middle * slopes, slopes), summary)
        line = shares - (self.slope + change[..., -1:]) * middle * slopes
        extra = (self.filter + change[..., :-1]) * self.reach * known
        taken = extra.sum(dim=2, keepdim=True) * line + (extra * self.moments).sum(dim=2, keepdim=True) * slopes
        return line + extra - taken

    def _change(self, path: Tensor, known: Tensor, line: tuple[Tensor, Tensor], summary: Tensor) -> Tensor:
        """What this path changes of the filter, and of how far the slope is believed: B x 2 x (T + 1)."""
        here, slope = ((path * weights).sum(dim=2, keepdim=True) for weights in line)
        strays = (path - here - slope * self.moments) * known
        size = (strays.square().mean(dim=2, keepdim=True) + QUIET * QUIET).sqrt()
        both = path.shape[0], 2, -1
        direction = torch.stack((torch.zeros_like(size[:, 0]), torch.ones_like(size[:, 0])), dim=1)
        said = (strays / size, known.expand(both), size.log(), here / size, slope / size / len(self.moments), direction)
        result: Tensor = self.perceptron(torch.cat((*said, summary[:, None].expand(both)), dim=2))
        return result


__all__ = ["REGRESSORS", "StabilizeNetwork", "StabilizePrediction", "Trajectories", "build_stabilize", "window_of"]

REGRESSORS = ("grid", "field")
VERTICES = 8
"""A side of the coarse grid of `grid`."""
AFFINE = 3
"""Of the terms of a smooth field: 1, x, y."""


@dataclass(frozen=True)
class StabilizePrediction:
    """warps: one a stage, the best last, each B x 2 x h x w, pixels of the working frame: what stands at each cell's
    center of the *stable* frame is found in the shaky frame at that center plus this.
    """

    warps: tuple[Tensor, ...]


@dataclass(frozen=True)
class StageOutput:
    """What a stage says of a batch.

    summary: B x C, of all it sees. rough: B x 1 x h x w, 0 to 1, how far each place goes its own way rather than the
    frame's. affine: B x 3 x 2 and field: B x 2 x h x w, pixels, what is added.
    """

    summary: Tensor
    rough: Tensor
    affine: Tensor
    field: Tensor


class StabilizeStage(nn.Module):
    """Trails and features of the frame, joined and grouped by prototypes.

    window: frames of a trail. embed: of its 3 numbers a frame. project: of the encoder's features.
    """

    def __init__(self, config: ModelConfig, window: int) -> None:
        super().__init__()
        width = config.stab_width
        self.embed = nn.Linear(3 * window, width)
        self.project = nn.Linear(config.widths[-1], width)
        self.blocks = nn.ModuleList(build_block(config, width) for _ in range(config.stab_layers))
        self.norm = TokenNorm(width)
        self.places = nn.Linear(width, 3)
        self.whole = nn.Linear(width, 2 * AFFINE)
        for head in (self.places, self.whole):  # which begin by saying nothing
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, maps: Tensor, trails: Trajectories) -> StageOutput:
        """maps: B x C x h x w, the encoder's."""
        size, wide = map_size(maps), maps.shape[3]
        # In eighths of the frame's width, so that a strong shake is about as large as a trust.
        trail = torch.cat((trails.places / wide, trails.trust), dim=2).flatten(1, 2)
        where = sine_positions(pixel_grid(*size, device=maps.device).flatten(1).T, self.norm.normalized_shape[0])
        tokens = self.embed(maps_to_tokens(trail)) + self.project(maps_to_tokens(maps)) + where
        for each in self.blocks:
            tokens, _ = each(tokens, size, False)
        with full_precision(tokens):
            tokens = self.norm(tokens.float())
            places, summary = tokens_to_maps(self.places(tokens), size), tokens.mean(dim=1)
            affine = self.whole(summary).unflatten(1, (AFFINE, 2))
            return StageOutput(summary, places[:, 2:].sigmoid(), CELL * affine, CELL * places[:, :2])


class StabilizeNetwork(nn.Module):
    """Finds the warp from a stable frame to the shaky one.

    The window of `grid` is the frame and those before it, and its warp is bilinear between 8 x 8 vertices; that of
    `field` goes both ways, and its warp has its own value at every cell.

    features: Encoder of the frame. It is flow's, and no gradient reaches it, so that both tasks can share it.
    path: what a stable path is. stages: each sees the trails as the one before would leave them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        past, future = self.window
        self.features = Encoder(config).requires_grad_(False)
        self.path = PathFilter(past, future, config.stab_width, 2 * config.stab_width)
        self.stages = nn.ModuleList(StabilizeStage(config, past + 1 + future) for _ in range(config.stab_stages))

    @property
    def window(self) -> tuple[int, int]:
        """Frames before and after now."""
        return window_of(self.config)

    def forward(self, images: Tensor, trails: Trajectories) -> StabilizePrediction:
        """images: B x 3 x H x W in [-1, 1], frame now at its working size, of whole cells."""
        self._expect(images, trails)
        with torch.no_grad():
            seen = self.features(images).features[-1].float()
        warp, warps = torch.zeros_like(trails.places[:, 0]), []
        for stage in self.stages:
            warp = self._corrected(stage, seen, trails, warp.detach())
            warps.append(warp)
        return StabilizePrediction(tuple(warps))

    def _corrected(self, stage: nn.Module, seen: Tensor, trails: Trajectories, warp: Tensor) -> Tensor:
        """The warp after a stage. seen: B x C x h x w, the features of frame now."""
        size = map_size(seen)
        with full_precision(warp):
            left = seen_from(trails, warp)
            maps = sample(seen, pixel_grid(*size, device=warp.device) + warp / CELL, "border")
            smooth = fit_fields(left.places, left.trust)
        said: StageOutput = stage(maps, left)
        with full_precision(warp):
            ways, terms = smooth.coefficients, cell_terms(*size, device=warp.device)
            filters = self.path(ways[:, :, 0], smooth.weights.mean(dim=(2, 3, 4)), said.summary)
            own = smooth.weights * (left.places - evaluate_fields(ways, terms))
            of_frame = torch.einsum("bct,btnc->bnc", filters, ways)
            of_places = torch.einsum("bct,btchw->bchw", filters, own)
            of_frame = torch.cat((of_frame[:, :AFFINE] - said.affine, of_frame[:, AFFINE:]), dim=1)
            return warp - self._laid(of_frame, said.rough * of_places - said.field)

    def _laid(self, of_frame: Tensor, of_places: Tensor) -> Tensor:
        """A smooth field, B x 6 x 2, and one of every cell, B x 2 x h x w, as one of the kind that is predicted."""
        size = map_size(of_places)
        if self.config.regressor == "field":
            return evaluate_fields(of_frame, cell_terms(*size, device=of_places.device)) + of_places
        corners = torch.linspace(-1, 1, VERTICES, device=of_places.device, dtype=torch.float32)
        down, across = (_between(side, corners) for side in size)
        means = (each / each.sum(dim=0).clamp_min(1e-6) for each in (down, across))
        near = next(means).T @ of_places @ next(means)
        return down @ (evaluate_fields(of_frame, terms_at(corners, corners)) + near) @ across.T

    def _expect(self, images: Tensor, trails: Trajectories) -> None:
        past, future = self.window
        height, width = images.shape[-2:]
        cells = (len(images), past + 1 + future, 3, height // CELL, width // CELL)
        found = trails.places.shape, trails.trust.shape
        wanted = (*cells[:2], 2, *cells[3:]), (*cells[:2], 1, *cells[3:])
        if height % CELL or width % CELL or (tuple(found[0]), tuple(found[1])) != wanted:
            raise ValueError(
                f"images of {tuple(images.shape)} need sides of whole eights, and trails of {wanted[0]} and "
                f"{wanted[1]}, not {tuple(found[0])} and {tuple(found[1])}"
            )


def _between(cells: int, vertices: Tensor) -> Tensor:
    """How much of each vertex a cell's center has: cells x vertices, rows of sum 1. vertices: evenly from -1 to 1."""
    centers = (2 * torch.arange(cells, device=vertices.device).float() + 1) / cells - 1
    apart = (centers[:, None] - vertices).abs() * (len(vertices) - 1) / 2
    return (1 - apart).clamp_min(0)


def window_of(config: ModelConfig) -> tuple[int, int]:
    """Frames before and after now that a configuration's network sees."""
    return (config.stab_past, 0) if config.regressor == "grid" else (config.stab_window, config.stab_window)


def build_stabilize(config: ModelConfig) -> StabilizeNetwork:
    """The stabilizing network that a configuration describes, with fresh random weights."""
    return StabilizeNetwork(config)
