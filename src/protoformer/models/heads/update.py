"""Recurrent updates: the separable ConvGRU and convex upsampling of flow and depth, and the update block of flow.

| name | used by | content |
| --- | --- | --- |
| `SeparableGRU` | flow, depth | separable ConvGRU (SepConvGRU of RAFT) |
| `upsample` | flow, depth | convex upsampling (RAFT) |
| `UpdateBlock` | flow | motion encoder, motion aggregation (`heads.matching`), `SeparableGRU` and prediction heads |

`UpdateBlock` maps the hidden state, cost features and current flow to a new state, a change of the flow and the log
scale of its error. The update of depth is `heads.depth.DepthUpdate`. The GRU and the upsampling have Triton kernels.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from protoformer.geometry.warps import convex_upsample
from protoformer.models.kernels.dispatch import is_cpu_inference, use_kernels
from protoformer.models.layers import FusedConv, init_for_gates, init_for_relu
from protoformer.models.runtime import full_precision, to_autocast_dtype


class PreparedConv(NamedTuple):
    """A GRU convolution prepared for the updates of one pair.

    Attributes:
        of_context: B x C x H x W, convolution of the context, with the bias.
        of_state: Weights for the hidden state.
        of_inputs: Weights for the inputs.
        padding: Zero padding (rows, columns).
    """

    of_context: Tensor
    of_state: Tensor
    of_inputs: Tensor
    padding: tuple[int, int]

    def terms(self, state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three terms, B x C x H x W each, whose sum is the convolution of state, inputs and context."""
        from_state = F.conv2d(state, self.of_state, padding=self.padding)
        return from_state, F.conv2d(inputs, self.of_inputs, padding=self.padding), self.of_context


Prepared = list[tuple[PreparedConv, PreparedConv]]
"""Convolutions of the gates and of the candidate, for each of the two kernels."""


