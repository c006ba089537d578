"""Scene depth: encoder and decoder put together, and the camera that depths are told in."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.resizing import Padding, upsample_2x
from protoformer.geometry.warps import pixel_grid
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import EMBEDDINGS, Encoder, Stage, build_block
from protoformer.models.heads.update import Prepared, SeparableGRU, upsample
from protoformer.models.layers import ActivatedConv, init_for_relu
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import ProgressCallback, map_size

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

    logs: each B x 1 x H x W, natural logarithm of canonical meters. log_scales: each B x 1 x H x W, the logarithm of
    the scale of the Laplace distribution that the error of `logs` is expected to have.
    """

    logs: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]


@dataclass(frozen=True)
class DepthEstimate:
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
            state = state + self.merge(upsample_2x(above))
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
        init_for_relu(self.look)
        init_for_relu(self.change[0])
        # The first estimates stay near the middle, where the bounds let most of the gradient through.
        nn.init.normal_(to_change.weight, std=1e-3)

    def forward(self, state: Tensor, place: Tensor, rays: Tensor, context: Prepared) -> tuple[Tensor, DepthEstimate]:
        """state: B x hidden x H x W; place: B x 1 x H x W; rays: B x 2 x H x W; context: from the unit's `prepare`."""
        seen = torch.cat((place, rays), dim=1)
        looked = self.look(seen)
        state = self.gru(state, torch.cat((looked, seen.to(looked.dtype)), dim=1), context)
        change, spread = self.change(state).float().split(1, dim=1)
        return state, DepthEstimate(place + change, spread)


class DepthRefiner(nn.Module):
    """From 1/8 of the image to all of it: a correction at 1/4, where features know edges, then convex upsampling."""

    def __init__(self, hidden: int, channels: int) -> None:
        super().__init__()
        self.joint = nn.Sequential(
            ActivatedConv(hidden + channels, hidden, 3, rectified=True, padding=1),
            ActivatedConv(hidden, hidden, 3, rectified=True, padding=1),
        )
        self.change = ActivatedConv(hidden, 2, 3, padding=1)
        self.weights = ActivatedConv(hidden, 9 * FINE**2, 1)
        init_for_relu(self.joint)
        nn.init.normal_(self.change.weight, std=1e-3)

    def forward(self, state: Tensor, fine: Tensor, estimate: DepthEstimate) -> tuple[DepthEstimate, Tensor]:
        """state: B x hidden x H/8 x W/8; fine: features, B x channels x H/4 x W/4.

        Returns the estimate at 1/4, and the logits of its convex upsampling, B x (9 * 16) x H/4 x W/4.
        """
        upward = upsample_2x(state)
        joint = self.joint(torch.cat((upward, fine.to(upward.dtype)), dim=1))
        change, spread = self.change(joint).float().split(1, dim=1)
        better = DepthEstimate(upsample_2x(estimate.place) + change, upsample_2x(estimate.spread) + spread)
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
        finish: DepthRefiner,
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
        center: Tensor,
        updates: int,
        every: bool = False,
        progress: ProgressCallback | None = None,
    ) -> DepthSequence:
        """features: of the encoder, at 1/4 and 1/8 of a padded image whose sides are multiples of 32.

        center: B x 2, (x, y) that the camera looks at, pixels of the image. every: return all estimates (for training),
        not the last alone. progress: told of every update.
        """
        if updates < 1:
            raise ValueError(f"a depth takes one update or more, not {updates}")
        pyramid = [features[-1]]
        for stage in self.wide:
            pyramid.append(stage(pyramid[-1], False)[0])
        state: Tensor | None = None
        place = pyramid[-1].new_zeros(len(pyramid[-1]), 1, *map_size(pyramid[-1]), dtype=torch.float32)
        logs, log_scales, done = [], [], 0
        plan = zip(self.levels, reversed(pyramid), STRIDES, softmax_weights(updates), strict=True)
        for level, seen, stride, count in plan:
            place = place if state is None else upsample_2x(place)
            state, context = level(seen, state)
            prepared, rays = self.update.gru.prepare(context), pixel_rays(seen, stride, center)
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

    def _upsample(self, estimate: DepthEstimate, state: Tensor, fine: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        """An estimate at the size of the padded image: by Finish from the finest level, else smoothly."""
        if stride == STRIDES[-1]:
            estimate, weights = self.finish(state, fine, estimate)
            whole = upsample(self._bounded(estimate), 0.25 * weights, FINE)  # a quarter, as for flow
        else:
            whole = self._bounded(estimate)
            for _ in range(stride.bit_length() - 1):
                whole = upsample_2x(whole)
        return whole[:, :1], whole[:, 1:]

    def _bounded(self, estimate: DepthEstimate) -> Tensor:
        """Log depth between the bounds, and a log scale above the least: B x 2 x H x W."""
        log = self.low + (self.high - self.low) * torch.sigmoid(estimate.place)
        return torch.cat((log, LEAST_LOG_SCALE + F.softplus(estimate.spread - LEAST_LOG_SCALE)), dim=1)


def softmax_weights(updates: int) -> tuple[int, ...]:
    """Updates of each level, the coarsest first: equal shares, and what remains goes to the finest levels."""
    return tuple((updates + level) // len(STRIDES) for level in range(len(STRIDES)))


def pixel_rays(maps: Tensor, stride: int, center: Tensor) -> Tensor:
    """Where each pixel of maps at 1/stride of an image points to in the canonical camera: B x 2 x h x w.

    (x, y) / z of a ray, by the point that the camera looks at, center, B x 2, pixels of the image (the center of the
    first one is (0, 0)), and the canonical focal length. Depth along a floor that lies a certain height under the
    camera is that height / y: in canonical meters this holds whatever the focal length of the real camera was, since
    both are scaled by it alike.
    """
    grid = (pixel_grid(*map_size(maps), maps.device) + 0.5) * stride - 0.5
    return (grid[None] - center.float()[:, :, None, None]) / CANONICAL_FOCAL


def build_decoder(config: ModelConfig) -> DepthDecoder:
    """The decoder that a configuration describes, with fresh random weights."""
    embed, hidden = EMBEDDINGS[config.embedding], config.hidden_width
    below = config.widths[-1]
    wide = []
    for width in config.depth_widths:
        wide.append(Stage(embed(below, width, 2), width, [build_block(config, width)]))
        below = width
    channels = (*reversed(config.depth_widths), config.widths[-1])
    return DepthDecoder(
        wide,
        [Level(each, hidden, coarsest=index == 0) for index, each in enumerate(channels)],
        DepthUpdate(hidden),
        DepthRefiner(hidden, config.widths[0]),
        config.nearest,
        config.farthest,
    )


__all__ = [
    "CANONICAL_FOCAL",
    "DepthNetwork",
    "DepthPrediction",
    "build_depth",
    "canonical_log",
    "depth_padding",
    "focal_length",
    "image_center",
    "metric_depth",
    "optical_center",
]

LEAST_SIDE = 64
"""Smaller images are padded to this, so that instance norm has more than one pixel at the coarsest level."""
LEAST_DEPTH = 1e-6
"""Meters; unknown depths are stored as 0, whose logarithm is no number to compute with."""


@dataclass(frozen=True)
class DepthPrediction:
    """What the network says of a batch of images, at their size.

    logs: per update kept, the best last, B x 1 x H x W, natural logarithm of depth in meters for a camera of
    CANONICAL_FOCAL; log_scales: likewise, logarithm of the Laplace scale of the error of `logs`.
    prototypes: per stage and block of the encoder; empty unless asked for.
    """

    logs: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]


class DepthNetwork(nn.Module):
    """How far away everything in an image is.

    features: Encoder of the image, as that of flow is. decoder: takes its features and returns a DepthSequence.
    """

    def __init__(self, features: Encoder, decoder: DepthDecoder, config: ModelConfig) -> None:
        super().__init__()
        self.features = features
        self.decoder = decoder
        self.config = config

    def forward(
        self,
        images: Tensor,
        center: Tensor | None = None,
        updates: int | None = None,
        every: bool = False,
        prototypes: bool = False,
        progress: ProgressCallback | None = None,
    ) -> DepthPrediction:
        """images: B x 3 x H x W in [-1, 1], any size.

        center: B x 2, (x, y) that the camera looks at, pixels, the center of the first one being (0, 0); None: the
        middle of the images. updates: how many, by default as configured. every: return the estimate of every update.
        prototypes: return those of the encoder as well. progress: told of every update.
        """
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"depth needs a batch of images, B x 3 x H x W, not {tuple(images.shape)}")
        padding = depth_padding(images)
        encoded = self.features(padding.pad(images), prototypes)
        center = image_center(images) if center is None else center
        wanted = self.config.depth_updates if updates is None else updates
        sequence = self.decoder(encoded.features, center, wanted, every, progress)
        return DepthPrediction(
            tuple(padding.crop(log) for log in sequence.logs),
            tuple(padding.crop(log_scale) for log_scale in sequence.log_scales),
            encoded.prototypes,
        )


