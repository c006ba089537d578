"""Flow head: optical flow from frame 1 to frame 2.

The head computes, with all feature maps at 1/8 of the image:

1. The context of frame 1: by a second encoder applied to the image or, with `shared_encoder`, from the encoder's
   features of frame 1. With `cross_image` the features of both frames are then updated with each other's prototypes
   (`synchronization.CrossSynchronization`); the context is not.
2. 1x1 convolutions: `feature_proj` gives fmap1 and fmap2, whose dot products over sqrt(C) are the costs; `context_proj`
   gives the initial hidden state (tanh) and the context (ReLU) of the recurrent unit.
3. An initial flow: zero, a given one, or, with `global_matching`, global matching of the features (`heads.matching`).
4. `num_updates` recurrent updates (by default 12 in training and 32 in evaluation, as in the paper). Each reads costs
   at the current estimate, encodes them with the flow to motion features, aggregates these over the image, updates the
   hidden state by a separable ConvGRU, and predicts a change of the flow and a log scale of its error
   (`heads.update`).
5. Convex upsampling by 8 to the size of the image.

Two decoders differ in how they read costs in step 4 (sizes are defaults of `FlowHeadConfig`):

- "memory" (the paper, after FlowFormer, Huang et al., ECCV 2022) summarizes the cost map of each pixel of the first
  image into 8 latent tokens (`heads.cost_memory`), and queries them with a 9x9 window of costs around the current
  estimate.
- "recurrent" (RAFT, Teed and Deng, ECCV 2020) reads 9x9 windows from a correlation pyramid of 4 levels.

Motion is aggregated by attention between all pixels (the paper, after GMA, Jiang et al., ICCV 2021) or through
prototypes of the context.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import Padding, pixel_grid
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import Encoder
from protoformer.models.heads.correlation import (
    Correlation,
    KernelCorrelation,
    KernelOnDemandCorrelation,
    OnDemandCorrelation,
    RowCorrelation,
    StoredCorrelation,
    all_pairs_bytes,
    row_bytes,
)
from protoformer.models.heads.cost_memory import CostMemory
from protoformer.models.heads.matching import GlobalMatching, MatchResult, PixelAggregation, PrototypeAggregation
from protoformer.models.heads.update import FLOW_STRIDE, UpdateBlock, upsample
from protoformer.models.kernels.dispatch import stores_half_costs, use_kernels
from protoformer.models.layers import Attention, FeedForward, match_layout, sine_positions
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import ProgressCallback, map_size
from protoformer.models.synchronization import CrossSynchronization

CostReader = Callable[[Tensor], Tensor]
"""Maps positions in frame 2 (B x 2 x H x W, pixels of the feature map) to cost features (B x channels x H x W)."""


@dataclass(frozen=True)
class FlowSequence:
    """Estimates of successive updates at 8 times the size of the feature maps, or only the last one.

    Attributes:
        flows: Each B x 2 x 8H x 8W, pixels.
        log_scales: Each B x 1 x 8H x 8W, logarithm of the scale (pixels) of the Laplace distribution predicted for the
            errors of u and of v.
    """

    flows: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]


class CorrelationCosts(nn.Module):
    """Cost reader of the "recurrent" decoder: windows of a correlation pyramid, as in RAFT.

    Args:
        levels: Levels of the pyramid.
        radius: Windows have a side of 2 radius + 1.
    """

    def __init__(self, levels: int, radius: int) -> None:
        super().__init__()
        self.levels = levels
        self.radius = radius
        self.channels = levels * (2 * radius + 1) ** 2

    def prepare(self, fmap1: Tensor, fmap2: Tensor, context: Tensor, low_memory: bool) -> CostReader:
        """Return the cost reader of a batch of pairs.

        Args:
            fmap1: B x C x H x W, features of frame 1.
            fmap2: B x C x H x W, features of frame 2.
            context: B x hidden x H x W, context of frame 1 (unused).
            low_memory: Compute costs on demand instead of storing all pairs.

        Returns:
            A function from positions in frame 2 to cost features.
        """
        correlation = _build_correlation(fmap1, fmap2, self.levels, self.radius, low_memory)
        return lambda positions: correlation.windows(positions, self.radius)


class CostMemoryReader(nn.Module):
    """Cost reader of the "memory" decoder of the paper, after FlowFormer.

    A window of costs around the current estimate, embedded with its position, queries the latent tokens of the cost map
    of the same pixel by cross-attention. The cost features are the window and the attended tokens.

    Args:
        memory: Encodes the cost map of each pixel into latent tokens.
        width: Channels of a latent token.
        heads: Attention heads.
        radius: The window has a side of 2 radius + 1.
    """

    def __init__(self, memory: CostMemory, width: int, heads: int, radius: int) -> None:
        super().__init__()
        self.levels = 1
        self.memory = memory
        self.width = width
        self.radius = radius
        window = (2 * radius + 1) ** 2
        self.query_proj = nn.Sequential(nn.Conv2d(window, width, 1), nn.GELU(), nn.Conv2d(width, width, 1))
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)
        self.channels = window + width

    def prepare(self, fmap1: Tensor, fmap2: Tensor, context: Tensor, low_memory: bool) -> CostReader:
        """Return the cost reader of a batch of pairs.

        Args:
            fmap1: B x C x H x W, features of frame 1.
            fmap2: B x C x H x W, features of frame 2.
            context: B x hidden x H x W, context of frame 1.
            low_memory: Compute costs on demand instead of storing all pairs.

        Returns:
            A function from positions in frame 2 to cost features.
        """
        memory = self.memory(fmap1, fmap2, context).flatten(0, 1)
        correlation = _build_correlation(fmap1, fmap2, self.levels, self.radius, low_memory)

        def read(positions: Tensor) -> Tensor:
            window = correlation.windows(positions, self.radius)
            batch, _, height, width = window.shape
            encoding = sine_positions(positions.permute(0, 2, 3, 1), self.width).flatten(0, 2)
            query = (self.query_proj(window).permute(0, 2, 3, 1).flatten(0, 2) + encoding)[:, None]
            attended = query + self.attention(query, memory)
            attended = attended + self.feed_forward(attended)
            return torch.cat((window, attended.view(batch, height, width, -1).permute(0, 3, 1, 2)), dim=1)

        return read


def _build_correlation(fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, low_memory: bool) -> Correlation:
    """Choose the implementation of the correlation by device, precision and whether gradients are needed."""
    if use_kernels(fmap1, "lookup") and not (low_memory and torch.is_grad_enabled()):
        return (KernelOnDemandCorrelation if low_memory else KernelCorrelation)(fmap1, fmap2, levels)
    if low_memory:
        return OnDemandCorrelation(fmap1, fmap2, levels)
    if not torch.is_grad_enabled() and stores_half_costs(fmap1.device, fmap1.dtype == torch.bfloat16):
        return RowCorrelation(fmap1, fmap2, levels, radius)
    return StoredCorrelation(fmap1, fmap2, levels)


def cost_bytes(size: tuple[int, int], levels: int, radius: int, device: torch.device, half: bool) -> int:
    """Return the bytes of the all-pairs costs that inference stores for one pair of feature maps.

    Args:
        size: (H, W) of the feature maps.
        levels: Levels of the correlation pyramid.
        radius: Radius of the windows that are read.
        device: Device that the network runs on.
        half: Whether matrix products are in half precision.
    """
    if not stores_half_costs(device, half):
        return all_pairs_bytes(size, levels)
    return row_bytes(size, levels, radius) if device.type == "cpu" else all_pairs_bytes(size, levels) // 2


class FlowDecoder(nn.Module):
    """Recurrent decoder: refines a flow by reading costs at the current estimate.

    Args:
        costs: A module with `channels` and `prepare(fmap1, fmap2, context, low_memory) -> CostReader`.
        update: The recurrent update, built for `costs.channels` cost channels.
    """

    def __init__(self, costs: CorrelationCosts | CostMemoryReader, update: UpdateBlock) -> None:
        super().__init__()
        self.costs = costs
        self.update = update

    def forward(
        self,
        fmap1: Tensor,
        fmap2: Tensor,
        state: Tensor,
        context: Tensor,
        num_updates: int,
        init_flow: Tensor | None = None,
        return_all: bool = False,
        low_memory: bool = False,
        progress: ProgressCallback | None = None,
        upsampled: bool = True,
    ) -> FlowSequence:
        """Run the recurrent updates.

        Args:
            fmap1: B x C x H x W, features of frame 1.
            fmap2: B x C x H x W, features of frame 2.
            state: B x hidden x H x W, initial hidden state.
            context: B x hidden x H x W, context of frame 1.
            num_updates: Number of updates, at least 1.
            init_flow: B x 2 x H x W, pixels of the feature maps, initial flow; zero if None.
            return_all: Return the estimates of all updates (for training), not only the last.
            low_memory: Compute costs on demand instead of storing all pairs.
            progress: Called after every update.
            upsampled: Upsample the estimates by 8; otherwise they have the size of the feature maps. In both cases they
                are in pixels of the image.

        Returns:
            The estimates.

        Raises:
            ValueError: If `num_updates` is below 1.
        """
        if num_updates < 1:
            raise ValueError(f"the flow decoder needs at least one update, not {num_updates}")
        read_costs = self.costs.prepare(fmap1, fmap2, context, low_memory)
        prepared = self.update.prepare(context)
        grid = pixel_grid(fmap1.shape[2], fmap1.shape[3], fmap1.device)
        flow = grid.new_zeros(fmap1.shape[0], 2, *fmap1.shape[2:]) if init_flow is None else init_flow.float()
        flow = match_layout(flow)
        flows, log_scales = [], []
        for index in range(num_updates):
            # As in RAFT, the loss of an update has no gradient through the flow of earlier updates.
            flow = flow.detach()
            output = self.update(state, read_costs(grid + flow), flow, prepared)
            state, flow = output.state, flow + output.change
            if return_all or index == num_updates - 1:
                estimate = torch.cat((FLOW_STRIDE * flow, output.log_scale), dim=1)
                if upsampled:
                    estimate = self._upsample(estimate, state)
                final_flow, log_scale = estimate.split((2, 1), dim=1)
                flows.append(final_flow)
                log_scales.append(log_scale)
            if progress:
                progress(index + 1, num_updates)
        return FlowSequence(tuple(flows), tuple(log_scales))

    def _upsample(self, estimate: Tensor, state: Tensor) -> Tensor:
        """Upsample flow and log scale, B x 3 x H x W, by 8."""
        return upsample(estimate, self.update.upsampling_weights(state), FLOW_STRIDE)


MIN_SIDE = 64
"""Smaller images are padded to this many pixels, so that no level of the correlation pyramid is empty."""
STORED_LIMIT = 2**30
"""Bytes of all-pairs costs above which inference computes costs on demand, if `low_memory` is None."""


@dataclass(frozen=True)
class FlowPrediction:
    """Output of the flow head for a batch of B image pairs.

    Attributes:
        flows: Each B x 2 x H x W, pixels, from the first image to the second; the final estimate is last.
        log_scales: Each B x 1 x H x W, logarithm of the Laplace scale (pixels) of the errors of u and of v.
        prototypes: Per stage and block of the encoder, the prototypes of the first images; empty unless requested.
        matches: Result of global matching, if the network uses it and all estimates were requested.
    """

    flows: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]
    matches: MatchResult | None = None


class FlowHead(nn.Module):
    """Optical flow head: projections of the features, global matching and recurrent decoder.

    Args:
        config: Configuration of the model; its `flow` section defines the head.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.flow
        encoder_dim, hidden_dim = config.encoder.embed_dims[-1], config.flow.hidden_dim
        costs = _build_costs(config)
        aggregation = _build_aggregation(config)
        self.feature_proj = nn.Conv2d(encoder_dim, config.flow.feature_dim, 1)
        # An orthogonal projection keeps the norm of the features; training is slow if the costs start small.
        nn.init.orthogonal_(self.feature_proj.weight)
        self.context_encoder = None if config.flow.shared_encoder else Encoder(config.encoder)
        self.context_proj = nn.Conv2d(encoder_dim, 2 * hidden_dim, 1)
        self.cross_image = _build_cross_image(config) if config.flow.cross_image else None
        self.matching = GlobalMatching(encoder_dim) if config.flow.global_matching else None
        self.decoder = FlowDecoder(costs, UpdateBlock(costs.channels, hidden_dim, aggregation))

    def forward(
        self,
        frame1: Tensor,
        features1: Tensor,
        features2: Tensor,
        num_updates: int | None = None,
        init_flow: Tensor | None = None,
        return_all: bool = False,
        low_memory: bool | None = None,
        progress: ProgressCallback | None = None,
        upsampled: bool = True,
    ) -> FlowPrediction:
        """Estimate the flow from the features of two frames.

        Args:
            frame1: B x 3 x H x W in [-1, 1], for the context encoder and the size of the output.
            features1: B x C x h x w, features of the padded frame 1 at 1/8 (`flow_padding`).
            features2: B x C x h x w, features of the padded frame 2.
            num_updates: Number of recurrent updates; by default as configured for training or evaluation.
            init_flow: B x 2 x H x W, pixels, initial flow; by default that of global matching, or zero.
            return_all: Return the estimates of all updates, not only the last, and the result of global matching.
            low_memory: Compute costs on demand instead of storing all pairs; None decides by size. With `return_all`,
                global matching stores all pairs of its blocks nevertheless, as its loss needs them.
            progress: Called after every update.
            upsampled: Upsample the estimates to the size of the frames; otherwise they stay at 1/8,
                in pixels of the frames, which is faster and enough for a camera motion.

        Returns:
            The estimates, without prototypes.
        """
        padding = flow_padding(frame1)
        features1, features2 = match_layout(features1), match_layout(features2)
        context_features = features1
        if self.context_encoder is not None:
            context_features = self.context_encoder(padding.pad(frame1)).features[-1]
        state, context = self.context_proj(context_features).chunk(2, dim=1)
        if num_updates is None:
            num_updates = self.config.num_train_updates if self.training else self.config.num_updates
        if low_memory is None:
            stored = all_pairs_bytes(map_size(features1), self.decoder.costs.levels, features1.shape[0])
            low_memory = not torch.is_grad_enabled() and stored > STORED_LIMIT
        if self.cross_image is not None:
            features1, features2 = self.cross_image(features1, features2)
        fmap1, fmap2 = self.feature_proj(features1), self.feature_proj(features2)
        start = None if init_flow is None else F.avg_pool2d(padding.pad(init_flow), FLOW_STRIDE) / FLOW_STRIDE
        matches = None
        if start is None and self.matching is not None:
            if return_all:
                matches = self.matching(features1, features2)
                start = matches.flow
            else:
                start = self.matching.flow(features1, features2, low_memory)
        state, context = torch.tanh(state), F.relu(context)
        sequence = self.decoder(
            fmap1, fmap2, state, context, num_updates, start, return_all, low_memory, progress, upsampled
        )
        stride = 1 if upsampled else FLOW_STRIDE
        return FlowPrediction(
            tuple(padding.crop(flow, stride) for flow in sequence.flows),
            tuple(padding.crop(log_scale, stride) for log_scale in sequence.log_scales),
            prototypes=(),
            matches=matches,
        )


