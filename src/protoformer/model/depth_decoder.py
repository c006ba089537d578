"""The depth decoder: features as wide as the image, and a recurrent refinement that goes from coarse to fine.

All levels share one recurrent unit. An update is the same question at every size, "where is the estimate wrong, given
what is seen here?", and each level has projections of its own to ask it in; so a third of the weights do, every update
of any number of them trains all of these, and the unit can be applied oftener than it was in training.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry import doubled, pixel_grid
from protoformer.model.config import ModelConfig
from protoformer.model.embedding import EMBEDDINGS
from protoformer.model.encoder import Stage, block
from protoformer.model.flow_decoder import Progress
from protoformer.model.gru import Prepared, SeparableGRU
from protoformer.model.initialization import for_relu
from protoformer.model.layers import ActivatedConv
from protoformer.model.tokens import size_of
from protoformer.model.upsampling import upsample

CANONICAL_FOCAL = 256.0
"""Pixels: focal length of the camera that the network takes every image for."""
STRIDES = (32, 16, 8)
"""How much smaller than the image the levels of refinement are, the coarsest first."""
FINE = 4
"""How much smaller than the image the last correction is."""
LEAST_LOG_SCALE = -5.0
"""No error is expected below e^-5 = 0.7 % of the depth: finer than what cameras measure."""


@dataclass(frozen=True)
class DepthSequence:
    """The estimates of successive updates, the last one alone unless all were asked for, at the padded image's size.

    logs: each B x 1 x H x W, natural logarithm of canonical metres. log_scales: each B x 1 x H x W, the logarithm of
    the scale of the Laplace distribution that the error of `logs` is expected to have.
    """

    logs: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]


@dataclass(frozen=True)
class Estimate:
    """What is known at a level: B x 1 x H x W each, before they are bounded.

    place: 0 is the middle between nearest and farthest, in log depth. spread: of the log scale.
    """

    place: Tensor
    spread: Tensor


class Level(nn.Module):
    """What one level brings to the updates: the context that it sees, and a state that knows of the level above."""

    def __init__(self, channels: int, hidden: int, coarsest: bool) -> None:
        super().__init__()
        self.describe = nn.Conv2d(channels, 2 * hidden, 1)
        self.merge = None if coarsest else nn.Conv2d(hidden, hidden, 3, padding=1)

    def forward(self, features: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """features: B x channels x H x W; above: the coarser level's state, B x hidden x H/2 x W/2, None if coarsest.

        Returns state and context, B x hidden x H x W each.
        """
        state, context = self.describe(features).chunk(2, dim=1)
        if self.merge is not None and above is not None:
            state = state + self.merge(doubled(above))
        return torch.tanh(state), F.relu(context)


class DepthUpdate(nn.Module):
    """Looks at the estimate and at where each pixel points, updates the state, and reads a better estimate off it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.look = nn.Sequential(
            ActivatedConv(3, hidden, 7, rectified=True, padding=3),
            ActivatedConv(hidden, hidden - 3, 3, rectified=True, padding=1),
        )
        self.gru = SeparableGRU(hidden, hidden)
        to_change = ActivatedConv(2 * hidden, 2, 3, padding=1)
        self.change = nn.Sequential(ActivatedConv(hidden, 2 * hidden, 3, rectified=True, padding=1), to_change)
        for_relu(self.look)
        for_relu(self.change[0])
        # The first estimates stay near the middle, where the bounds let most of the gradient through.
        nn.init.normal_(to_change.weight, std=1e-3)

    def forward(self, state: Tensor, place: Tensor, rays: Tensor, context: Prepared) -> tuple[Tensor, Estimate]:
        """state: B x hidden x H x W; place: B x 1 x H x W; rays: B x 2 x H x W; context: from the unit's `prepare`."""
        seen = torch.cat((place, rays), dim=1)
        looked = self.look(seen)
        state = self.gru(state, torch.cat((looked, seen.to(looked.dtype)), dim=1), context)
        change, spread = self.change(state).float().split(1, dim=1)
        return state, Estimate(place + change, spread)


class Finish(nn.Module):
    """From 1/8 of the image to all of it: a correction at 1/4, where features know edges, then convex upsampling."""

    def __init__(self, hidden: int, channels: int) -> None:
        super().__init__()
        self.joint = nn.Sequential(
            ActivatedConv(hidden + channels, hidden, 3, rectified=True, padding=1),
            ActivatedConv(hidden, hidden, 3, rectified=True, padding=1),
        )
        self.change = ActivatedConv(hidden, 2, 3, padding=1)
        self.weights = ActivatedConv(hidden, 9 * FINE**2, 1)
        for_relu(self.joint)
        nn.init.normal_(self.change.weight, std=1e-3)

    def forward(self, state: Tensor, fine: Tensor, estimate: Estimate) -> tuple[Estimate, Tensor]:
        """state: B x hidden x H/8 x W/8; fine: features, B x channels x H/4 x W/4.

        Returns the estimate at 1/4, and the logits of its convex upsampling, B x (9 * 16) x H/4 x W/4.
        """
        upward = doubled(state)
        joint = self.joint(torch.cat((upward, fine.to(upward.dtype)), dim=1))
        change, spread = self.change(joint).float().split(1, dim=1)
        better = Estimate(doubled(estimate.place) + change, doubled(estimate.spread) + spread)
        return better, self.weights(joint)


