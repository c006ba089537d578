"""The kernels of single layers agree with the plain version: MLP, projection, and the cells of a map."""

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import operators
from protoformer.models.kernels import reference as plain

pytestmark = pytest.mark.usefixtures("kernels_run")


@pytest.fixture
def mlp_inputs(numbers):
    """Makes tokens, two weights and two biases that `dtype` can hold, all but the tokens in float32."""

    def made(rows: int, channels: int, hidden: int, dtype: torch.dtype) -> list[Tensor]:
        shapes = [(rows, channels), (hidden, channels), (hidden,), (channels, hidden), (channels,)]
        inputs = [numbers.random(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
        for place in (1, 3):
            inputs[place] /= 8
        return [inputs[0], *(each.float() for each in inputs[1:])]

    return made


def output_and_gradients(inputs: list[Tensor], arrives: Tensor) -> list[Tensor]:
    """Of the operator."""
    given = [each.detach().requires_grad_() for each in inputs]
    output = operators.mlp(*given)
    return [output.detach(), *torch.autograd.grad(output, given, arrives)]


@pytest.mark.parametrize(("rows", "channels", "hidden"), [(300, 128, 256), (37, 48, 96), (1, 32, 64), (129, 256, 512)])
def test_an_mlp_and_its_gradients_are_the_plain_ones(rows, channels, hidden, half_dtype, mlp_inputs, numbers):
    inputs = mlp_inputs(rows, channels, hidden, half_dtype)
    arrives = numbers.random(rows, channels, seed=9, dtype=half_dtype)
    exact = [each.double().requires_grad_() for each in inputs]
    tokens, first, first_bias, second, second_bias = exact
    hidden_layer = torch.nn.functional.gelu(tokens @ first.T + first_bias)
    right = hidden_layer @ second.T + second_bias
    expected = [right, *torch.autograd.grad(right, exact, arrives.double())]
    found = output_and_gradients(inputs, arrives)
    assert max(map(numbers.error, found, expected)) < numbers.tolerance[half_dtype]


def test_weights_of_an_mlp_may_lie_turned(half_dtype, mlp_inputs, numbers):
    inputs = mlp_inputs(37, 48, 96, half_dtype)
    arrives = numbers.random(37, 48, seed=9, dtype=half_dtype)
    turned = [numbers.turned(each) for each in inputs]
    assert not any(each.is_contiguous() for each in turned)
    straight = output_and_gradients(inputs, arrives)
    for one, other in zip(output_and_gradients(turned, arrives), straight, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("rows", "channels"), [(300, 128), (37, 48), (1, 32), (70, 256)])
def test_a_projection_is_the_plain_one_and_hands_the_tokens_on(rows, channels, half_dtype, numbers):
    from protoformer.models.kernels import mlp_kernels

    tokens = numbers.random(rows, channels, seed=0, dtype=torch.float32)
    bias = numbers.random(2 * channels, seed=1, dtype=torch.float32)
    weight = numbers.random(2 * channels, channels, seed=2, dtype=half_dtype)
    tokens_half = torch.empty_like(tokens, dtype=half_dtype)
    found = mlp_kernels.project(tokens, weight, bias, tokens_half)
    assert torch.equal(tokens_half, tokens.to(half_dtype))
    right = tokens_half.double() @ weight.double().T + bias.double()
    assert numbers.error(found, right) < numbers.tolerance[half_dtype]
    assert torch.equal(mlp_kernels.project(tokens, weight, bias, None), found)


@pytest.mark.parametrize(("size", "grid"), [((8, 12), (2, 3)), ((9, 14), (4, 5)), ((3, 4), (5, 7)), ((1, 50), (1, 6))])
def test_cells_are_pooled_and_spread_as_torch_does(size, grid, numbers):
    from protoformer.models.kernels import center_kernels as cell_kernels

    tokens = numbers.random(2, size[0] * size[1], 40, seed=0, dtype=torch.float32).requires_grad_()
    expected = plain.cell_means(tokens, size, grid)
    found, added = torch.empty_like(expected), numbers.random(*tokens.shape, seed=1, dtype=torch.float32)
    cell_kernels.pool(tokens.detach(), size, grid, found)
    torch.testing.assert_close(found, expected.detach())
    arrives = numbers.random(*expected.shape, seed=2, dtype=torch.float32)
    (gradient,) = torch.autograd.grad(expected, tokens, arrives)
    torch.testing.assert_close(cell_kernels.spread(arrives, added, size, grid), gradient + added)
