"""Two flow decoders behind one interface: they differ in how they read costs, and share the update and upsampling."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protoformer.geometry import pixel_grid
from protoformer.model.attention import Attention, FeedForward, sine_positions
from protoformer.model.correlation import (
    Correlation,
    OnDemandCorrelation,
    RowCorrelation,
    StoredCorrelation,
    all_pairs_bytes,
    row_bytes,
)
from protoformer.model.cost_memory import CostMemory
from protoformer.model.fused import halves_costs, kernels_run_on
from protoformer.model.kernel_correlation import KernelCorrelation, KernelOnDemandCorrelation
from protoformer.model.layers import laid_out
from protoformer.model.update import FACTOR, UpdateBlock
from protoformer.model.upsampling import upsample

Progress = Callable[[int, int], None]
"""Called with how many updates are done, and of how many."""

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


def kept_bytes(size: tuple[int, int], levels: int, radius: int, device: torch.device, half: bool) -> int:
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
        progress: Progress | None = None,
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
        flow = laid_out(flow)
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