class DepthDecoder(nn.Module):
    """Depth from the features of one image.

    wide: two more stages, at 1/16 and 1/32, each of one block, so that a pixel sees the whole room. levels: one for
    each of STRIDES. update: shared by all of them. finish: what makes the last ones fine.
    """

    def __init__(
        self,
        wide: list[Stage],
        levels: list[Level],
        update: DepthUpdate,
        finish: Finish,
        nearest: float,
        farthest: float,
    ) -> None:
        super().__init__()
        self.wide = nn.ModuleList(wide)
        self.levels = nn.ModuleList(levels)
        self.update = update
        self.finish = finish
        self.low, self.high = math.log(nearest), math.log(farthest)

    def forward(
        self,
        features: tuple[Tensor, ...],
        centre: Tensor,
        updates: int,
        every: bool = False,
        progress: Progress | None = None,
    ) -> DepthSequence:
        """features: of the encoder, at 1/4 and 1/8 of a padded image whose sides are multiples of 32.

        centre: B x 2, (x, y) that the camera looks at, pixels of the image. every: return all estimates (for training),
        not the last alone. progress: told of every update.
        """
        if updates < 1:
            raise ValueError(f"a depth takes one update or more, not {updates}")
        pyramid = [features[-1]]
        for stage in self.wide:
            pyramid.append(stage(pyramid[-1], False)[0])
        state: Tensor | None = None
        place = pyramid[-1].new_zeros(len(pyramid[-1]), 1, *size_of(pyramid[-1]), dtype=torch.float32)
        logs, log_scales, done = [], [], 0
        plan = zip(self.levels, reversed(pyramid), STRIDES, shares(updates), strict=True)
        for level, seen, stride, count in plan:
            place = place if state is None else doubled(place)
            state, context = level(seen, state)
            prepared, rays = self.update.gru.prepare(context), rays_of(seen, stride, centre)
            for _ in range(count):
                # Each update is judged on what it adds, not on what it makes of earlier ones.
                state, estimate = self.update(state, place.detach(), rays, prepared)
                place, done = estimate.place, done + 1
                if every or done == updates:
                    log, log_scale = self._upsample(estimate, state, features[0], stride)
                    logs.append(log)
                    log_scales.append(log_scale)
                if progress:
                    progress(done, updates)
        return DepthSequence(tuple(logs), tuple(log_scales))

    def _upsample(self, estimate: Estimate, state: Tensor, fine: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        """An estimate at the size of the padded image: by Finish from the finest level, else smoothly."""
        if stride == STRIDES[-1]:
            estimate, weights = self.finish(state, fine, estimate)
            whole = upsample(self._bounded(estimate), 0.25 * weights, FINE)  # a quarter, as for flow
        else:
            whole = self._bounded(estimate)
            for _ in range(stride.bit_length() - 1):
                whole = doubled(whole)
        return whole[:, :1], whole[:, 1:]

    def _bounded(self, estimate: Estimate) -> Tensor:
        """Log depth between the bounds, and a log scale above the least: B x 2 x H x W."""
        log = self.low + (self.high - self.low) * torch.sigmoid(estimate.place)
        return torch.cat((log, LEAST_LOG_SCALE + F.softplus(estimate.spread - LEAST_LOG_SCALE)), dim=1)


def shares(updates: int) -> tuple[int, ...]:
    """Updates of each level, the coarsest first: equal shares, and what remains goes to the finest levels."""
    return tuple((updates + level) // len(STRIDES) for level in range(len(STRIDES)))


def rays_of(maps: Tensor, stride: int, centre: Tensor) -> Tensor:
    """Where each pixel of maps at 1/stride of an image points to in the canonical camera: B x 2 x h x w.

    (x, y) / z of a ray, by the point that the camera looks at, centre, B x 2, pixels of the image (the centre of the
    first one is (0, 0)), and the canonical focal length. Depth along a floor that lies a certain height under the
    camera is that height / y: in canonical metres this holds whatever the focal length of the real camera was, since
    both are scaled by it alike.
    """
    grid = (pixel_grid(*size_of(maps), maps.device) + 0.5) * stride - 0.5
    return (grid[None] - centre.float()[:, :, None, None]) / CANONICAL_FOCAL


def build_decoder(config: ModelConfig) -> DepthDecoder:
    """The decoder that a configuration describes, with fresh random weights."""
    embed, hidden = EMBEDDINGS[config.embedding], config.hidden_width
    below = config.widths[-1]
    wide = []
    for width in config.depth_widths:
        wide.append(Stage(embed(below, width, 2), width, [block(config, width)]))
        below = width
    channels = (*reversed(config.depth_widths), config.widths[-1])
    return DepthDecoder(
        wide,
        [Level(each, hidden, coarsest=index == 0) for index, each in enumerate(channels)],
        DepthUpdate(hidden),
        Finish(hidden, config.widths[0]),
        config.nearest,
        config.farthest,
    )
