"""Flow head and flow network: optical flow from frame 1 to frame 2.

The network computes, with all feature maps at 1/8 of the image:

1. Features of both images by one encoder, and a context map of the first image by a second encoder without shared
   weights (or, with `shared_encoder`, from the features of the first image).
2. 1x1 convolutions: `match` gives fmap1 and fmap2, whose dot products over sqrt(C) are the costs; `describe` gives the
   initial hidden state (tanh) and the context (ReLU) of the recurrent unit.
3. An initial flow: zero, a given one, or, with `matching`, global matching of the features (`heads.matching`).
4. `num_updates` recurrent updates (12 in training and 32 in evaluation in the paper). Each reads costs at the current
   estimate, encodes them with the flow to motion features, aggregates these over the image, updates the hidden state
   by a separable ConvGRU, and predicts a change of the flow and a log scale of its error (`heads.update`).
5. Convex upsampling by 8 to the size of the image.

Two decoders differ in how they read costs in step 4:

- "memory" (the paper, after FlowFormer) summarizes the cost map of each pixel of the first image into 8 latent tokens
  (`heads.cost_memory`), and queries them with a 9x9 window of costs around the current estimate.
- "recurrent" (RAFT) reads 9x9 windows from a correlation pyramid of 4 levels.

Motion is aggregated by attention between all pixels (GMA, the paper) or through prototypes of the context.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.resizing import Padding
from protoformer.geometry.warps import pixel_grid
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
from protoformer.models.heads.cost_memory import Attention, CostMemory, FeedForward, sine_positions
from protoformer.models.heads.matching import GlobalMatching, MatchResult, PixelAggregation, PrototypeAggregation
from protoformer.models.heads.update import FACTOR, UpdateBlock, upsample
from protoformer.models.kernels.dispatch import stores_half_costs, use_kernels
from protoformer.models.layers import match_layout
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import ProgressCallback, map_size

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


class MemoryCosts(nn.Module):
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
        self.ask = nn.Sequential(nn.Conv2d(window, width, 1), nn.GELU(), nn.Conv2d(width, width, 1))
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
            query = (self.ask(window).permute(0, 2, 3, 1).flatten(0, 2) + encoding)[:, None]
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

    def __init__(self, costs: CorrelationCosts | MemoryCosts, update: UpdateBlock) -> None:
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

        Returns:
            The upsampled estimates.

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
                upsampled = self._upsample(flow, output.log_scale, state)
                upsampled_flow, upsampled_log_scale = upsampled.split((2, 1), dim=1)
                flows.append(upsampled_flow)
                log_scales.append(upsampled_log_scale)
            if progress:
                progress(index + 1, num_updates)
        return FlowSequence(tuple(flows), tuple(log_scales))

    def _upsample(self, flow: Tensor, log_scale: Tensor, state: Tensor) -> Tensor:
        """Upsample flow and log scale by 8 to B x 3 x 8H x 8W, the flow in pixels of the image."""
        weights = self.update.upsampling_weights(state)
        return upsample(torch.cat((FACTOR * flow, log_scale), dim=1), weights, FACTOR)


LEAST_SIDE = 64
"""Smaller images are padded to this many pixels, so that no level of the correlation pyramid is empty."""
STORED_LIMIT = 2**30
"""Bytes of all-pairs costs above which inference computes costs on demand, if `low_memory` is None."""


@dataclass(frozen=True)
class FlowPrediction:
    """Output of the flow network for a batch of B image pairs.

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


def normalize_images(images: Tensor) -> Tensor:
    """Scale images from [0, 1] to [-1, 1], the range of the networks."""
    return 2 * images - 1


