"""The kernels of the ConvGRU and their gradients agree with torch."""

import pytest
import torch
from torch import Tensor

from protoformer.models.heads import update as gru

pytestmark = pytest.mark.usefixtures("requires_kernels")


@pytest.mark.parametrize("shape", [(2, 16, 5, 7), (1, 32, 1, 3), (1, 24, 33, 9)], ids=str)
def test_gates_states_and_gradients_equal_torch(shape, dtype, numbers, monkeypatch):
    batch, hidden, height, width = shape
    wide = (batch, 2 * hidden, height, width)
    inputs = [numbers.random(*wide, seed=seed, dtype=dtype) for seed in (0, 1, 2)]
    inputs += [numbers.random(*shape, seed=seed, dtype=dtype) for seed in (3, 4, 5, 6)]

    def evaluate(kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(gru, "use_kernels", lambda *_: kernels)
        # The reference is in double precision.
        leaves = [(each.clone() if kernels else each.double()).requires_grad_() for each in inputs]
        state = leaves[6]
        gates, reset_state = gru.gru_gates((leaves[0], leaves[1], leaves[2]), state)
        after = gru.gru_state((leaves[3] + reset_state, leaves[4], leaves[5]), gates, state)
        gradient = numbers.random(*shape, seed=9, dtype=dtype).to(after.dtype)
        return [gates.detach(), reset_state.detach(), after.detach(), *torch.autograd.grad(after, leaves, gradient)]

    for actual, expected in zip(evaluate(True), evaluate(False), strict=True):
        assert actual.shape == expected.shape and actual.dtype == dtype
        assert numbers.error(actual, expected) < numbers.tolerance[dtype]