def flow_padding(images: Tensor) -> Padding:
    """Return the padding applied to images, B x 3 x H x W, before encoding."""
    return Padding.to_multiple(images.shape[2], images.shape[3], FLOW_STRIDE, MIN_SIDE)


def _build_costs(config: ModelConfig) -> CorrelationCosts | CostMemoryReader:
    flow = config.flow
    if flow.decoder == "recurrent":
        return CorrelationCosts(flow.corr_levels, flow.corr_radius)
    heads = flow.memory_dim // config.encoder.head_dim
    memory = CostMemory(flow.memory_tokens, flow.memory_dim, flow.memory_layers, heads, context_width=flow.hidden_dim)
    return CostMemoryReader(memory, flow.memory_dim, heads, flow.corr_radius)


def _build_cross_image(config: ModelConfig) -> CrossSynchronization:
    encoder = config.encoder
    channels = encoder.embed_dims[-1]
    heads = channels // encoder.head_dim
    prototyping = Prototyping(
        channels, heads, encoder.num_prototypes, num_iterations=1, spatial_prior=encoder.spatial_prior
    )
    return CrossSynchronization(channels, heads, prototyping)


def _build_aggregation(config: ModelConfig) -> nn.Module:
    flow = config.flow
    if flow.aggregation == "pixels":
        return PixelAggregation(flow.hidden_dim)
    heads = flow.hidden_dim // config.encoder.head_dim
    prototyping = Prototyping(flow.hidden_dim, heads, flow.num_prototypes, num_iterations=1)
    return PrototypeAggregation(flow.hidden_dim, prototyping)
