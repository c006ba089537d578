"""The kernels of CAP agree with the reference."""

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import fused
from protoformer.models.kernels import reference as plain

pytestmark = pytest.mark.usefixtures("requires_kernels")


@pytest.fixture
def draw_inputs(numbers):
    """Return a function that draws queries, keys and values with the memory layout of the projections."""

    def draw(
        batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype, scale: float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        queries = numbers.random(batch, count, heads, width, seed=0, dtype=dtype).transpose(1, 2) * scale
        keys, values = (
            numbers.random(batch, pixels, heads, width, seed=seed, dtype=dtype).transpose(1, 2) for seed in (1, 2)
        )
        return queries, keys, values

    return draw


@pytest.fixture
def sums_and_gradients(numbers):
    """Return a function that computes sums, masses and the gradients of queries, keys and values by the kernels."""

    def compute(inputs: tuple[Tensor, Tensor, Tensor], size: float = 1.0) -> list[Tensor]:
        from protoformer.models.kernels import prototyping_kernels as kernels

        outputs = kernels.prototype_sums(*inputs)
        d_sums, d_mass = (each.float() for each in numbers.output_gradients(outputs, size))
        return [*outputs, *kernels.prototype_sums_backward(d_sums, d_mass, *inputs)]

    return compute


def test_sums_and_gradients_equal_the_reference(shape, dtype, draw_inputs, sums_and_gradients, numbers):
    inputs = draw_inputs(*shape, dtype=dtype)
    actual, exact = sums_and_gradients(inputs), numbers.gradients(plain.prototype_sums, inputs, size=1.0)
    names = ("sums", "mass", "queries", "keys", "values")
    errors = {name: numbers.error(*pair) for name, *pair in zip(names, actual, exact, strict=True)}
    if shape[2] == 1:  # the softmax over one prototype is constant, so that its gradient is rounding error
        errors = {name: each for name, each in errors.items() if name not in ("queries", "keys")}
        assert all(float(actual[index].abs().max()) < 1e-3 for index in (2, 3))
    assert max(errors.values()) < numbers.tolerance[dtype], errors
    assert [each.dtype for each in actual] == [torch.float32, torch.float32, dtype, dtype, dtype]


def test_sums_with_a_spatial_prior_and_gradients_equal_the_reference(shape, dtype, draw_inputs, numbers):
    from protoformer.models.kernels import prototyping_kernels as kernels

    inputs, (batch, _, count, _, pixels) = draw_inputs(*shape, dtype=dtype), shape
    coefficients = numbers.random(batch, count, 3, seed=3, dtype=torch.float32)
    positions = 3 * numbers.random(pixels, 2, seed=4, dtype=torch.float32)

    def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
        return plain.spatial_sums(*tensors[:3], plain.PriorCoefficients(tensors[3], positions.double()))

    exact = numbers.gradients(compute, (*inputs, coefficients), size=1.0)
    prior = plain.PriorCoefficients(coefficients, positions)
    outputs = kernels.spatial_sums(*inputs, prior)
    d_outputs = (each.float() for each in numbers.output_gradients(outputs, 1.0))
    actual = [*outputs, *kernels.spatial_sums_backward(*d_outputs, *inputs, prior)]
    names = ("sums", "mass", "moments", "queries", "keys", "values", "coefficients")
    errors = {name: numbers.error(*pair) for name, *pair in zip(names, actual, exact, strict=True)}
    if count == 1:  # as above
        errors = {name: each for name, each in errors.items() if name not in ("queries", "keys", "coefficients")}
    assert max(errors.values()) < numbers.tolerance[dtype], errors


@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_large_logits_are_as_accurate_as_in_the_reference(dtype, scale, draw_inputs, sums_and_gradients, numbers):
    """Large logits amplify the rounding of the inputs of a softmax, so errors are compared with those of torch."""
    inputs = draw_inputs(2, 2, 100, 32, 203, dtype, scale)
    actual, exact = sums_and_gradients(inputs), numbers.gradients(plain.prototype_sums, inputs, size=1.0)
    assert all(each.isfinite().all() for each in actual)
    single = tuple(each.float().requires_grad_() for each in inputs)
    outputs = plain.prototype_sums(*single)
    gradients = [each.float() for each in numbers.output_gradients(outputs, 1.0)]
    torch_results = [*outputs, *torch.autograd.grad(outputs, single, gradients)]
    for result, torch_result, right in zip(actual, torch_results, exact, strict=True):
        assert numbers.error(result, right) < numbers.tolerance[dtype] + 4 * numbers.error(torch_result, right)


def test_a_prototype_without_members_has_no_mass_and_no_gradient(dtype, draw_inputs, sums_and_gradients):
    queries, keys, values = draw_inputs(1, 1, 10, 16, 70, dtype)
    keys[..., 0] = keys[..., 0].abs() + 1
    queries[:, :, 4] = 0
    queries[:, :, 4, 0] = -2e4
    sums, mass, d_queries, d_keys, d_values = sums_and_gradients((queries, keys, values))
    assert mass[0, 0, 4] == 0 and (sums[0, 0, 4] == 0).all() and (d_queries[0, 0, 4] == 0).all()
    assert d_keys.isfinite().all() and d_values.isfinite().all()


def test_gradients_below_the_range_of_half_precision_do_not_underflow(draw_inputs, sums_and_gradients, numbers):
    inputs = draw_inputs(1, 2, 100, 32, 300, torch.float16)
    exact = numbers.gradients(plain.prototype_sums, inputs, size=1e-4)
    actual = sums_and_gradients(inputs, size=1e-4)
    assert max(numbers.error(*pair) for pair in zip(actual[2:], exact[2:], strict=True)) < 1e-2


@pytest.mark.slow_interpreted
def test_two_runs_are_bit_identical(dtype, draw_inputs, sums_and_gradients):
    inputs = draw_inputs(2, 2, 100, 32, 999, dtype)
    for one, other in zip(sums_and_gradients(inputs), sums_and_gradients(inputs), strict=True):
        assert torch.equal(one, other)


def test_non_contiguous_inputs_give_the_same_result(draw_inputs, sums_and_gradients):
    queries, keys, values = draw_inputs(1, 2, 20, 16, 60, torch.float32)
    transposed = keys.transpose(2, 3).contiguous().transpose(2, 3)
    assert transposed.stride(-1) != 1
    contiguous = sums_and_gradients((queries, keys, values))
    for one, other in zip(contiguous, sums_and_gradients((queries, transposed, values)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("requires_gpu")
def test_memberships_are_not_allocated(draw_inputs, sums_and_gradients):
    """Four heads of 100 prototypes: memberships would take 12.5 times the memory of keys and values together."""
    inputs = draw_inputs(1, 4, 100, 32, 100_000, torch.bfloat16)
    features = inputs[1].nbytes
    sums_and_gradients(inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    queries, keys, values = (each.requires_grad_() for each in inputs)
    sums, mass = fused.prototype_sums(queries, keys, values)
    assert torch.cuda.max_memory_allocated() - before < 0.5 * features
    torch.autograd.grad(sums.sum() + mass.sum(), (queries, keys, values))
    assert torch.cuda.max_memory_allocated() - before < 3 * features  # two of these are the gradients


@pytest.mark.usefixtures("requires_gpu")
@pytest.mark.parametrize(("count", "width", "dtype"), [(300, 32, torch.float32), (10, 128, torch.float16)])
def test_unsupported_sizes_are_computed_in_blocks(count, width, dtype, draw_inputs, numbers):
    inputs = draw_inputs(1, 2, count, width, 77, dtype)
    sums, mass = fused.prototype_sums(*inputs)
    exact = plain.prototype_sums(*(each.double() for each in inputs))
    assert max(numbers.error(sums, exact[0]), numbers.error(mass, exact[1])) < 1e-5
