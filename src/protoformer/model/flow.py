"""Optical flow: encoder, context and decoder put together."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry import Padding
from protoformer.model.aggregation import PixelAggregation, PrototypeAggregation
from protoformer.model.config import ModelConfig
from protoformer.model.correlation import all_pairs_bytes
from protoformer.model.cost_memory import CostMemory
from protoformer.model.encoder import Encoder
from protoformer.model.flow_decoder import CorrelationCosts, FlowDecoder, MemoryCosts, Progress
from protoformer.model.layers import laid_out
from protoformer.model.matching import GlobalMatching, Matches
from protoformer.model.prototyping import Prototypes, Prototyping
from protoformer.model.tokens import size_of
from protoformer.model.update import FACTOR, UpdateBlock

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
    matches: Matches | None = None


def normalised(images: Tensor) -> Tensor:
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
        progress: Progress | None = None,
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
        progress: Progress | None = None,
    ) -> FlowPrediction:
        """As `forward`, for images of which both are encoded: ours, those of the first; theirs, those of the second."""
        padding = flow_padding(first)
        ours, theirs = laid_out(ours), laid_out(theirs)
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
        return all_pairs_bytes(size_of(features), self.decoder.costs.levels, features.shape[0])


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
