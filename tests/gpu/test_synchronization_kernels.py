"""The kernels of synchronization, and of its gradient, agree with the plain version."""

import functools

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import reference as plain

pytestmark = pytest.mark.usefixtures("kernels_run")


@pytest.fixture
def given(numbers):
    """Makes features and centers in single precision, as layer norm leaves them; queries, keys, values, alpha, beta."""

    def made(batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        channels = heads * width
        features = numbers.random(batch, pixels, channels, seed=0, dtype=torch.float32)
        centers = numbers.random(batch, count, channels, seed=1, dtype=torch.float32)
        queries = numbers.random(batch, pixels, channels, seed=2, dtype=dtype)
        keys, values = (numbers.random(batch, count, channels, seed=seed, dtype=dtype) for seed in (3, 4))
        alpha, beta = (numbers.random(heads, seed=seed, dtype=torch.float32) for seed in (5, 6))
        return features, centers, queries, keys, values, alpha, beta

    return made


def test_synchronization_and_its_gradients_are_the_plain_ones(shape, dtype, given, numbers):
    from protoformer.models.kernels import synchronization_kernels as backward_kernels
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = given(*shape, dtype=dtype)
    directions = plain.directions(centers)
    attended, assignment = kernels.synchronize(features, directions, *rest)
    cosines = features.double() @ directions.double().transpose(1, 2)
    short = cosines.amax(dim=-1) - cosines.gather(2, assignment[..., None])[..., 0]
    assert (short / features.double().norm(dim=-1)).max() < 1e-6  # the nearest, but for ties of rounding

    def gate(*learned: Tensor) -> tuple[Tensor]:
        return (plain.gated(*learned, assignment),)

    exact = numbers.gradients(gate, tuple(rest), size=1.0, given_as=dtype)
    (arrives,) = numbers.arriving((attended,), 1.0)
    ours = [attended, *backward_kernels.synchronize_backward(arrives.to(dtype), *rest, assignment)]
    names = ("attended", "queries", "keys", "values", "alpha", "beta")
    errors = {name: numbers.error(*pair) for name, *pair in zip(names, ours, exact, strict=True)}
    assert max(errors.values()) < numbers.tolerance[dtype], errors


@pytest.mark.parametrize("length", [0.0, 3e-9])
def test_vectors_of_no_length_to_speak_of_have_the_plain_gradient(length, given, numbers):
    from protoformer.models.kernels import synchronization_kernels as backward_kernels
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = given(1, 2, 3, 16, 40, torch.float32)
    rest[0][0, 5] *= length
    rest[1][0, :2] *= length
    attended, assignment = kernels.synchronize(features, plain.directions(centers), *rest)

    def gate(*learned: Tensor) -> tuple[Tensor]:
        return (plain.gated(*learned, assignment),)

    exact = numbers.gradients(gate, tuple(rest), size=1.0)
    (arrives,) = numbers.arriving((attended,), 1.0)
    ours = backward_kernels.synchronize_backward(arrives.float(), *rest, assignment)
    for mine, right in zip(ours, exact[1:], strict=True):
        assert numbers.error(mine, right) < 1e-5


@pytest.mark.slow_interpreted
def test_two_runs_agree_bit_by_bit(dtype, given):
    from protoformer.models.kernels import synchronization_kernels as backward_kernels
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, *rest = given(2, 2, 100, 32, 999, dtype)
    forward = functools.partial(kernels.synchronize, features, plain.directions(centers), *rest)
    (attended, assignment), (again, _) = forward(), forward()
    assert torch.equal(attended, again)
    backward = functools.partial(backward_kernels.synchronize_backward, attended, *rest, assignment)
    for one, other in zip(backward(), backward(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(2, 2, 10, 32, 37), (1, 4, 100, 64, 70), (1, 2, 7, 24, 50)], ids=str)
def test_queries_made_on_the_way_are_those_of_a_layer(shape, dtype, given, numbers):
    from protoformer.models.kernels import synchronization_kernels as kernels

    features, centers, _, *rest = given(*shape, dtype=dtype)
    channels = features.shape[2]
    weight = numbers.random(channels, channels, seed=7, dtype=dtype)
    bias = numbers.random(channels, seed=8, dtype=torch.float32)
    queries = features.to(dtype).double() @ weight.double().T + bias.double()
    attended, assignment = kernels.synchronize(features, centers, (weight, bias), *rest)
    right = plain.gated(queries, *(each.double() for each in rest), assignment)
    assert numbers.error(attended, right) < numbers.tolerance[dtype]
