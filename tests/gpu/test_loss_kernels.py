"""The kernels of the flow loss and their gradients agree with torch."""

import pytest
import torch
from torch import Tensor

from protoformer.flow import losses

pytestmark = pytest.mark.usefixtures("requires_kernels")


@pytest.mark.parametrize("shape", [(2, 7, 9), (1, 1, 1), (3, 40, 33)], ids=str)
def test_sums_and_gradients_equal_torch(shape, numbers, monkeypatch):
    batch, height, width = shape
    fine = 2 * numbers.random(batch, 3, height, width, seed=0, dtype=torch.float32)
    flow = 2 * numbers.random(batch, 2, height, width, seed=1, dtype=torch.float32)
    mask = numbers.random(batch, 1, height, width, seed=2, dtype=torch.float32) < 0.7
    fine[:, :2, :1] = flow[:, :, :1]  # zero error has zero gradient
    flow.masked_fill_(~mask, torch.nan)

    def evaluate(sums) -> list[Tensor]:
        leaf = fine.clone().requires_grad_()
        estimate, log_scale = leaf.split((2, 1), dim=1)
        l1, nll, epe = sums(estimate, log_scale, flow, mask)
        (gradient,) = torch.autograd.grad(2 * l1 + 0.1 * nll, leaf)
        return [l1.detach(), nll.detach(), epe.detach(), gradient]

    monkeypatch.setattr(losses, "use_kernels", lambda *_: False)
    actual, expected = evaluate(losses.kernel_error_sums), evaluate(losses.error_sums)
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape and numbers.error(one, other) < 1e-5
