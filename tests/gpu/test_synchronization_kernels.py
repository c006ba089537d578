"""The kernels of LS and its gradient agree with the reference."""

import functools

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import reference as plain

pytestmark = pytest.mark.usefixtures("requires_kernels")


@pytest.fixture
def draw_inputs(numbers):
    """Return a function that draws features and centers (float32), queries, keys, values, alpha and beta."""

    def draw(batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        channels = heads * width
        features = numbers.random(batch, pixels, channels, seed=0, dtype=torch.float32)
        centers = numbers.random(batch, count, channels, seed=1, dtype=torch.float32)
        queries = numbers.random(batch, pixels, channels, seed=2, dtype=dtype)
        keys, values = (numbers.random(batch, count, channels, seed=seed, dtype=dtype) for seed in (3, 4))
        alpha, beta = (numbers.random(heads, seed=seed, dtype=torch.float32) for seed in (5, 6))
        return features, centers, queries, keys, values, alpha, beta

    return draw


def test_synchronization_and_its_gradients_equal_the_reference(shape, dtype, draw_inputs, numbers):
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = draw_inputs(*shape, dtype=dtype)
    directions = plain.unit_vectors(centers)
    attended, assignment = kernels.synchronize(features, directions, *rest)
    cosines = features.double() @ directions.double().transpose(1, 2)
    margin = cosines.amax(dim=-1) - cosines.gather(2, assignment[..., None])[..., 0]
    assert (margin / features.double().norm(dim=-1)).max() < 1e-6  # the nearest, up to ties of rounding

    def gate(*inputs: Tensor) -> tuple[Tensor]:
        return (plain.gated(*inputs, assignment),)

    exact = numbers.gradients(gate, tuple(rest), size=1.0, rounded_to=dtype)
    (gradient,) = numbers.output_gradients((attended,), 1.0)
    actual = [attended, *kernels.synchronize_backward(gradient.to(dtype), *rest, assignment)]
    names = ("attended", "queries", "keys", "values", "alpha", "beta")
    errors = {name: numbers.error(*pair) for name, *pair in zip(names, actual, exact, strict=True)}
    assert max(errors.values()) < numbers.tolerance[dtype], errors


def test_a_spatial_prior_is_added_to_the_cosine(shape, dtype, draw_inputs, numbers):
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = draw_inputs(*shape, dtype=dtype)
    coefficients = 0.1 * numbers.random(shape[0], shape[2], 3, seed=7, dtype=torch.float32)
    prior = plain.PriorCoefficients(coefficients, 3 * numbers.random(shape[4], 2, seed=8, dtype=torch.float32))
    _, assignment = kernels.synchronize(features, plain.unit_vectors(centers), *rest, prior)
    exact = plain.PriorCoefficients(*(each.double() for each in prior))
    similarity = torch.nn.functional.normalize(features.double(), dim=-1) @ plain.unit_vectors(centers).double().mT
    similarity += exact.logits().mT
    margin = similarity.amax(dim=-1) - similarity.gather(2, assignment[..., None])[..., 0]
    assert margin.max() < 1e-5  # the best, up to ties of rounding


@pytest.mark.parametrize("length", [0.0, 3e-9])
def test_vectors_of_almost_zero_length_have_the_gradient_of_the_reference(length, draw_inputs, numbers):
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = draw_inputs(1, 2, 3, 16, 40, torch.float32)
    rest[0][0, 5] *= length
    rest[1][0, :2] *= length
    attended, assignment = kernels.synchronize(features, plain.unit_vectors(centers), *rest)

    def gate(*inputs: Tensor) -> tuple[Tensor]:
        return (plain.gated(*inputs, assignment),)

    exact = numbers.gradients(gate, tuple(rest), size=1.0)
    (gradient,) = numbers.output_gradients((attended,), 1.0)
    actual = kernels.synchronize_backward(gradient.float(), *rest, assignment)
    for result, right in zip(actual, exact[1:], strict=True):
        assert numbers.error(result, right) < 1e-5


@pytest.mark.slow_interpreted
def test_two_runs_are_bit_identical(dtype, draw_inputs):
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = draw_inputs(2, 2, 100, 32, 999, dtype)
    forward = functools.partial(kernels.synchronize, features, plain.unit_vectors(centers), *rest)
    (attended, assignment), (again, _) = forward(), forward()
    assert torch.equal(attended, again)
    backward = functools.partial(kernels.synchronize_backward, attended, *rest, assignment)
    for one, other in zip(backward(), backward(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(2, 2, 10, 32, 37), (1, 4, 100, 64, 70), (1, 2, 7, 24, 50)], ids=str)
def test_queries_projected_by_the_kernel_equal_a_linear_layer(shape, dtype, draw_inputs, numbers):
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, _, *rest = draw_inputs(*shape, dtype=dtype)
    channels = features.shape[2]
    weight = numbers.random(channels, channels, seed=7, dtype=dtype)
    bias = numbers.random(channels, seed=8, dtype=torch.float32)
    queries = features.to(dtype).double() @ weight.double().T + bias.double()
    attended, assignment = kernels.synchronize(features, centers, (weight, bias), *rest)
    right = plain.gated(queries, *(each.double() for each in rest), assignment)
    assert numbers.error(attended, right) < numbers.tolerance[dtype]
