"""The recurrent update that both flow decoders share: costs and flow in, a better flow and its uncertainty out."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from protoformer.geometry.resizing import convex_upsample
from protoformer.models.kernels.dispatch import is_in_use_on_cpu, kernels_run_on
from protoformer.models.layers import ActivatedConv, init_for_gates, init_for_relu
from protoformer.models.runtime import full_precision, to_autocast_dtype


class Layer(NamedTuple):
    """A convolution that is ready for updates: what the context adds, with the bias, and the weights of the rest."""

    of_context: Tensor
    of_state: Tensor
    of_inputs: Tensor
    padding: tuple[int, int]

    def terms(self, state: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What adds up to the convolution of all: B x C x H x W each."""
        from_state = F.conv2d(state, self.of_state, padding=self.padding)
        return from_state, F.conv2d(inputs, self.of_inputs, padding=self.padding), self.of_context


Prepared = list[tuple[Layer, Layer]]
"""Of the gates and of the candidate, for each of the two kernels."""


class SeparableGRU(nn.Module):
    """A convolutional GRU with a 1x5 and then a 5x1 kernel.

    A convolution of several maps is the sum of theirs: that of the context, which stays as it is over all updates, is
    computed once, and none of the maps has to be copied beside the others.
    """

    def __init__(self, hidden: int, inputs: int) -> None:
        super().__init__()
        self.hidden, self.inputs = hidden, inputs
        shapes, width = ((1, 5), (5, 1)), 2 * hidden + inputs
        self.gates = nn.ModuleList(nn.Conv2d(width, 2 * hidden, shape) for shape in shapes)
        self.candidates = nn.ModuleList(nn.Conv2d(width, hidden, shape) for shape in shapes)
        init_for_gates(self)

    def prepare(self, context: Tensor) -> Prepared:
        """What stays the same over the updates of a pair; context: B x hidden x H x W."""
        return [
            (self._layer(gates, context), self._layer(candidate, context))  # type: ignore[arg-type]
            for gates, candidate in zip(self.gates, self.candidates, strict=True)
        ]

    def forward(self, state: Tensor, inputs: Tensor, prepared: Prepared) -> Tensor:
        """state: B x hidden x H x W; inputs: B x inputs x H x W; returns the new state."""
        for gates, candidate in prepared:
            found, shielded = gru_gates(gates.terms(state, inputs), state)
            state = gru_state(candidate.terms(shielded, inputs), found, state)
        return state

    def _layer(self, layer: nn.Conv2d, context: Tensor) -> Layer:
        height, width = layer.kernel_size
        padding = (height // 2, width // 2)
        # Cut, and brought to the precision of products, once for all updates.
        state, middle, inputs = to_autocast_dtype(layer.weight).split((self.hidden, self.hidden, self.inputs), dim=1)
        if layer.weight.is_cuda:  # whose convolutions are fastest so
            state, middle, inputs = (
                each.contiguous(memory_format=torch.channels_last) for each in (state, middle, inputs)
            )
        of_context = F.conv2d(context, middle, to_autocast_dtype(layer.bias), padding=padding)  # type: ignore[arg-type]
        return Layer(of_context, state, inputs, padding)


def gru_gates(terms: tuple[Tensor, Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Gates of update, then of reset, from a sum of terms (B x 2 hidden x H x W), and the state that passes reset."""
    if not kernels_run_on(state):
        found = torch.sigmoid(terms[0] + terms[1] + terms[2])
        return found, found.chunk(2, dim=1)[1] * state
    rows, shielded = _Gated.apply(*map(_rows, terms), _rows(state, terms[0].dtype))  # type: ignore[no-untyped-call]
    return _maps(rows, state), _maps(shielded, state)


def gru_state(terms: tuple[Tensor, Tensor, Tensor], gates: Tensor, state: Tensor) -> Tensor:
    """The state moved by the gate of update towards a proposal, the tanh of a sum of terms (B x hidden x H x W)."""
    if not kernels_run_on(state):
        proposal, update = torch.tanh(terms[0] + terms[1] + terms[2]), gates.chunk(2, dim=1)[0]
        return torch.lerp(state.to(proposal.dtype), proposal, update)
    rows = _Moved.apply(*map(_rows, terms), _rows(gates), _rows(state, terms[0].dtype))  # type: ignore[no-untyped-call]
    return _maps(rows, state)


def _rows(maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """B x C x H x W as pixels x C."""
    return maps.to(dtype or maps.dtype).permute(0, 2, 3, 1).contiguous().flatten(0, 2)


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_rows`, on the pixels of another map."""
    return rows.view(like.shape[0], *like.shape[2:], -1).permute(0, 3, 1, 2)


class _Gated(torch.autograd.Function):
    """Of rows of pixels."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, three: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        from protoformer.models.kernels import gru_kernels

        with torch.cuda.device_of(state):
            found, shielded = gru_kernels.gates((one, two, three), state)
        ctx.save_for_backward(found, state)
        return found, shielded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_gates: Tensor, d_shielded: Tensor) -> tuple[Tensor, ...]:
        from protoformer.models.kernels import gru_kernels

        found, state = ctx.saved_tensors
        with torch.cuda.device_of(state):
            d_sum, d_state = gru_kernels.gates_gradient(d_gates.contiguous(), d_shielded.contiguous(), found, state)
        return d_sum, d_sum, d_sum, d_state


class _Moved(torch.autograd.Function):
    """Of rows of pixels."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, three: Tensor, gates: Tensor, state: Tensor) -> Tensor:
        from protoformer.models.kernels import gru_kernels

        with torch.cuda.device_of(state):
            proposal, after = gru_kernels.moved((one, two, three), gates, state)
        ctx.save_for_backward(gates, state, proposal)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, ...]:
        from protoformer.models.kernels import gru_kernels

        gates, state, proposal = ctx.saved_tensors
        with torch.cuda.device_of(state):
            d_sum, d_gates, d_state = gru_kernels.moved_gradient(arriving.contiguous(), gates, state, proposal)
        return d_sum, d_sum, d_sum, d_gates, d_state


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
        init_for_relu(self)

    def forward(self, costs: Tensor, flow: Tensor) -> Tensor:
        """costs: B x cost_channels x H x W; flow: B x 2 x H x W, pixels of this map; returns B x channels x H x W."""
        joint = self.joint(torch.cat((self.costs(costs), self.flow(flow)), dim=1))
        return torch.cat((joint, flow.to(joint.dtype)), dim=1)


LEAST_LOG_SCALE = -4.0
"""No error is expected below e^-4 = 0.02 px: finer than any truth, where the likelihood would grow without bound."""


@dataclass(frozen=True)
class UpdateOutput:
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
        init_for_relu(self.change[0])
        init_for_relu(self.weights[0])
        # The first updates then stay near the start, where costs mean something.
        nn.init.normal_(to_change.weight, std=1e-3)

    def prepare(self, context: Tensor) -> tuple[object, Prepared]:
        """What stays the same over the updates of a pair; context: B x hidden x H x W."""
        return self.aggregation.prepare(context), self.gru.prepare(context)  # type: ignore[operator]

    def forward(self, state: Tensor, costs: Tensor, flow: Tensor, prepared: tuple[object, Prepared]) -> UpdateOutput:
        """state: B x hidden x H x W; costs: B x cost_channels x H x W; prepared: from `prepare`."""
        groups, of_context = prepared
        motion = self.motion(costs, flow)
        gathered = self.aggregation(motion, groups)
        state = self.gru(state, torch.cat((motion, gathered), dim=1), of_context)
        change, scale = self.change(state).float().split((2, 1), dim=1)
        return UpdateOutput(state, change, LEAST_LOG_SCALE + F.softplus(scale - LEAST_LOG_SCALE))

    def upsampling_weights(self, state: Tensor) -> Tensor:
        """Logits of the convex upsampling: B x (9 * 64) x H x W."""
        # The gradient through the softmax would swamp that of the flow; a quarter balances them, as in RAFT.
        weights: Tensor = 0.25 * self.weights(state)
        return weights


def upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """As `convex_upsample`."""
    if is_in_use_on_cpu(field):
        return product_upsample(field, weights, factor)
    if not kernels_run_on(field):
        return convex_upsample(field, weights, factor)
    return kernel_upsample(field, weights, factor)


def product_upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """As `convex_upsample`, by a matrix product a coarse pixel, which never holds what each of 9 neighbors adds."""
    batch, channels, height, width = field.shape
    pixels = batch * height * width
    shares = weights.permute(0, 2, 3, 1).reshape(pixels, 9, factor**2).float().softmax(dim=1)
    around = F.unfold(F.pad(field.float(), (1, 1, 1, 1), mode="replicate"), kernel_size=3).transpose(1, 2)
    with full_precision(field):
        fine = around.reshape(pixels, channels, 9).contiguous() @ shares
    tiles = fine.view(batch, height, width, channels, factor, factor).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(batch, channels, factor * height, factor * width)


def kernel_upsample(field: Tensor, weights: Tensor, factor: int) -> Tensor:
    """As `convex_upsample`, by kernels, for which factor^2 is a power of two."""
    batch, channels, height, width = field.shape
    wide = field.float()
    # Edges repeated by hand: the gradient of torch's own padding is not the same twice.
    wide = torch.cat((wide[:, :, :1], wide, wide[:, :, -1:]), dim=2)
    wide = torch.cat((wide[..., :1], wide, wide[..., -1:]), dim=3)
    around = F.unfold(wide, kernel_size=3).view(batch, channels, 9, height, width)
    fine: Tensor = _Upsampled.apply(around, weights.permute(0, 2, 3, 1).contiguous(), factor)  # type: ignore[no-untyped-call]
    return fine


class _Upsampled(torch.autograd.Function):
    """Neighbors, N x C x 9 x H x W, by logits, N x H x W x (9 factor^2)."""

    @staticmethod
    def forward(ctx: Any, around: Tensor, weights: Tensor, factor: int) -> Tensor:
        from protoformer.models.kernels import upsampling_kernels

        with torch.cuda.device_of(around):
            found = upsampling_kernels.upsample(around, weights, factor)
        ctx.save_for_backward(around, weights, found)
        ctx.factor = factor
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, Tensor, None]:
        from protoformer.models.kernels import upsampling_kernels

        with torch.cuda.device_of(arriving):
            around, weights, found = ctx.saved_tensors
            arriving = arriving.contiguous()
            return *upsampling_kernels.upsample_gradient(arriving, around, weights, found, ctx.factor), None
