"""Optical flow: encoder, context and decoder put together."""

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
from protoformer.models.kernels.dispatch import halves_costs, kernels_run_on
from protoformer.models.layers import match_layout
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import ProgressCallback, map_size

CostReader = Callable[[Tensor], Tensor]
"""Positions in the target (B x 2 x H x W) to costs there (B x channels x H x W)."""


@dataclass(frozen=True)
class FlowSequence:
    """The estimates of successive updates, the last one alone unless all were asked for, at 8 times the features' size.

    flows: each B x 2 x 8H x 8W, pixels. log_scales: each B x 1 x 8H x 8W, the logarithm of the scale (pixels) of the
    Laplace distribution that the error of u, and that of v, is expected to have.
    """

    flows: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]


class CorrelationCosts(nn.Module):
    """Reads windows of the correlation pyramid as they are: the `recurrent` decoder."""

    def __init__(self, levels: int, radius: int) -> None:
        super().__init__()
        self.levels = levels
        self.radius = radius
        self.channels = levels * (2 * radius + 1) ** 2

    def prepare(self, source: Tensor, target: Tensor, context: Tensor, low_memory: bool) -> CostReader:
        """A reader for one pair; features: B x C x H x W."""
        correlation = _correlation(source, target, self.levels, self.radius, low_memory)
        return lambda positions: correlation.windows(positions, self.radius)


class MemoryCosts(nn.Module):
    """Reads a window of costs, and asks the cost memory about it: the `memory` decoder of the paper."""

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

    def prepare(self, source: Tensor, target: Tensor, context: Tensor, low_memory: bool) -> CostReader:
        """A reader for one pair; features: B x C x H x W."""
        memory = self.memory(source, target, context).flatten(0, 1)
        correlation = _correlation(source, target, self.levels, self.radius, low_memory)

        def read(positions: Tensor) -> Tensor:
            window = correlation.windows(positions, self.radius)
            batch, _, height, width = window.shape
            place = sine_positions(positions.permute(0, 2, 3, 1), self.width).flatten(0, 2)
            question = (self.ask(window).permute(0, 2, 3, 1).flatten(0, 2) + place)[:, None]
            answer = question + self.attention(question, memory)
            answer = answer + self.feed_forward(answer)
            return torch.cat((window, answer.view(batch, height, width, -1).permute(0, 3, 1, 2)), dim=1)

        return read


def _correlation(source: Tensor, target: Tensor, levels: int, radius: int, low_memory: bool) -> Correlation:
    if kernels_run_on(source) and not (low_memory and torch.is_grad_enabled()):
        return (KernelOnDemandCorrelation if low_memory else KernelCorrelation)(source, target, levels)
    if low_memory:
        return OnDemandCorrelation(source, target, levels)
    if not torch.is_grad_enabled() and halves_costs(source.device, source.dtype == torch.bfloat16):
        return RowCorrelation(source, target, levels, radius)
    return StoredCorrelation(source, target, levels)


def cost_bytes(size: tuple[int, int], levels: int, radius: int, device: torch.device, half: bool) -> int:
    """Bytes of all pairs of costs that a network in use keeps for a pair of maps of (H, W), where it stores them.

    half: whether its products are in half precision.
    """
    if not halves_costs(device, half):
        return all_pairs_bytes(size, levels)
    return row_bytes(size, levels, radius) if device.type == "cpu" else all_pairs_bytes(size, levels) // 2


class FlowDecoder(nn.Module):
    """Refines a flow from zero, or from a start, by reading costs at the current estimate.

    costs: a module with `channels` and `prepare(source, target, context, low_memory) -> CostReader`.
    update: the recurrent update, which takes as many cost channels.
    """

    def __init__(self, costs: CorrelationCosts | MemoryCosts, update: UpdateBlock) -> None:
        super().__init__()
        self.costs = costs
        self.update = update

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        state: Tensor,
        context: Tensor,
        updates: int,
        start: Tensor | None = None,
        every: bool = False,
        low_memory: bool = False,
        progress: ProgressCallback | None = None,
    ) -> FlowSequence:
        """source, target: B x C x H x W features; state, context: B x hidden x H x W.

        start: B x 2 x H x W, in pixels of these maps, a flow to refine. every: return all estimates (for training), not
        the last alone. low_memory: never store all pairs of costs. progress: told of every update.
        """
        if updates < 1:
            raise ValueError(f"a flow takes one update or more, not {updates}")
        read = self.costs.prepare(source, target, context, low_memory)
        prepared = self.update.prepare(context)
        origin = pixel_grid(source.shape[2], source.shape[3], source.device)
        flow = origin.new_zeros(source.shape[0], 2, *source.shape[2:]) if start is None else start.float()
        flow = match_layout(flow)
        flows, log_scales = [], []
        for index in range(updates):
            # Each update is judged on what it adds, not on what it makes of earlier ones.
            flow = flow.detach()
            step = self.update(state, read(origin + flow), flow, prepared)
            state, flow = step.state, flow + step.change
            if every or index == updates - 1:
                fine = self._upsample(flow, step.log_scale, state)
                fine_flow, fine_scale = fine.split((2, 1), dim=1)
                flows.append(fine_flow)
                log_scales.append(fine_scale)
            if progress:
                progress(index + 1, updates)
        return FlowSequence(tuple(flows), tuple(log_scales))

    def _upsample(self, flow: Tensor, log_scale: Tensor, state: Tensor) -> Tensor:
        weights = self.update.upsampling_weights(state)
        return upsample(torch.cat((FACTOR * flow, log_scale), dim=1), weights, FACTOR)


