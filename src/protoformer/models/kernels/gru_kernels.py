"""The arithmetic of a gated recurrent unit between its convolutions, in Triton, forward and backward.

All tensors are rows of pixels, n x hidden or n x 2 hidden, contiguous and of one precision.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers of a state that a program holds."""


@triton.jit
def place_of(count, hidden, block: tl.constexpr):
    """Some numbers of the state: where they are, where the same is among the gates of update, and which there are."""
    number = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    return number, number // hidden * 2 * hidden + number % hidden, number < count


@triton.jit
def sum_of(one, two, three, place, there):
    """Of three tensors, in float32."""
    total = tl.load(one + place, mask=there, other=0.0).to(tl.float32)
    total += tl.load(two + place, mask=there, other=0.0).to(tl.float32)
    return total + tl.load(three + place, mask=there, other=0.0).to(tl.float32)


@triton.jit
def gates_kernel(one, two, three, state, gates, shielded, count, hidden, block: tl.constexpr):
    """Gates of update and reset, and the state that the latter lets through."""
    place, first, there = place_of(count, hidden, block)
    kind = gates.dtype.element_ty
    update = tl.sigmoid(sum_of(one, two, three, first, there))
    reset = tl.sigmoid(sum_of(one, two, three, first + hidden, there))
    tl.store(gates + first, update.to(kind), mask=there)
    tl.store(gates + first + hidden, reset.to(kind), mask=there)
    passed = reset * tl.load(state + place, mask=there, other=0.0).to(tl.float32)
    tl.store(shielded + place, passed.to(kind), mask=there)


@triton.jit
def gates_gradient_kernel(d_gates, d_shielded, gates, state, d_sum, d_state, count, hidden, block: tl.constexpr):
    """The gradients of the sum that the gates were made of, and of the state."""
    place, first, there = place_of(count, hidden, block)
    kind = d_sum.dtype.element_ty
    update = tl.load(gates + first, mask=there, other=0.0).to(tl.float32)
    reset = tl.load(gates + first + hidden, mask=there, other=0.0).to(tl.float32)
    passed = tl.load(d_shielded + place, mask=there, other=0.0).to(tl.float32)
    d_update = tl.load(d_gates + first, mask=there, other=0.0).to(tl.float32)
    d_reset = tl.load(d_gates + first + hidden, mask=there, other=0.0).to(tl.float32)
    d_reset += passed * tl.load(state + place, mask=there, other=0.0).to(tl.float32)
    tl.store(d_sum + first, (d_update * update * (1.0 - update)).to(kind), mask=there)
    tl.store(d_sum + first + hidden, (d_reset * reset * (1.0 - reset)).to(kind), mask=there)
    tl.store(d_state + place, (passed * reset).to(kind), mask=there)


@triton.jit
def state_kernel(one, two, three, gates, state, proposal, found, count, hidden, block: tl.constexpr):
    """The proposal, and the state moved towards it by the gate of update."""
    place, first, there = place_of(count, hidden, block)
    kind = found.dtype.element_ty
    proposed = 2.0 * tl.sigmoid(2.0 * sum_of(one, two, three, place, there)) - 1.0
    update = tl.load(gates + first, mask=there, other=0.0).to(tl.float32)
    before = tl.load(state + place, mask=there, other=0.0).to(tl.float32)
    tl.store(proposal + place, proposed.to(kind), mask=there)
    tl.store(found + place, (before + update * (proposed - before)).to(kind), mask=there)


@triton.jit
def state_gradient_kernel(
    arriving, gates, state, proposal, d_sum, d_gates, d_state, count, hidden, block: tl.constexpr
):
    """The gradients of the sum that the proposal was made of, of the gates and of the state."""
    place, first, there = place_of(count, hidden, block)
    kind = d_sum.dtype.element_ty
    arrives = tl.load(arriving + place, mask=there, other=0.0).to(tl.float32)
    update = tl.load(gates + first, mask=there, other=0.0).to(tl.float32)
    proposed = tl.load(proposal + place, mask=there, other=0.0).to(tl.float32)
    before = tl.load(state + place, mask=there, other=0.0).to(tl.float32)
    tl.store(d_sum + place, (arrives * update * (1.0 - proposed * proposed)).to(kind), mask=there)
    tl.store(d_gates + first, (arrives * (proposed - before)).to(kind), mask=there)
    tl.store(d_gates + first + hidden, (0.0 * arrives).to(kind), mask=there)
    tl.store(d_state + place, (arrives * (1.0 - update)).to(kind), mask=there)


def gates(terms: tuple[Tensor, Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """The sigmoid of a sum of terms, n x 2 hidden: gates of update, then of reset; and the latter times the state."""
    found, shielded = torch.empty_like(terms[0]), torch.empty_like(state)
    gates_kernel[_programs(state)](*terms, state, found, shielded, state.numel(), state.shape[1], block=BLOCK)
    return found, shielded


def gates_gradient(d_gates: Tensor, d_shielded: Tensor, found: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of each of the terms, which is one, and of the state."""
    d_sum, d_state = torch.empty_like(found), torch.empty_like(state)
    gates_gradient_kernel[_programs(state)](
        d_gates, d_shielded, found, state, d_sum, d_state, state.numel(), state.shape[1], block=BLOCK
    )
    return d_sum, d_state


def moved(terms: tuple[Tensor, Tensor, Tensor], found: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The tanh of a sum of terms, n x hidden, and the state moved towards it by the gates that were found."""
    proposal, after = torch.empty_like(state), torch.empty_like(state)
    state_kernel[_programs(state)](*terms, found, state, proposal, after, state.numel(), state.shape[1], block=BLOCK)
    return proposal, after


def moved_gradient(arriving: Tensor, found: Tensor, state: Tensor, proposal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of each of the terms, of the gates and of the state."""
    d_sum, d_gates, d_state = torch.empty_like(state), torch.empty_like(found), torch.empty_like(state)
    state_gradient_kernel[_programs(state)](
        arriving, found, state, proposal, d_sum, d_gates, d_state, state.numel(), state.shape[1], block=BLOCK
    )
    return d_sum, d_gates, d_state


def _programs(state: Tensor) -> tuple[int]:
    return (triton.cdiv(state.numel(), BLOCK),)
