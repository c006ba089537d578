"""Triton kernels of the elementwise operations of a ConvGRU, forward and backward.

All tensors are rows of pixels, n x hidden or n x 2 hidden, contiguous and of one precision. Gates are laid out as n x
(update, reset).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Values of the state that a program holds."""


@triton.jit
def _offsets(count, hidden, block: tl.constexpr):
    """Return the offsets of a block of the state, those of its update gates, and its mask."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    return index, index // hidden * 2 * hidden + index % hidden, index < count


@triton.jit
def _load(values, offset, mask):
    return tl.load(values + offset, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(target, offset, values, mask):
    tl.store(target + offset, values.to(target.dtype.element_ty), mask=mask)


@triton.jit
def gates_kernel(one, two, three, state, gates, reset_state, count, hidden, block: tl.constexpr):
    """Gates sigmoid(one + two + three), and the state times the reset gate."""
    offset, update_offset, mask = _offsets(count, hidden, block)
    reset_offset = update_offset + hidden
    update = _load(one, update_offset, mask) + _load(two, update_offset, mask) + _load(three, update_offset, mask)
    reset = _load(one, reset_offset, mask) + _load(two, reset_offset, mask) + _load(three, reset_offset, mask)
    update, reset = tl.sigmoid(update), tl.sigmoid(reset)
    _store(gates, update_offset, update, mask)
    _store(gates, reset_offset, reset, mask)
    _store(reset_state, offset, reset * _load(state, offset, mask), mask)


@triton.jit
def gates_gradient_kernel(d_gates, d_reset_state, gates, state, d_sum, d_state, count, hidden, block: tl.constexpr):
    """Gradients of the sum inside the gates and of the state."""
    offset, update_offset, mask = _offsets(count, hidden, block)
    reset_offset = update_offset + hidden
    update, reset = _load(gates, update_offset, mask), _load(gates, reset_offset, mask)
    d_product = _load(d_reset_state, offset, mask)
    d_update, d_reset = _load(d_gates, update_offset, mask), _load(d_gates, reset_offset, mask)
    d_reset += d_product * _load(state, offset, mask)
    _store(d_sum, update_offset, d_update * update * (1.0 - update), mask)
    _store(d_sum, reset_offset, d_reset * reset * (1.0 - reset), mask)
    _store(d_state, offset, d_product * reset, mask)


@triton.jit
def state_kernel(one, two, three, gates, state, candidate, new_state, count, hidden, block: tl.constexpr):
    """Candidate tanh(one + two + three), and the state interpolated towards it by the update gate."""
    offset, update_offset, mask = _offsets(count, hidden, block)
    total = _load(one, offset, mask) + _load(two, offset, mask) + _load(three, offset, mask)
    proposed = 2.0 * tl.sigmoid(2.0 * total) - 1.0
    update, before = _load(gates, update_offset, mask), _load(state, offset, mask)
    _store(candidate, offset, proposed, mask)
    _store(new_state, offset, before + update * (proposed - before), mask)


@triton.jit
def state_gradient_kernel(
    d_new_state, gates, state, candidate, d_sum, d_gates, d_state, count, hidden, block: tl.constexpr
):
    """Gradients of the sum inside the candidate, of the gates and of the state."""
    offset, update_offset, mask = _offsets(count, hidden, block)
    gradient, update = _load(d_new_state, offset, mask), _load(gates, update_offset, mask)
    proposed, before = _load(candidate, offset, mask), _load(state, offset, mask)
    _store(d_sum, offset, gradient * update * (1.0 - proposed * proposed), mask)
    _store(d_gates, update_offset, gradient * (proposed - before), mask)
    _store(d_gates, update_offset + hidden, 0.0 * gradient, mask)
    _store(d_state, offset, gradient * (1.0 - update), mask)


def gates(terms: tuple[Tensor, Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gates, the sigmoid of the sum of terms (n x 2 hidden), and the state times the reset gate."""
    gates, reset_state = torch.empty_like(terms[0]), torch.empty_like(state)
    gates_kernel[_grid(state)](*terms, state, gates, reset_state, *_sizes(state), block=BLOCK)
    return gates, reset_state


def gates_gradient(d_gates: Tensor, d_reset_state: Tensor, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of each term, which are equal, and of the state."""
    d_sum, d_state = torch.empty_like(gates), torch.empty_like(state)
    gates_gradient_kernel[_grid(state)](
        d_gates, d_reset_state, gates, state, d_sum, d_state, *_sizes(state), block=BLOCK
    )
    return d_sum, d_state


def new_state(terms: tuple[Tensor, Tensor, Tensor], gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the candidate, tanh of the sum of terms (n x hidden), and the state moved to it by the update gate."""
    candidate, new_state = torch.empty_like(state), torch.empty_like(state)
    state_kernel[_grid(state)](*terms, gates, state, candidate, new_state, *_sizes(state), block=BLOCK)
    return candidate, new_state


def new_state_gradient(
    d_new_state: Tensor, gates: Tensor, state: Tensor, candidate: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of each term, of the gates and of the state."""
    d_sum, d_gates, d_state = torch.empty_like(state), torch.empty_like(gates), torch.empty_like(state)
    state_gradient_kernel[_grid(state)](
        d_new_state, gates, state, candidate, d_sum, d_gates, d_state, *_sizes(state), block=BLOCK
    )
    return d_sum, d_gates, d_state


def _grid(state: Tensor) -> tuple[int]:
    return (triton.cdiv(state.numel(), BLOCK),)


def _sizes(state: Tensor) -> tuple[int, int]:
    return state.numel(), state.shape[1]