def build_depth(config: ModelConfig) -> DepthNetwork:
    """The depth network that a configuration describes, with fresh random weights."""
    return DepthNetwork(Encoder(config), build_decoder(config), config)


def depth_padding(images: Tensor) -> Padding:
    """What the network adds to images, B x 3 x H x W, before it encodes them."""
    return Padding.to_multiple(images.shape[2], images.shape[3], STRIDES[0], LEAST_SIDE)


def canonical_log(depth: Tensor, focal: Tensor) -> Tensor:
    """The natural logarithm of what a camera of CANONICAL_FOCAL would have to measure to see the same image.

    A camera of focal length f sees a thing as large as one of focal length g does at g / f times its distance. depth:
    B x 1 x H x W, meters; focal: B, pixels of the image that the network sees.
    """
    return (depth.clamp_min(LEAST_DEPTH) * (CANONICAL_FOCAL / focal).view(-1, 1, 1, 1)).log()


def metric_depth(log: Tensor, focal: Tensor) -> Tensor:
    """The inverse of `canonical_log`: meters, B x 1 x H x W."""
    return log.exp() * (focal / CANONICAL_FOCAL).view(-1, 1, 1, 1)


def image_center(images: Tensor) -> Tensor:
    """The middle of each image, B x 2, (x, y) in pixels: what most cameras look at."""
    places = ((images.shape[3] - 1) / 2, (images.shape[2] - 1) / 2)
    return torch.stack([images.new_full((len(images),), place, dtype=torch.float32) for place in places], dim=1)


def optical_center(intrinsics: Tensor) -> Tensor:
    """What each camera looks at: B x 3 x 3 to B x 2, (x, y) in pixels."""
    return intrinsics[:, :2, 2]


def focal_length(intrinsics: Tensor) -> Tensor:
    """One focal length of each camera, the geometric mean of both, as areas go by it: B x 3 x 3 to B, pixels."""
    return torch.sqrt(intrinsics[:, 0, 0] * intrinsics[:, 1, 1])
