"""Depth head: log depth of one image, after R-MSFM (Zhou et al., ICCV 2021).

1. The encoder gives features at 1/4 and 1/8 of the image; two more stages add 1/16 and 1/32.
2. Coarse to fine over 1/32, 1/16 and 1/8, a shared recurrent update (separable ConvGRU) refines a logit map. Its inputs
   are the current logits and the viewing ray of each pixel.
3. At 1/4 a last correction uses the features of stage 1, then convex upsampling by 4.
4. log depth = log(min_depth) + (log(max_depth) - log(min_depth)) sigmoid(logit).

Depth is predicted in meters of a canonical camera with a focal length of `CANONICAL_FOCAL` pixels; `metric_depth`
converts it to meters of the real camera. Each estimate has a log scale, the predicted uncertainty of log depth.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import Padding, pixel_grid, upsample_2x
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import EMBEDDINGS, Stage, build_block
from protoformer.models.heads.update import Prepared, SeparableGRU, upsample
from protoformer.models.layers import FusedConv, init_for_relu
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import ProgressCallback, map_size

CANONICAL_FOCAL = 256.0
"""Focal length of the canonical camera, pixels."""
DEPTH_STRIDES = (32, 16, 8)
"""Downsampling factors of the refinement levels relative to the image, the coarsest first; those of the two stages of
the encoder are `encoder.STRIDES`."""
FINE_STRIDE = 4
"""Downsampling factor of the last correction relative to the image."""
MIN_LOG_SCALE = -5.0
"""Lower bound of the log scale: e^-5 = 0.7 % of the depth, below the precision of depth sensors."""
DEPTH_MIN_SIDE = 64
"""Smaller images are padded to this many pixels, as instance norm needs more than one at the coarsest level."""
MIN_DEPTH = 1e-6
"""Lower bound of depth before the logarithm, meters; invalid depths are stored as 0."""


@dataclass(frozen=True)
class DepthPrediction:
    """Output of the depth head for a batch of images.

    Attributes:
        log_depths: Each B x 1 x H x W, natural logarithm of depth in canonical meters; the final estimate is last.
        log_scales: Each B x 1 x H x W, logarithm of the Laplace scale of the error of `log_depths`.
        prototypes: Per stage and block of the encoder; empty unless requested.
    """

    log_depths: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]


@dataclass(frozen=True)
class DepthEstimate:
    """Unbounded estimate at one level.

    Attributes:
        logit: B x 1 x H x W; its sigmoid goes from 0 at the nearest to 1 at the farthest log depth.
        raw_log_scale: B x 1 x H x W, log scale before the lower bound is applied.
    """

    logit: Tensor
    raw_log_scale: Tensor


class Level(nn.Module):
    """Initial hidden state and context of one refinement level.

    Args:
        channels: Channels of the features of the level.
        hidden: Channels of hidden state and context.
        coarsest: Whether there is no coarser level whose state is merged.
    """

    def __init__(self, channels: int, hidden: int, coarsest: bool) -> None:
        super().__init__()
        self.context_proj = nn.Conv2d(channels, 2 * hidden, 1)
        self.merge_conv = None if coarsest else nn.Conv2d(hidden, hidden, 3, padding=1)

    def forward(self, features: Tensor, coarse_state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute state and context.

        Args:
            features: B x channels x H x W.
            coarse_state: B x hidden x H/2 x W/2, state of the coarser level; None for the coarsest.

        Returns:
            State and context, B x hidden x H x W each.
        """
        state, context = self.context_proj(features).chunk(2, dim=1)
        if self.merge_conv is not None and coarse_state is not None:
            state = state + self.merge_conv(upsample_2x(coarse_state))
        return torch.tanh(state), F.relu(context)


