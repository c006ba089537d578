"""Stabilization: from the trails of a window of frames to the warp that moves one of them onto a stable path."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protoformer.geometry import pixel_grid, sample
from protoformer.geometry.smooth_fields import cell_terms, fields_of, fitted, terms_at
from protoformer.geometry.trails import CELL, Trails, seen_from
from protoformer.model.attention import sine_positions
from protoformer.model.config import ModelConfig
from protoformer.model.encoder import Encoder, block
from protoformer.model.layers import TokenNorm
from protoformer.model.precision import full_precision
from protoformer.model.stabilize_path import PathFilter
from protoformer.model.tokens import maps_of, size_of, tokens_of

__all__ = ["REGRESSORS", "StabilizeNetwork", "StabilizePrediction", "Trails", "build_stabilize", "window_of"]

REGRESSORS = ("grid", "field")
VERTICES = 8
"""A side of the coarse grid of `grid`."""
AFFINE = 3
"""Of the terms of a smooth field: 1, x, y."""


@dataclass(frozen=True)
class StabilizePrediction:
    """warps: one a stage, the best last, each B x 2 x h x w, pixels of the working frame: what stands at each cell's
    centre of the *stable* frame is found in the shaky frame at that centre plus this.
    """

    warps: tuple[Tensor, ...]


@dataclass(frozen=True)
class Said:
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
        self.blocks = nn.ModuleList(block(config, width) for _ in range(config.stab_layers))
        self.norm = TokenNorm(width)
        self.places = nn.Linear(width, 3)
        self.whole = nn.Linear(width, 2 * AFFINE)
        for head in (self.places, self.whole):  # which begin by saying nothing
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, maps: Tensor, trails: Trails) -> Said:
        """maps: B x C x h x w, the encoder's."""
        size, wide = size_of(maps), maps.shape[3]
        # In eighths of the frame's width, so that a strong shake is about as large as a trust.
        trail = torch.cat((trails.places / wide, trails.trust), dim=2).flatten(1, 2)
        where = sine_positions(pixel_grid(*size, device=maps.device).flatten(1).T, self.norm.normalized_shape[0])
        tokens = self.embed(tokens_of(trail)) + self.project(tokens_of(maps)) + where
        for each in self.blocks:
            tokens, _ = each(tokens, size, False)
        with full_precision(tokens):
            tokens = self.norm(tokens.float())
            places, summary = maps_of(self.places(tokens), size), tokens.mean(dim=1)
            affine = self.whole(summary).unflatten(1, (AFFINE, 2))
            return Said(summary, places[:, 2:].sigmoid(), CELL * affine, CELL * places[:, :2])


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

    def forward(self, images: Tensor, trails: Trails) -> StabilizePrediction:
        """images: B x 3 x H x W in [-1, 1], frame now at its working size, of whole cells."""
        self._expect(images, trails)
        with torch.no_grad():
            seen = self.features(images).features[-1].float()
        warp, warps = torch.zeros_like(trails.places[:, 0]), []
        for stage in self.stages:
            warp = self._corrected(stage, seen, trails, warp.detach())
            warps.append(warp)
        return StabilizePrediction(tuple(warps))

    def _corrected(self, stage: nn.Module, seen: Tensor, trails: Trails, warp: Tensor) -> Tensor:
        """The warp after a stage. seen: B x C x h x w, the features of frame now."""
        size = size_of(seen)
        with full_precision(warp):
            left = seen_from(trails, warp)
            maps = sample(seen, pixel_grid(*size, device=warp.device) + warp / CELL, "border")
            smooth = fitted(left.places, left.trust)
        said: Said = stage(maps, left)
        with full_precision(warp):
            ways, terms = smooth.coefficients, cell_terms(*size, device=warp.device)
            filters = self.path(ways[:, :, 0], smooth.weights.mean(dim=(2, 3, 4)), said.summary)
            own = smooth.weights * (left.places - fields_of(ways, terms))
            of_frame = torch.einsum("bct,btnc->bnc", filters, ways)
            of_places = torch.einsum("bct,btchw->bchw", filters, own)
            of_frame = torch.cat((of_frame[:, :AFFINE] - said.affine, of_frame[:, AFFINE:]), dim=1)
            return warp - self._laid(of_frame, said.rough * of_places - said.field)

    def _laid(self, of_frame: Tensor, of_places: Tensor) -> Tensor:
        """A smooth field, B x 6 x 2, and one of every cell, B x 2 x h x w, as one of the kind that is predicted."""
        size = size_of(of_places)
        if self.config.regressor == "field":
            return fields_of(of_frame, cell_terms(*size, device=of_places.device)) + of_places
        corners = torch.linspace(-1, 1, VERTICES, device=of_places.device, dtype=torch.float32)
        down, across = (_between(side, corners) for side in size)
        means = (each / each.sum(dim=0).clamp_min(1e-6) for each in (down, across))
        near = next(means).T @ of_places @ next(means)
        return down @ (fields_of(of_frame, terms_at(corners, corners)) + near) @ across.T

    def _expect(self, images: Tensor, trails: Trails) -> None:
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
    """How much of each vertex a cell's centre has: cells x vertices, rows of sum 1. vertices: evenly from -1 to 1."""
    centres = (2 * torch.arange(cells, device=vertices.device).float() + 1) / cells - 1
    apart = (centres[:, None] - vertices).abs() * (len(vertices) - 1) / 2
    return (1 - apart).clamp_min(0)


def window_of(config: ModelConfig) -> tuple[int, int]:
    """Frames before and after now that a configuration's network sees."""
    return (config.stab_past, 0) if config.regressor == "grid" else (config.stab_window, config.stab_window)


def build_stabilize(config: ModelConfig) -> StabilizeNetwork:
    """The stabilizing network that a configuration describes, with fresh random weights."""
    return StabilizeNetwork(config)