LEAST_SIDE = 64
"""Smaller images are padded to this, so that every level of the correlation pyramid has pixels."""
STORED_LIMIT = 2**30
"""Bytes of all-pairs costs beyond which a network in use computes them on demand, unless told which to do."""


@dataclass(frozen=True)
class FlowPrediction:
    """What the network says of a batch of pairs, at the images' size.

    flows, log_scales: as in FlowSequence, the best estimate last.
    prototypes: per stage and block, those of the first images; empty unless asked for.
    matches: those that the updates began with, if there are any and every estimate was asked for.
    """

    flows: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]
    matches: MatchResult | None = None


def normalize_images(images: Tensor) -> Tensor:
    """Images in [0, 1] as networks take them, in [-1, 1]."""
    return 2 * images - 1


class FlowNetwork(nn.Module):
    """Motion from a first to a second image.

    features: Encoder of both images. context: Encoder of the first image, or None to read the context off its features.
    match, describe: the last features to what is correlated, and to the recurrent state and context.
    matching: from the last features to a first flow, or None to begin at zero.
    decoder: takes these and returns a FlowSequence.
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
        """first, second: B x 3 x H x W in [-1, 1].

        updates: how many, by default as configured for training or use. start: B x 2 x H x W, pixels, a flow to refine.
        every: return the estimate of every update. low_memory: never store all pairs of costs; None decides by size.
        prototypes: return those of the first images as well. progress: told of every update.
        """
        if first.shape != second.shape or first.dim() != 4 or first.shape[1] != 3:
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise ValueError(f"flow needs two batches of one shape, B x 3 x H x W, not {shapes}")
        if start is not None and start.shape != (first.shape[0], 2, *first.shape[2:]):
            raise ValueError(f"a start for these images is B x 2 x H x W like them, not {tuple(start.shape)}")
        padding = flow_padding(first)
        encoded = self.features(torch.cat((padding.pad(first), padding.pad(second))), prototypes)
        ours, theirs = encoded.features[-1][: first.shape[0]], encoded.features[-1][first.shape[0] :]
        found = self.decode(first, ours, theirs, updates, start, every, low_memory, progress)
        kept = tuple(tuple(each.first(first.shape[0]) for each in stage) for stage in encoded.prototypes)
        return replace(found, prototypes=kept)

    def encode(self, images: Tensor) -> Tensor:
        """What `decode` takes of images, B x 3 x H x W in [-1, 1], each of which may serve two pairs of a video."""
        features: Tensor = self.features(flow_padding(images).pad(images)).features[-1]
        return features

    def decode(
        self,
        first: Tensor,
        ours: Tensor,
        theirs: Tensor,
        updates: int | None = None,
        start: Tensor | None = None,
        every: bool = False,
        low_memory: bool | None = None,
        progress: ProgressCallback | None = None,
    ) -> FlowPrediction:
        """As `forward`, for images of which both are encoded: ours, those of the first; theirs, those of the second."""
        padding = flow_padding(first)
        ours, theirs = match_layout(ours), match_layout(theirs)
        described = ours if self.context is None else self.context(padding.pad(first)).features[-1]
        state, context = self.describe(described).chunk(2, dim=1)
        if updates is None:
            updates = self.config.updates_training if self.training else self.config.updates
        if low_memory is None:
            low_memory = not torch.is_grad_enabled() and self._stored_bytes(ours) > STORED_LIMIT
        source, target = self.match(ours), self.match(theirs)
        begin = None if start is None else F.avg_pool2d(padding.pad(start), FACTOR) / FACTOR
        matches = None
        if begin is None and self.matching is not None:
            if every:
                matches = self.matching(ours, theirs)
                begin = matches.flow
            else:
                begin = self.matching.flow(ours, theirs, low_memory)
        sequence = self.decoder(
            source,
            target,
            torch.tanh(state),
            F.relu(context),
            updates,
            begin,
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
    """What the network adds to images, B x 3 x H x W, before it encodes them."""
    return Padding.to_multiple(images.shape[2], images.shape[3], FACTOR, LEAST_SIDE)


def build_flow(config: ModelConfig) -> FlowNetwork:
    """The flow network that a configuration describes, with fresh random weights."""
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
    # Features keep their length on the way into the correlation: costs that start small take long to be heard.
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
