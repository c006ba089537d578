"""What tracking knows of a target, and the layers in which what is searched asks about it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry import pixel_grid
from protoformer.geometry.boxes import clipped, enlarged
from protoformer.geometry.crops import roi_align
from protoformer.model.attention import Attention, FeedForward, sine_positions
from protoformer.model.config import ModelConfig
from protoformer.model.encoder import STRIDES, block
from protoformer.model.layers import TokenNorm
from protoformer.model.precision import full_precision
from protoformer.model.tokens import maps_of, size_of, tokens_of

AROUND = 2.0
"""Sides of what is around a target, in those of its box."""


@dataclass(frozen=True)
class Template:
    """Targets as they are known from their references.

    tokens: B x n x C, what is asked about them. parts: B x m x C, unit vectors that are correlated with what is
    searched. summary: B x C, the whole target.
    """

    tokens: Tensor
    parts: Tensor
    summary: Tensor


class TargetTokens(nn.Module):
    """Tokens of a target: the mean of its box; of a finer grid also its parts, and what is around it."""

    def __init__(self, channels: int, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.parts = 1 if grid == 1 else 1 + grid * grid
        count = self.parts if grid == 1 else self.parts + grid * grid
        self.norm = TokenNorm(channels)
        self.places = nn.Parameter(0.02 * torch.randn(count, channels))

    def forward(self, maps: Tensor, boxes: Tensor) -> Template:
        """maps: B x C x h x w, at 1/8 of the reference; boxes: B x 4 (x, y, w, h), pixels of it."""
        with full_precision(maps):
            maps, cells = maps.float(), boxes.float() / STRIDES[-1]
            inside = tokens_of(roi_align(maps, cells, self.grid))
            found = inside
            if self.grid > 1:
                # Of a long target that is more than the crop shows.
                wide = clipped(enlarged(cells, AROUND), maps.shape[3], maps.shape[2])
                around = tokens_of(roi_align(maps, wide, self.grid))
                found = torch.cat((inside.mean(dim=1, keepdim=True), inside, around), dim=1)
            tokens = self.norm(found)
            return Template(tokens + self.places, F.normalize(tokens[:, : self.parts], dim=2), tokens[:, 0])


class TrackLayer(nn.Module):
    """What is searched is grouped by prototypes, then asks the tokens of the target."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.track_width
        self.group = block(config, width)
        self.norm = TokenNorm(width)
        self.attention = Attention(width, width // config.head_width)
        self.feed_forward = FeedForward(width)

    def forward(self, tokens: Tensor, size: tuple[int, int], target: Tensor) -> Tensor:
        """tokens: B x HW x C; target: B x n x C; returns the new tokens."""
        tokens, _ = self.group(tokens, size, False)
        tokens = tokens + self.attention(self.norm(tokens), target)
        result: Tensor = tokens + self.feed_forward(tokens)
        return result


class TrackDecoder(nn.Module):
    """Features of what is searched to features that know where the target is."""

    def __init__(self, config: ModelConfig, parts: int) -> None:
        super().__init__()
        width = config.track_width
        self.norm = TokenNorm(width)
        self.alike = nn.Linear(parts, width)
        self.layers = nn.ModuleList(TrackLayer(config) for _ in range(config.track_layers))
        self.last = TokenNorm(width)

    def forward(self, maps: Tensor, template: Template) -> Tensor:
        """maps: B x C x h x w; returns the same."""
        size = size_of(maps)
        tokens = self.norm(tokens_of(maps))
        # How much each place is like each part of the target: a correlation, which is known before anything is learned.
        alike = F.normalize(tokens.float(), dim=2) @ template.parts.transpose(1, 2)
        places = sine_positions(pixel_grid(*size, device=maps.device).flatten(1).T, tokens.shape[2])
        tokens = tokens + self.alike(alike) + places
        for layer in self.layers:
            tokens = layer(tokens, size, template.tokens)
        return maps_of(self.last(tokens), size)