class DepthUpdate(nn.Module):
    """Recurrent update of the depth: encodes the estimate and the viewing rays, updates the state by a ConvGRU.

    Args:
        hidden: Channels of the hidden state.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.input_encoder = nn.Sequential(
            FusedConv(3, hidden, 7, relu=True, padding=3),
            FusedConv(hidden, hidden - 3, 3, relu=True, padding=1),
        )
        self.gru = SeparableGRU(hidden, hidden)
        last_conv = FusedConv(2 * hidden, 2, 3, padding=1)
        self.delta_head = nn.Sequential(FusedConv(hidden, 2 * hidden, 3, relu=True, padding=1), last_conv)
        init_for_relu(self.input_encoder)
        init_for_relu(self.delta_head[0])
        # Small weights keep the first logits near 0, where the gradient of the sigmoid is largest.
        nn.init.normal_(last_conv.weight, std=1e-3)

    def forward(self, state: Tensor, logit: Tensor, rays: Tensor, prepared: Prepared) -> tuple[Tensor, DepthEstimate]:
        """Run one update.

        Args:
            state: B x hidden x H x W.
            logit: B x 1 x H x W, current estimate.
            rays: B x 2 x H x W, from `pixel_rays`.
            prepared: Context, from `gru.prepare`.

        Returns:
            The new state, B x hidden x H x W, and the new estimate.
        """
        inputs = torch.cat((logit, rays), dim=1)
        encoded = self.input_encoder(inputs)
        state = self.gru(state, torch.cat((encoded, inputs.to(encoded.dtype)), dim=1), prepared)
        change, raw_log_scale = self.delta_head(state).float().split(1, dim=1)
        return state, DepthEstimate(logit + change, raw_log_scale)


class DepthRefiner(nn.Module):
    """Correction of the estimate at 1/4 of the image, from the features of stage 1, and its upsampling weights.

    Args:
        hidden: Channels of the hidden state.
        channels: Channels of the features at 1/4.
    """

    def __init__(self, hidden: int, channels: int) -> None:
        super().__init__()
        self.fusion = nn.Sequential(
            FusedConv(hidden + channels, hidden, 3, relu=True, padding=1),
            FusedConv(hidden, hidden, 3, relu=True, padding=1),
        )
        self.delta_head = FusedConv(hidden, 2, 3, padding=1)
        self.upsampling_head = FusedConv(hidden, 9 * FINE_STRIDE**2, 1)
        init_for_relu(self.fusion)
        nn.init.normal_(self.delta_head.weight, std=1e-3)

    def forward(self, state: Tensor, fine: Tensor, estimate: DepthEstimate) -> tuple[DepthEstimate, Tensor]:
        """Refine an estimate.

        Args:
            state: B x hidden x H/8 x W/8.
            fine: B x channels x H/4 x W/4, features of stage 1.
            estimate: Estimate at 1/8.

        Returns:
            The estimate at 1/4, and the logits of its convex upsampling, B x (9 * 16) x H/4 x W/4.
        """
        upsampled = upsample_2x(state)
        joint = self.fusion(torch.cat((upsampled, fine.to(upsampled.dtype)), dim=1))
        change, scale_change = self.delta_head(joint).float().split(1, dim=1)
        refined = DepthEstimate(
            upsample_2x(estimate.logit) + change, upsample_2x(estimate.raw_log_scale) + scale_change
        )
        return refined, self.upsampling_head(joint)


class DepthHead(nn.Module):
    """Depth head: recurrent coarse-to-fine decoder with two further encoder stages.

    Args:
        config: Configuration of the model; its `depth` section defines the head.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.depth
        embed, hidden, encoder_dims = (
            EMBEDDINGS[config.encoder.embedding],
            config.depth.hidden_dim,
            config.encoder.embed_dims,
        )
        dims = (encoder_dims[-1], *config.depth.embed_dims)
        # One block each, at 1/16 and 1/32 of the image, for a large receptive field.
        self.stages = nn.ModuleList(
            Stage(embed(dim_in, dim, 2), dim, [build_block(config.encoder, dim)]) for dim_in, dim in pairwise(dims)
        )
        self.levels = nn.ModuleList(Level(dim, hidden, coarsest=index == 0) for index, dim in enumerate(reversed(dims)))
        self.update = DepthUpdate(hidden)  # shared by all levels
        self.refiner = DepthRefiner(hidden, encoder_dims[0])
        self.log_min_depth, self.log_max_depth = math.log(config.depth.min_depth), math.log(config.depth.max_depth)

    def forward(
        self,
        images: Tensor,
        features: tuple[Tensor, ...],
        center: Tensor | None = None,
        num_updates: int | None = None,
        return_all: bool = False,
        progress: ProgressCallback | None = None,
    ) -> DepthPrediction:
        """Estimate the depth of images from their features.

        Args:
            images: B x 3 x H x W, for the size of the output.
            features: Features of the padded images (`depth_padding`) at 1/4 and 1/8.
            center: B x 2, principal point (x, y), pixels, with (0, 0) at the center of the first pixel; by default the
                middle of the images.
            num_updates: Number of updates over all levels, at least 1; by default as configured.
            return_all: Return the estimates of all updates (for training), not only the last.
            progress: Called after every update.

        Returns:
            The estimates at the size of the images, without prototypes.

        Raises:
            ValueError: If `num_updates` is below 1.
        """
        center = image_center(images) if center is None else center
        num_updates = self.config.num_updates if num_updates is None else num_updates
        if num_updates < 1:
            raise ValueError(f"the depth head needs at least one update, not {num_updates}")
        pyramid = [features[-1]]
        for stage in self.stages:
            pyramid.append(stage(pyramid[-1], False)[0])
        state: Tensor | None = None
        logit = pyramid[-1].new_zeros(pyramid[-1].shape[0], 1, *map_size(pyramid[-1]), dtype=torch.float32)
        log_depths, log_scales, done = [], [], 0
        plan = zip(self.levels, reversed(pyramid), DEPTH_STRIDES, updates_per_level(num_updates), strict=True)
        for level, level_features, stride, count in plan:
            logit = logit if state is None else upsample_2x(logit)
            state, context = level(level_features, state)
            prepared, rays = self.update.gru.prepare(context), pixel_rays(level_features, stride, center)
            for _ in range(count):
                # As in RAFT, the loss of an update has no gradient through earlier estimates.
                state, estimate = self.update(state, logit.detach(), rays, prepared)
                logit, done = estimate.logit, done + 1
                if return_all or done == num_updates:
                    log_depth, log_scale = self._upsample(estimate, state, features[0], stride)
                    log_depths.append(log_depth)
                    log_scales.append(log_scale)
                if progress:
                    progress(done, num_updates)
        crop = depth_padding(images).crop
        return DepthPrediction(tuple(map(crop, log_depths)), tuple(map(crop, log_scales)), prototypes=())

    def _upsample(self, estimate: DepthEstimate, state: Tensor, fine: Tensor, stride: int) -> tuple[Tensor, Tensor]:
        """Upsample an estimate to log depth and log scale at the size of the padded image.

        The finest level is refined and upsampled by learned weights, the coarser ones bilinearly.
        """
        if stride == DEPTH_STRIDES[-1]:
            estimate, weights = self.refiner(state, fine, estimate)
            upsampled = upsample(self._bound(estimate), 0.25 * weights, FINE_STRIDE)  # 0.25 as in the flow decoder
        else:
            upsampled = self._bound(estimate)
            for _ in range(stride.bit_length() - 1):
                upsampled = upsample_2x(upsampled)
        return upsampled[:, :1], upsampled[:, 1:]

    def _bound(self, estimate: DepthEstimate) -> Tensor:
        """Return the bounded log depth and log scale, B x 2 x H x W."""
        log_range = self.log_max_depth - self.log_min_depth
        log_depth = self.log_min_depth + log_range * torch.sigmoid(estimate.logit)
        return torch.cat((log_depth, MIN_LOG_SCALE + F.softplus(estimate.raw_log_scale - MIN_LOG_SCALE)), dim=1)


