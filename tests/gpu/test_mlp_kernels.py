"""The kernels of the MLP, the projection and the pooling over cells agree with the reference."""

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import operators
from protoformer.models.kernels import reference as plain

pytestmark = pytest.mark.usefixtures("requires_kernels")


@pytest.fixture
def mlp_inputs(numbers):
    """Return a function that draws tokens, weights and biases of an MLP; all but the tokens are float32."""

    def draw(rows: int, channels: int, hidden: int, dtype: torch.dtype) -> list[Tensor]:
        shapes = [(rows, channels), (hidden, channels), (hidden,), (channels, hidden), (channels,)]
        inputs = [numbers.random(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
        for index in (1, 3):
            inputs[index] /= 8
        return [inputs[0], *(each.float() for each in inputs[1:])]

    return draw


def output_and_gradients(inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Return the output of the operator and its gradients."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    output = operators.mlp(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]


@pytest.mark.parametrize(("rows", "channels", "hidden"), [(300, 128, 256), (37, 48, 96), (1, 32, 64), (129, 256, 512)])
def test_an_mlp_and_its_gradients_equal_the_reference(rows, channels, hidden, half_dtype, mlp_inputs, numbers):
    inputs = mlp_inputs(rows, channels, hidden, half_dtype)
    gradient = numbers.random(rows, channels, seed=9, dtype=half_dtype)
    exact = [each.double().requires_grad_() for each in inputs]
    tokens, first, first_bias, second, second_bias = exact
    hidden_layer = torch.nn.functional.gelu(tokens @ first.T + first_bias)
    right = hidden_layer @ second.T + second_bias
    expected = [right, *torch.autograd.grad(right, exact, gradient.double())]
    actual = output_and_gradients(inputs, gradient)
    assert max(map(numbers.error, actual, expected)) < numbers.tolerance[half_dtype]


def test_weights_of_an_mlp_may_be_transposed(half_dtype, mlp_inputs, numbers):
    inputs = mlp_inputs(37, 48, 96, half_dtype)
    gradient = numbers.random(37, 48, seed=9, dtype=half_dtype)
    transposed = [numbers.transposed(each) for each in inputs]
    assert not any(each.is_contiguous() for each in transposed)
    contiguous = output_and_gradients(inputs, gradient)
    for one, other in zip(output_and_gradients(transposed, gradient), contiguous, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("rows", "channels"), [(300, 128), (37, 48), (1, 32), (70, 256)])
def test_a_projection_equals_the_reference_and_stores_the_rounded_tokens(rows, channels, half_dtype, numbers):
    from protoformer.models.kernels import mlp_kernels

    tokens = numbers.random(rows, channels, seed=0, dtype=torch.float32)
    bias = numbers.random(2 * channels, seed=1, dtype=torch.float32)
    weight = numbers.random(2 * channels, channels, seed=2, dtype=half_dtype)
    tokens_half = torch.empty_like(tokens, dtype=half_dtype)
    actual = mlp_kernels.project(tokens, weight, bias, tokens_half)
    assert torch.equal(tokens_half, tokens.to(half_dtype))
    right = tokens_half.double() @ weight.double().T + bias.double()
    assert numbers.error(actual, right) < numbers.tolerance[half_dtype]
    assert torch.equal(mlp_kernels.project(tokens, weight, bias, None), actual)


@pytest.mark.parametrize(("size", "grid"), [((8, 12), (2, 3)), ((9, 14), (4, 5)), ((3, 4), (5, 7)), ((1, 50), (1, 6))])
def test_pooling_over_cells_and_its_gradient_equal_torch(size, grid, numbers):
    from protoformer.models.kernels import center_kernels

    tokens = numbers.random(2, size[0] * size[1], 40, seed=0, dtype=torch.float32).requires_grad_()
    expected = plain.cell_means(tokens, size, grid)
    actual, added = torch.empty_like(expected), numbers.random(*tokens.shape, seed=1, dtype=torch.float32)
    center_kernels.pool(tokens.detach(), size, grid, actual)
    torch.testing.assert_close(actual, expected.detach())
    gradient = numbers.random(*expected.shape, seed=2, dtype=torch.float32)
    (d_tokens,) = torch.autograd.grad(expected, tokens, gradient)
    torch.testing.assert_close(center_kernels.spread(gradient, added, size, grid), d_tokens + added)
