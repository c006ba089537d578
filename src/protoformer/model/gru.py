"""The recurrent unit of the flow decoders."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from protoformer.model.fused import kernels_run_on
from protoformer.model.initialization import for_gates
from protoformer.model.precision import for_products


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
        for_gates(self)

    def prepare(self, context: Tensor) -> Prepared:
        """What stays the same over the updates of a pair; context: B x hidden x H x W."""
        return [
            (self._layer(gates, context), self._layer(candidate, context))  # type: ignore[arg-type]
            for gates, candidate in zip(self.gates, self.candidates, strict=True)
        ]

    def forward(self, state: Tensor, inputs: Tensor, prepared: Prepared) -> Tensor:
        """state: B x hidden x H x W; inputs: B x inputs x H x W; returns the new state."""
        for gates, candidate in prepared:
            found, shielded = gated(gates.terms(state, inputs), state)
            state = moved(candidate.terms(shielded, inputs), found, state)
        return state

    def _layer(self, layer: nn.Conv2d, context: Tensor) -> Layer:
        height, width = layer.kernel_size
        padding = (height // 2, width // 2)
        # Cut, and brought to the precision of products, once for all updates.
        state, middle, inputs = for_products(layer.weight).split((self.hidden, self.hidden, self.inputs), dim=1)
        if layer.weight.is_cuda:  # whose convolutions are fastest so
            state, middle, inputs = (
                each.contiguous(memory_format=torch.channels_last) for each in (state, middle, inputs)
            )
        of_context = F.conv2d(context, middle, for_products(layer.bias), padding=padding)  # type: ignore[arg-type]
        return Layer(of_context, state, inputs, padding)


def gated(terms: tuple[Tensor, Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Gates of update, then of reset, from a sum of terms (B x 2 hidden x H x W), and the state that passes reset."""
    if not kernels_run_on(state):
        found = torch.sigmoid(terms[0] + terms[1] + terms[2])
        return found, found.chunk(2, dim=1)[1] * state
    rows, shielded = _Gated.apply(*map(_rows, terms), _rows(state, terms[0].dtype))  # type: ignore[no-untyped-call]
    return _maps(rows, state), _maps(shielded, state)


def moved(terms: tuple[Tensor, Tensor, Tensor], gates: Tensor, state: Tensor) -> Tensor:
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
        from protoformer.model import gru_kernels

        with torch.cuda.device_of(state):
            found, shielded = gru_kernels.gates((one, two, three), state)
        ctx.save_for_backward(found, state)
        return found, shielded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_gates: Tensor, d_shielded: Tensor) -> tuple[Tensor, ...]:
        from protoformer.model import gru_kernels

        found, state = ctx.saved_tensors
        with torch.cuda.device_of(state):
            d_sum, d_state = gru_kernels.gates_gradient(d_gates.contiguous(), d_shielded.contiguous(), found, state)
        return d_sum, d_sum, d_sum, d_state


class _Moved(torch.autograd.Function):
    """Of rows of pixels."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, three: Tensor, gates: Tensor, state: Tensor) -> Tensor:
        from protoformer.model import gru_kernels

        with torch.cuda.device_of(state):
            proposal, after = gru_kernels.moved((one, two, three), gates, state)
        ctx.save_for_backward(gates, state, proposal)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor, ...]:
        from protoformer.model import gru_kernels

        gates, state, proposal = ctx.saved_tensors
        with torch.cuda.device_of(state):
            d_sum, d_gates, d_state = gru_kernels.moved_gradient(arriving.contiguous(), gates, state, proposal)
        return d_sum, d_sum, d_sum, d_gates, d_state
