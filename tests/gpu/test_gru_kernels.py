"""The recurrent unit by kernels is the plain one, in its gradients too."""

import pytest
import torch
from torch import Tensor

from protoformer.models.heads import update as gru

pytestmark = pytest.mark.usefixtures("kernels_run")


@pytest.mark.parametrize("shape", [(2, 16, 5, 7), (1, 32, 1, 3), (1, 24, 33, 9)], ids=str)
def test_gates_and_states_and_gradients_are_the_plain_ones(shape, dtype, numbers, monkeypatch):
    batch, hidden, height, width = shape
    wide = (batch, 2 * hidden, height, width)
    made = [numbers.random(*wide, seed=seed, dtype=dtype) for seed in (0, 1, 2)]
    made += [numbers.random(*shape, seed=seed, dtype=dtype) for seed in (3, 4, 5, 6)]

    def learned(kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(gru, "use_kernels", lambda *_: kernels)
        # The plain one in double precision, as it rounds as well.
        given = [(each.clone() if kernels else each.double()).requires_grad_() for each in made]
        state = given[6]
        found, shielded = gru.gru_gates((given[0], given[1], given[2]), state)
        after = gru.gru_state((given[3] + shielded, given[4], given[5]), found, state)
        arrives = numbers.random(*shape, seed=9, dtype=dtype).to(after.dtype)
        return [found.detach(), shielded.detach(), after.detach(), *torch.autograd.grad(after, given, arrives)]

    for mine, expected in zip(learned(True), learned(False), strict=True):
        assert mine.shape == expected.shape and mine.dtype == dtype
        assert numbers.error(mine, expected) < numbers.tolerance[dtype]
