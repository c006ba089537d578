"""The kernels of convex upsampling and their gradients agree with torch."""

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import convex_upsample
from protoformer.models.heads.update import kernel_upsample

pytestmark = pytest.mark.usefixtures("requires_kernels")


def evaluate(upsample, field: Tensor, weights: Tensor, factor: int, numbers) -> list[Tensor]:
    leaves = [each.clone().requires_grad_() for each in (field, weights)]
    fine = upsample(*leaves, factor)
    gradient = numbers.random(*fine.shape, seed=7, dtype=torch.float32)
    return [fine.detach(), *torch.autograd.grad(fine, leaves, gradient)]


@pytest.mark.parametrize(
    "shape",
    [pytest.param((2, 3, 5, 7), marks=pytest.mark.slow_interpreted), (1, 1, 2, 1), (1, 2, 1, 9), (2, 3, 6, 2)],
    ids=str,
)
@pytest.mark.parametrize("factor", [8, 4])
def test_upsampling_and_its_gradients_equal_torch(shape, factor, dtype, numbers):
    batch, _, height, width = shape
    field = 10 * numbers.random(*shape, seed=0, dtype=torch.float32)
    weights = 3 * numbers.random(batch, 9 * factor**2, height, width, seed=1, dtype=dtype)
    actual, expected = (evaluate(each, field, weights, factor, numbers) for each in (kernel_upsample, convex_upsample))
    for one, other in zip(actual, expected, strict=True):
        limit = numbers.tolerance[dtype] if one.dtype == dtype else 1e-5
        assert one.shape == other.shape and numbers.error(one, other) < limit


def test_large_logits_choose_one_neighbor(numbers):
    field = numbers.random(1, 2, 4, 5, seed=0, dtype=torch.float32)
    weights = torch.zeros(1, 9, 64, 4, 5, device=field.device)
    weights[:, 4] = 1e4
    fine = kernel_upsample(field, weights.flatten(1, 2), 8)
    assert torch.equal(fine, field.repeat_interleave(8, 2).repeat_interleave(8, 3))