class SeparableGRU(nn.Module):
    """Separable ConvGRU (SepConvGRU of RAFT): a GRU step with 1x5 kernels, then one with 5x1 kernels.

    The convolution of concatenated maps is the sum of their convolutions. So that of the context, which is constant
    over the updates, is computed once, and the maps need not be concatenated.

    Args:
        hidden: Channels of the hidden state and of the context.
        inputs: Channels of the inputs.
    """

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()
        self.hidden, self.inputs = hidden, inputs
        shapes, width = ((1, 5), (5, 1)), 2 * hidden + inputs
        self.gates = nn.ModuleList(nn.Conv2d(width, 2 * hidden, shape) for shape in shapes)
        self.candidates = nn.ModuleList(nn.Conv2d(width, hidden, shape) for shape in shapes)
        init_for_gates(self)

    def prepare(self, context: Tensor) -> Prepared:
        """Convolve the context, B x hidden x H x W, and split the weights, once for all updates of a pair."""
        return [
            (self._prepare_conv(gates, context), self._prepare_conv(candidate, context))  # type: ignore[arg-type]
            for gates, candidate in zip(self.gates, self.candidates, strict=True)
        ]

    def forward(self, state: Tensor, inputs: Tensor, prepared: Prepared) -> Tensor:
        """Update the state.

        Args:
            state: B x hidden x H x W.
            inputs: B x inputs x H x W.
            prepared: From `prepare`.

        Returns:
            The new state, B x hidden x H x W.
        """
        for conv_gates, conv_candidate in prepared:
            gates, reset_state = gru_gates(conv_gates.terms(state, inputs), state)
            state = gru_state(conv_candidate.terms(reset_state, inputs), gates, state)
        return state

    def _prepare_conv(self, conv: nn.Conv2d, context: Tensor) -> PreparedConv:
        """Split the weights by input and convolve the context."""
        height, width = conv.kernel_size
        padding = (height // 2, width // 2)
        # Split, and cast to the autocast dtype, once for all updates.
        of_state, of_context, of_inputs = to_autocast_dtype(conv.weight).split(
            (self.hidden, self.hidden, self.inputs), dim=1
        )
        if conv.weight.is_cuda:  # convolutions on a GPU are fastest with channels last
            of_state, of_context, of_inputs = (
                weight.contiguous(memory_format=torch.channels_last) for weight in (of_state, of_context, of_inputs)
            )
        bias = to_autocast_dtype(conv.bias)  # type: ignore[arg-type]
        return PreparedConv(F.conv2d(context, of_context, bias, padding=padding), of_state, of_inputs, padding)


def gru_gates(terms: tuple[Tensor, Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gates of a GRU.

    Args:
        terms: Terms of the pre-activation, B x (2 hidden) x H x W each.
        state: B x hidden x H x W.

    Returns:
        The update and reset gates, B x (2 hidden) x H x W, and the state times the reset gate, B x hidden x H x W.
    """
    if not use_kernels(state, "gru"):
        gates = torch.sigmoid(terms[0] + terms[1] + terms[2])
        return gates, gates.chunk(2, dim=1)[1] * state
    rows, reset_rows = _GruGates.apply(*map(_to_rows, terms), _to_rows(state, terms[0].dtype))  # type: ignore[no-untyped-call]
    return _to_maps(rows, state), _to_maps(reset_rows, state)


def gru_state(terms: tuple[Tensor, Tensor, Tensor], gates: Tensor, state: Tensor) -> Tensor:
    """Interpolate between the state and the candidate by the update gate.

    Args:
        terms: Terms of the pre-activation of the candidate, B x hidden x H x W each.
        gates: Update and reset gates, B x (2 hidden) x H x W.
        state: B x hidden x H x W.

    Returns:
        The new state, B x hidden x H x W.
    """
    if not use_kernels(state, "gru"):
        candidate, update = torch.tanh(terms[0] + terms[1] + terms[2]), gates.chunk(2, dim=1)[0]
        return torch.lerp(state.to(candidate.dtype), candidate, update)
    rows = _GruState.apply(*map(_to_rows, terms), _to_rows(gates), _to_rows(state, terms[0].dtype))  # type: ignore[no-untyped-call]
    return _to_maps(rows, state)


def _to_rows(maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Reshape B x C x H x W to pixels x C."""
    return maps.to(dtype or maps.dtype).permute(0, 2, 3, 1).contiguous().flatten(0, 2)


def _to_maps(rows: Tensor, like: Tensor) -> Tensor:
    """Invert `_to_rows` for rows of the pixels of another map."""
    return rows.view(like.shape[0], *like.shape[2:], -1).permute(0, 3, 1, 2)


class _GruGates(torch.autograd.Function):
    """`gru_gates` of rows of pixels, by kernels."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, three: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        from protoformer.models.kernels import gru_kernels

        with torch.cuda.device_of(state):
            gates, reset_state = gru_kernels.gates((one, two, three), state)
        ctx.save_for_backward(gates, state)
        return gates, reset_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_gates: Tensor, d_reset_state: Tensor) -> tuple[Tensor, ...]:
        from protoformer.models.kernels import gru_kernels

        gates, state = ctx.saved_tensors
        with torch.cuda.device_of(state):
            d_sum, d_state = gru_kernels.gates_gradient(d_gates.contiguous(), d_reset_state.contiguous(), gates, state)
        return d_sum, d_sum, d_sum, d_state


class _GruState(torch.autograd.Function):
    """`gru_state` of rows of pixels, by kernels."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, three: Tensor, gates: Tensor, state: Tensor) -> Tensor:
        from protoformer.models.kernels import gru_kernels

        with torch.cuda.device_of(state):
            candidate, new_state = gru_kernels.new_state((one, two, three), gates, state)
        ctx.save_for_backward(gates, state, candidate)
        return new_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_new_state: Tensor) -> tuple[Tensor, ...]:
        from protoformer.models.kernels import gru_kernels

        gates, state, candidate = ctx.saved_tensors
        with torch.cuda.device_of(state):
            d_sum, d_gates, d_state = gru_kernels.new_state_gradient(d_new_state.contiguous(), gates, state, candidate)
        return d_sum, d_sum, d_sum, d_gates, d_state


FLOW_STRIDE = 8
"""Downsampling factor, relative to the image, of the maps that the flow decoders refine and then upsample."""


class MotionEncoder(nn.Module):
    """Encode costs and the current flow to motion features, whose last two channels are the flow itself.

    Args:
        cost_channels: Channels of the cost features.
        channels: Channels of the motion features.

    Attributes:
        costs: Convolutions that encode the cost features.
        flow: Convolutions that encode the flow.
        joint: Convolution that fuses both.
    """

    def __init__(self, cost_channels: int, channels: int) -> None:
        super().__init__()
        self.costs = nn.Sequential(
            FusedConv(cost_channels, 2 * channels, 1, relu=True),
            FusedConv(2 * channels, channels + channels // 2, 3, relu=True, padding=1),
        )
        self.flow = nn.Sequential(
            FusedConv(2, channels, 7, relu=True, padding=3),
            FusedConv(channels, channels // 2, 3, relu=True, padding=1),
        )
        self.joint = FusedConv(2 * channels, channels - 2, 3, relu=True, padding=1)
        init_for_relu(self)

    def forward(self, costs: Tensor, flow: Tensor) -> Tensor:
        """Encode costs (B x cost_channels x H x W) and flow (B x 2 x H x W, pixels of this map).

        Returns:
            Motion features, B x channels x H x W.
        """
        joint = self.joint(torch.cat((self.costs(costs), self.flow(flow)), dim=1))
        return torch.cat((joint, flow.to(joint.dtype)), dim=1)


MIN_LOG_SCALE = -4.0
"""Lower bound of the log scale, e^-4 = 0.02 px; below the precision of ground truth the likelihood is unbounded."""


@dataclass(frozen=True)
class UpdateOutput:
    """Output of one recurrent update.

    Attributes:
        state: B x hidden x H x W, new hidden state.
        change: B x 2 x H x W, change of the flow, pixels of this map.
        log_scale: B x 1 x H x W, log of the Laplace scale of the error, pixels of the image.
    """

    state: Tensor
    change: Tensor
    log_scale: Tensor


class UpdateBlock(nn.Module):
    """Recurrent update: motion encoder, motion aggregation over the image, ConvGRU, and prediction heads.

    Args:
        cost_channels: Channels of the cost features.
        hidden: Channels of hidden state, context and motion features.
        aggregation: `PixelAggregation` or `PrototypeAggregation`.
    """

    def __init__(self, cost_channels: int, hidden: int, aggregation: nn.Module) -> None:
        super().__init__()
        self.motion = MotionEncoder(cost_channels, hidden)
        self.aggregation = aggregation
        self.gru = SeparableGRU(hidden, 2 * hidden)
        last_conv = FusedConv(2 * hidden, 3, 3, padding=1)
        self.delta_head = nn.Sequential(FusedConv(hidden, 2 * hidden, 3, relu=True, padding=1), last_conv)
        self.upsampling_head = nn.Sequential(
            FusedConv(hidden, 2 * hidden, 3, relu=True, padding=1), FusedConv(2 * hidden, 9 * FLOW_STRIDE**2, 1)
        )
        init_for_relu(self.delta_head[0])
        init_for_relu(self.upsampling_head[0])
        # Small weights keep the first updates near the initial flow, where the costs are informative.
        nn.init.normal_(last_conv.weight, std=1e-3)

    def prepare(self, context: Tensor) -> tuple[object, Prepared]:
        """Compute what depends only on the context, B x hidden x H x W, once for all updates of a pair."""
        return self.aggregation.prepare(context), self.gru.prepare(context)  # type: ignore[operator]

    def forward(self, state: Tensor, costs: Tensor, flow: Tensor, prepared: tuple[object, Prepared]) -> UpdateOutput:
        """Run one update.

        Args:
            state: B x hidden x H x W.
            costs: B x cost_channels x H x W, cost features at the current flow.
            flow: B x 2 x H x W, current flow, pixels of this map.
            prepared: From `prepare`.
        """
        prepared_aggregation, prepared_gru = prepared
        motion = self.motion(costs, flow)
        aggregated = self.aggregation(motion, prepared_aggregation)
        state = self.gru(state, torch.cat((motion, aggregated), dim=1), prepared_gru)
        change, scale = self.delta_head(state).float().split((2, 1), dim=1)
        return UpdateOutput(state, change, MIN_LOG_SCALE + F.softplus(scale - MIN_LOG_SCALE))

    def upsampling_weights(self, state: Tensor) -> Tensor:
        """Return the logits of the convex upsampling: B x (9 * 64) x H x W."""
        # The factor balances the gradients of the upsampling weights and of the flow, as in RAFT.
        weights: Tensor = 0.25 * self.upsampling_head(state)
        return weights


def upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """Upsample as `convex_upsample`, by the fastest implementation for the device.

    Args:
        field: B x C x H x W.
        weights: Logits, B x (9 factor^2) x H x W.
        factor: Upsampling factor.

    Returns:
        B x C x (factor H) x (factor W), float32.
    """
    if is_cpu_inference(field):
        return product_upsample(field, weights, factor)
    if not use_kernels(field, "upsampling"):
        return convex_upsample(field, weights, factor)
    return kernel_upsample(field, weights, factor)


def product_upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """Upsample as `convex_upsample`, by one matrix product per coarse pixel, without storing the 9 weighted terms."""
    batch, channels, height, width = field.shape
    pixels = batch * height * width
    probs = weights.permute(0, 2, 3, 1).reshape(pixels, 9, factor**2).float().softmax(dim=1)
    neighbors = F.unfold(F.pad(field.float(), (1, 1, 1, 1), mode="replicate"), kernel_size=3).transpose(1, 2)
    with full_precision(field):
        upsampled = neighbors.reshape(pixels, channels, 9).contiguous() @ probs
    tiles = upsampled.view(batch, height, width, channels, factor, factor).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(batch, channels, factor * height, factor * width)


def kernel_upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """Upsample as `convex_upsample`, by Triton kernels; factor^2 must be a power of two."""
    batch, channels, height, width = field.shape
    padded = field.float()
    # Edges are repeated by concatenation, as the gradient of torch's replicate padding is not deterministic.
    padded = torch.cat((padded[:, :, :1], padded, padded[:, :, -1:]), dim=2)
    padded = torch.cat((padded[..., :1], padded, padded[..., -1:]), dim=3)
    neighbors = F.unfold(padded, kernel_size=3).view(batch, channels, 9, height, width)
    logits = weights.permute(0, 2, 3, 1).contiguous()
    upsampled: Tensor = _ConvexUpsample.apply(neighbors, logits, factor)  # type: ignore[no-untyped-call]
    return upsampled


class _ConvexUpsample(torch.autograd.Function):
    """Convex combination of neighbors, N x C x 9 x H x W, by logits, N x H x W x (9 factor^2)."""

    @staticmethod
    def forward(ctx: Any, neighbors: Tensor, logits: Tensor, factor: int) -> Tensor:
        from protoformer.models.kernels import upsampling_kernels

        with torch.cuda.device_of(neighbors):
            output = upsampling_kernels.upsample(neighbors, logits, factor)
        ctx.save_for_backward(neighbors, logits, output)
        ctx.factor = factor
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor, None]:
        from protoformer.models.kernels import upsampling_kernels

        with torch.cuda.device_of(d_output):
            neighbors, logits, output = ctx.saved_tensors
            d_output = d_output.contiguous()
            return *upsampling_kernels.upsample_gradient(d_output, neighbors, logits, output, ctx.factor), None