def updates_per_level(num_updates: int) -> tuple[int, ...]:
    """Split the updates evenly over the levels, the coarsest first; the remainder goes to the finest levels."""
    return tuple((num_updates + level) // len(DEPTH_STRIDES) for level in range(len(DEPTH_STRIDES)))


def pixel_rays(maps: Tensor, stride: int, center: Tensor) -> Tensor:
    """Return the viewing ray (x, y) / z of each pixel in the canonical camera.

    The depth of a ground plane at height h below the camera is h / y. In canonical meters this holds for any focal
    length of the real camera, which scales both sides alike.

    Args:
        maps: B x C x h x w, maps at 1/stride of the image.
        stride: Downsampling factor of the maps.
        center: B x 2, principal point, pixels of the image; the center of the first pixel is (0, 0).

    Returns:
        B x 2 x h x w.
    """
    grid = (pixel_grid(*map_size(maps), maps.device) + 0.5) * stride - 0.5
    return (grid[None] - center.float()[:, :, None, None]) / CANONICAL_FOCAL


def depth_padding(images: Tensor) -> Padding:
    """Return the padding applied to images, B x 3 x H x W, before encoding."""
    return Padding.to_multiple(images.shape[2], images.shape[3], DEPTH_STRIDES[0], DEPTH_MIN_SIDE)


def canonical_log_depth(depth: Tensor, focal: Tensor) -> Tensor:
    """Convert metric depth to the log depth of the canonical camera.

    An object looks the same to a camera of focal length f at depth z and to one of focal length g at depth z g / f.

    Args:
        depth: B x 1 x H x W, meters.
        focal: B, focal length, pixels of the input image of the network.

    Returns:
        B x 1 x H x W, natural logarithm of canonical meters.
    """
    return (depth.clamp_min(MIN_DEPTH) * (CANONICAL_FOCAL / focal).view(-1, 1, 1, 1)).log()


def metric_depth(log_depth: Tensor, focal: Tensor) -> Tensor:
    """Convert canonical log depth, B x 1 x H x W, to meters by the focal lengths (B, pixels): B x 1 x H x W."""
    return log_depth.exp() * (focal / CANONICAL_FOCAL).view(-1, 1, 1, 1)


def image_center(images: Tensor) -> Tensor:
    """Return the center (x, y) of each image in pixels, B x 2, the default principal point."""
    center = ((images.shape[3] - 1) / 2, (images.shape[2] - 1) / 2)
    return torch.stack([images.new_full((images.shape[0],), value, dtype=torch.float32) for value in center], dim=1)


def principal_point(intrinsics: Tensor) -> Tensor:
    """Return the principal points (x, y) of intrinsics, B x 3 x 3: B x 2, pixels."""
    return intrinsics[:, :2, 2]


def focal_length(intrinsics: Tensor) -> Tensor:
    """Return the geometric mean of both focal lengths of intrinsics, B x 3 x 3: B, pixels."""
    return torch.sqrt(intrinsics[:, 0, 0] * intrinsics[:, 1, 1])