class FlowNetwork(nn.Module):
    """Optical flow network: encoders, projections and recurrent decoder.

    Args:
        features: Encoder of both images.
        context: Encoder of the first image, or None to compute the context from its features.
        match: Projects the features at 1/8 to the feature maps that are correlated.
        describe: Projects the context features at 1/8 to the hidden state and the context, 2 hidden channels.
        matching: Computes an initial flow from the features at 1/8, or None to start at zero.
        decoder: The recurrent decoder.
        config: The configuration that the network was built from.
    """

    def __init__(
        self,
        features: Encoder,
        context: Encoder | None,
        match: nn.Module,
        describe: nn.Module,
        matching: GlobalMatching | None,
        decoder: FlowDecoder,
        config: ModelConfig,
    ) -> None:
        super().__init__()
        self.features = features
        self.context = context
        self.match = match
        self.describe = describe
        self.matching = matching
        self.decoder = decoder
        self.config = config

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        updates: int | None = None,
        start: Tensor | None = None,
        every: bool = False,
        low_memory: bool | None = None,
        prototypes: bool = False,
        progress: ProgressCallback | None = None,
    ) -> FlowPrediction:
        """Estimate the flow from the first to the second images.

        Args:
            first: B x 3 x H x W in [-1, 1].
            second: B x 3 x H x W in [-1, 1].
            updates: Number of recurrent updates; by default as configured for training or evaluation.
            start: B x 2 x H x W, pixels, initial flow.
            every: Return the estimates of all updates, not only the last.
            low_memory: Compute costs on demand instead of storing all pairs; None decides by size.
            prototypes: Also return the prototypes of the first images.
            progress: Called after every update.

        Returns:
            The estimates at the size of the images.

        Raises:
            ValueError: If the shapes of the images or of the initial flow do not fit.
        """
        if first.shape != second.shape or first.dim() != 4 or first.shape[1] != 3:
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise ValueError(f"flow needs two image batches of the same shape, B x 3 x H x W, not {shapes}")
        if start is not None and start.shape != (first.shape[0], 2, *first.shape[2:]):
            raise ValueError(f"the initial flow must be B x 2 x H x W like the images, not {tuple(start.shape)}")
        padding = flow_padding(first)
        encoded = self.features(torch.cat((padding.pad(first), padding.pad(second))), prototypes)
        fmap1, fmap2 = encoded.features[-1][: first.shape[0]], encoded.features[-1][first.shape[0] :]
        prediction = self.decode(first, fmap1, fmap2, updates, start, every, low_memory, progress)
        first_prototypes = tuple(tuple(block.first(first.shape[0]) for block in stage) for stage in encoded.prototypes)
        return replace(prediction, prototypes=first_prototypes)

    def encode(self, images: Tensor) -> Tensor:
        """Encode images for `decode`; in a video, the features of a frame serve two pairs.

        Args:
            images: B x 3 x H x W in [-1, 1].

        Returns:
            Features of the padded images at 1/8, B x C x h x w.
        """
        features: Tensor = self.features(flow_padding(images).pad(images)).features[-1]
        return features

    def decode(
        self,
        first: Tensor,
        fmap1: Tensor,
        fmap2: Tensor,
        updates: int | None = None,
        start: Tensor | None = None,
        every: bool = False,
        low_memory: bool | None = None,
        progress: ProgressCallback | None = None,
    ) -> FlowPrediction:
        """Estimate the flow from encoded images.

        Args:
            first: B x 3 x H x W in [-1, 1], the first images, for the context encoder.
            fmap1: B x C x h x w, features of the first images, from `encode`.
            fmap2: B x C x h x w, features of the second images, from `encode`.
            updates: As in `forward`.
            start: As in `forward`.
            every: As in `forward`.
            low_memory: As in `forward`.
            progress: As in `forward`.

        Returns:
            The estimates at the size of the images, without prototypes.
        """
        padding = flow_padding(first)
        fmap1, fmap2 = match_layout(fmap1), match_layout(fmap2)
        context_features = fmap1 if self.context is None else self.context(padding.pad(first)).features[-1]
        state, context = self.describe(context_features).chunk(2, dim=1)
        if updates is None:
            updates = self.config.updates_training if self.training else self.config.updates
        if low_memory is None:
            low_memory = not torch.is_grad_enabled() and self._stored_bytes(fmap1) > STORED_LIMIT
        source, target = self.match(fmap1), self.match(fmap2)
        init_flow = None if start is None else F.avg_pool2d(padding.pad(start), FACTOR) / FACTOR
        matches = None
        if init_flow is None and self.matching is not None:
            if every:
                matches = self.matching(fmap1, fmap2)
                init_flow = matches.flow
            else:
                init_flow = self.matching.flow(fmap1, fmap2, low_memory)
        sequence = self.decoder(
            source,
            target,
            torch.tanh(state),
            F.relu(context),
            updates,
            init_flow,
            every,
            low_memory,
            progress,
        )
        return FlowPrediction(
            tuple(padding.crop(flow) for flow in sequence.flows),
            tuple(padding.crop(log_scale) for log_scale in sequence.log_scales),
            prototypes=(),
            matches=matches,
        )

    def _stored_bytes(self, features: Tensor) -> int:
        return all_pairs_bytes(map_size(features), self.decoder.costs.levels, features.shape[0])


def flow_padding(images: Tensor) -> Padding:
    """Return the padding that the network applies to images, B x 3 x H x W, before encoding."""
    return Padding.to_multiple(images.shape[2], images.shape[3], FACTOR, LEAST_SIDE)


def build_flow(config: ModelConfig) -> FlowNetwork:
    """Build the flow network of a configuration with random weights."""
    hidden, heads = config.hidden_width, config.hidden_width // config.head_width
    costs: CorrelationCosts | MemoryCosts
    if config.decoder == "memory":
        memory_heads = config.memory_width // config.head_width
        memory = CostMemory(
            config.memory_tokens, config.memory_width, config.memory_layers, memory_heads, context_width=hidden
        )
        costs = MemoryCosts(memory, config.memory_width, memory_heads, config.radius)
    else:
        costs = CorrelationCosts(config.levels, config.radius)
    aggregation: nn.Module
    if config.aggregation == "pixels":
        aggregation = PixelAggregation(hidden)
    else:
        aggregation = PrototypeAggregation(hidden, Prototyping(hidden, heads, config.groups, iterations=1))
    match = nn.Conv2d(config.widths[-1], config.feature_width, 1)
    # An orthogonal projection keeps the norm of the features; training is slow if the costs start small.
    nn.init.orthogonal_(match.weight)
    return FlowNetwork(
        features=Encoder(config),
        context=None if config.shared_encoder else Encoder(config),
        match=match,
        describe=nn.Conv2d(config.widths[-1], 2 * hidden, 1),
        matching=GlobalMatching(config.widths[-1]) if config.matching else None,
        decoder=FlowDecoder(costs, UpdateBlock(costs.channels, hidden, aggregation)),
        config=config,
    )
