"""With one group of kernels disabled, a mixer computes the same by plain torch."""

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels.dispatch import disabled

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
        (output, prototypes.centers), [tokens, *parameters], (d_output.to(output.dtype), d_centers.float())
    )
    return [output.detach(), prototypes.centers.detach(), *gradients]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("group", ["centers", "projection", "mlp"])
def test_a_mixer_with_one_group_disabled_is_the_same(group, settings, dtype, mixer, numbers):
    module = mixer(32, 2, 12, num_iterations=2, **settings)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = numbers.random(2, SIZE[0] * SIZE[1], 32, seed=0, dtype=torch.float32)
    exact = outputs_and_gradients(module, tokens, torch.float32, numbers)
    expected = outputs_and_gradients(module, tokens, dtype, numbers)
    with disabled(group):
        output = outputs_and_gradients(module, tokens, dtype, numbers)
    for one, other, reference in zip(output, expected, exact, strict=True):
        assert one.dtype == other.dtype
        # In half precision, two versions round differently, and each may be as far from the other as from float32.
        assert numbers.error(one, other) < max(2 * numbers.tolerance[dtype], numbers.error(other, reference))
