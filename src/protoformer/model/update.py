"""The recurrent update that both flow decoders share: costs and flow in, a better flow and its uncertainty out."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.gru import Prepared, SeparableGRU
from protoformer.model.initialization import for_relu
from protoformer.model.layers import ActivatedConv

FACTOR = 8
"""The decoders work at 1/8 of the image."""


class MotionEncoder(nn.Module):
    """Costs and the current flow to motion features, the flow itself kept as the last two channels."""

    def __init__(self, cost_channels: int, channels: int) -> None:
        super().__init__()
        self.costs = nn.Sequential(
            ActivatedConv(cost_channels, 2 * channels, 1, rectified=True),
            ActivatedConv(2 * channels, channels + channels // 2, 3, rectified=True, padding=1),
        )
        self.flow = nn.Sequential(
            ActivatedConv(2, channels, 7, rectified=True, padding=3),
            ActivatedConv(channels, channels // 2, 3, rectified=True, padding=1),
        )
        self.joint = ActivatedConv(2 * channels, channels - 2, 3, rectified=True, padding=1)
        for_relu(self)

    def forward(self, costs: Tensor, flow: Tensor) -> Tensor:
        """costs: B x cost_channels x H x W; flow: B x 2 x H x W, pixels of this map; returns B x channels x H x W."""
        joint = self.joint(torch.cat((self.costs(costs), self.flow(flow)), dim=1))
        return torch.cat((joint, flow.to(joint.dtype)), dim=1)


LEAST_LOG_SCALE = -4.0
"""No error is expected below e^-4 = 0.02 px: finer than any truth, where the likelihood would grow without bound."""


@dataclass(frozen=True)
class Step:
    """One update: state, B x hidden x H x W; change of the flow, B x 2 x H x W, pixels; log_scale, B x 1 x H x W."""

    state: Tensor
    change: Tensor
    log_scale: Tensor


class UpdateBlock(nn.Module):
    """Motion encoder, aggregation over the image, GRU, and the heads that read the state."""

    def __init__(self, cost_channels: int, hidden: int, aggregation: nn.Module) -> None:
        super().__init__()
        self.motion = MotionEncoder(cost_channels, hidden)
        self.aggregation = aggregation
        self.gru = SeparableGRU(hidden, 2 * hidden)
        to_change = ActivatedConv(2 * hidden, 3, 3, padding=1)
        self.change = nn.Sequential(ActivatedConv(hidden, 2 * hidden, 3, rectified=True, padding=1), to_change)
        self.weights = nn.Sequential(
            ActivatedConv(hidden, 2 * hidden, 3, rectified=True, padding=1), ActivatedConv(2 * hidden, 9 * FACTOR**2, 1)
        )
        for_relu(self.change[0])
        for_relu(self.weights[0])
        # The first updates then stay near the start, where costs mean something.
        nn.init.normal_(to_change.weight, std=1e-3)

    def prepare(self, context: Tensor) -> tuple[object, Prepared]:
        """What stays the same over the updates of a pair; context: B x hidden x H x W."""
        return self.aggregation.prepare(context), self.gru.prepare(context)  # type: ignore[operator]

    def forward(self, state: Tensor, costs: Tensor, flow: Tensor, prepared: tuple[object, Prepared]) -> Step:
        """state: B x hidden x H x W; costs: B x cost_channels x H x W; prepared: from `prepare`."""
        groups, of_context = prepared
        motion = self.motion(costs, flow)
        gathered = self.aggregation(motion, groups)
        state = self.gru(state, torch.cat((motion, gathered), dim=1), of_context)
        change, scale = self.change(state).float().split((2, 1), dim=1)
        return Step(state, change, LEAST_LOG_SCALE + F.softplus(scale - LEAST_LOG_SCALE))

    def upsampling_weights(self, state: Tensor) -> Tensor:
        """Logits of the convex upsampling: B x (9 * 64) x H x W."""
        # The gradient through the softmax would swamp that of the flow; a quarter balances them, as in RAFT.
        weights: Tensor = 0.25 * self.weights(state)
        return weights
