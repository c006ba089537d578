"""The sums of the loss by kernels are the plain ones, in their gradients too."""

import pytest
import torch
from torch import Tensor

from protoformer.flow import losses

pytestmark = pytest.mark.usefixtures("kernels_run")


@pytest.mark.parametrize("shape", [(2, 7, 9), (1, 1, 1), (3, 40, 33)], ids=str)
def test_sums_and_gradients_are_the_plain_ones(shape, numbers, monkeypatch):
    batch, height, width = shape
    fine = 2 * numbers.random(batch, 3, height, width, seed=0, dtype=torch.float32)
    flow = 2 * numbers.random(batch, 2, height, width, seed=1, dtype=torch.float32)
    counted = numbers.random(batch, 1, height, width, seed=2, dtype=torch.float32) < 0.7
    fine[:, :2, :1] = flow[:, :, :1]  # no error at all has no slope
    flow.masked_fill_(~counted, torch.nan)

    def learned(sums) -> list[Tensor]:
        given = fine.clone().requires_grad_()
        estimate, log_scale = given.split((2, 1), dim=1)
        distance, surprise, length = sums(estimate, log_scale, flow, counted)
        (gradient,) = torch.autograd.grad(2 * distance + 0.1 * surprise, given)
        return [distance.detach(), surprise.detach(), length.detach(), gradient]

    monkeypatch.setattr(losses, "use_kernels", lambda *_: False)
    ours, right = learned(losses.kernel_error_sums), learned(losses.error_sums)
    for mine, expected in zip(ours, right, strict=True):
        assert mine.shape == expected.shape and numbers.error(mine, expected) < 1e-5
