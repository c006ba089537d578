"""With one group of kernels disabled, a mixer computes the same by plain torch."""

import copy

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import dispatch

pytestmark = pytest.mark.usefixtures("requires_kernels", "force_kernels")

SIZE = (7, 10)
SETTINGS = [{}, {"normalize": False, "residual": False}]


def outputs_and_gradients(module, tokens: Tensor, dtype: torch.dtype, numbers) -> list[Tensor]:
    tokens = tokens.clone().requires_grad_()
    with torch.autocast(numbers.device, dtype, enabled=dtype != torch.float32):
        output, prototypes = module(tokens, SIZE)
    d_output, d_centers = numbers.output_gradients((output, prototypes.centers), 1.0)
    parameters = [weight for name, weight in module.named_parameters() if name != "prototyping.query.bias"]
    gradients = torch.autograd.grad(
        (output, prototypes.centers),
        [tokens, *parameters],
        (d_output.to(output.dtype), d_centers.to(prototypes.centers.dtype)),
    )
    return [output.detach(), prototypes.centers.detach(), *gradients]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("group", ["centers", "projection", "mlp"])
def test_a_mixer_with_one_group_disabled_is_the_same(group, settings, dtype, mixer, numbers):
    module = mixer(32, 2, 12, num_iterations=2, **settings)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = numbers.random(2, SIZE[0] * SIZE[1], 32, seed=0, dtype=torch.float32)
    with dispatch.use_version("plain"):
        exact = outputs_and_gradients(copy.deepcopy(module).double(), tokens.double(), torch.float32, numbers)
    expected = outputs_and_gradients(module, tokens, dtype, numbers)
    with dispatch.disabled(group):
        output = outputs_and_gradients(module, tokens, dtype, numbers)
    for one, other, reference in zip(output, expected, exact, strict=True):
        assert one.dtype == other.dtype
        # Both versions round, so the error of each is measured against float64.
        assert numbers.error(one, reference) < 2 * max(numbers.tolerance[dtype], numbers.error(other, reference))
