"""The kernels of prototyping's sums, and of their gradients, agree with the plain version."""

import pytest
import torch
from torch import Tensor

from protoformer.models.kernels import fused
from protoformer.models.kernels import reference as plain

pytestmark = pytest.mark.usefixtures("kernels_run")


@pytest.fixture
def given(numbers):
    """Makes queries, keys and values laid out as the projections leave them."""

    def made(
        batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype, scale: float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        queries = numbers.random(batch, count, heads, width, seed=0, dtype=dtype).transpose(1, 2) * scale
        keys, values = (
            numbers.random(batch, pixels, heads, width, seed=seed, dtype=dtype).transpose(1, 2) for seed in (1, 2)
        )
        return queries, keys, values

    return made


@pytest.fixture
def sums_and_gradients(numbers):
    """Runs the kernels on queries, keys and values: sums, masses and the gradients of all three."""

    def found(inputs: tuple[Tensor, Tensor, Tensor], size: float = 1.0) -> list[Tensor]:
        from protoformer.models.kernels import prototyping_kernels as backward
        from protoformer.models.kernels import prototyping_kernels as kernels

        found = kernels.prototype_sums(*inputs)
        d_sums, d_mass = (each.float() for each in numbers.arriving(found, size))
        return [*found, *backward.prototype_sums_backward(d_sums, d_mass, *inputs)]

    return found


def test_sums_and_their_gradients_are_the_plain_ones(shape, dtype, given, sums_and_gradients, numbers):
    inputs = given(*shape, dtype=dtype)
    ours, exact = sums_and_gradients(inputs), numbers.gradients(plain.prototype_sums, inputs, size=1.0)
    names = ("sums", "mass", "queries", "keys", "values")
    errors = {name: numbers.error(*pair) for name, *pair in zip(names, ours, exact, strict=True)}
    if shape[2] == 1:  # a softmax of one is 1: what has no gradient is left with rounding
        errors = {name: each for name, each in errors.items() if name not in ("queries", "keys")}
        assert all(float(ours[place].abs().max()) < 1e-3 for place in (2, 3))
    assert max(errors.values()) < numbers.tolerance[dtype], errors
    assert [each.dtype for each in ours] == [torch.float32, torch.float32, dtype, dtype, dtype]


@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_large_logits_are_as_right_as_in_the_plain_version(dtype, scale, given, sums_and_gradients, numbers):
    """The larger the logits, the more rounding of the inputs of a softmax shows: torch's own error is the measure."""
    inputs = given(2, 2, 100, 32, 203, dtype, scale)
    ours, exact = sums_and_gradients(inputs), numbers.gradients(plain.prototype_sums, inputs, size=1.0)
    assert all(each.isfinite().all() for each in ours)
    single = tuple(each.float().requires_grad_() for each in inputs)
    found = plain.prototype_sums(*single)
    arrives = [each.float() for each in numbers.arriving(found, 1.0)]
    theirs = [*found, *torch.autograd.grad(found, single, arrives)]
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert numbers.error(mine, right) < numbers.tolerance[dtype] + 4 * numbers.error(other, right)


def test_a_prototype_that_nobody_belongs_to_has_no_mass_and_no_gradient(dtype, given, sums_and_gradients):
    queries, keys, values = given(1, 1, 10, 16, 70, dtype)
    keys[..., 0] = keys[..., 0].abs() + 1
    queries[:, :, 4] = 0
    queries[:, :, 4, 0] = -2e4
    sums, mass, d_queries, d_keys, d_values = sums_and_gradients((queries, keys, values))
    assert mass[0, 0, 4] == 0 and (sums[0, 0, 4] == 0).all() and (d_queries[0, 0, 4] == 0).all()
    assert d_keys.isfinite().all() and d_values.isfinite().all()


def test_gradients_too_small_for_half_precision_are_not_lost_on_the_way(given, sums_and_gradients, numbers):
    inputs = given(1, 2, 100, 32, 300, torch.float16)
    exact = numbers.gradients(plain.prototype_sums, inputs, size=1e-4)
    ours = sums_and_gradients(inputs, size=1e-4)
    assert max(numbers.error(*pair) for pair in zip(ours[2:], exact[2:], strict=True)) < 1e-2


@pytest.mark.slow_interpreted
def test_two_runs_agree_bit_by_bit(dtype, given, sums_and_gradients):
    inputs = given(2, 2, 100, 32, 999, dtype)
    for one, other in zip(sums_and_gradients(inputs), sums_and_gradients(inputs), strict=True):
        assert torch.equal(one, other)


def test_layouts_that_are_not_contiguous_are_read_rightly(given, sums_and_gradients):
    queries, keys, values = given(1, 2, 20, 16, 60, torch.float32)
    turned = keys.transpose(2, 3).contiguous().transpose(2, 3)
    assert turned.stride(-1) != 1
    straight = sums_and_gradients((queries, keys, values))
    for one, other in zip(straight, sums_and_gradients((queries, turned, values)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("on_gpu")
def test_nothing_of_the_size_of_memberships_is_allocated(given, sums_and_gradients):
    """Four heads of 100 prototypes: memberships would take 12.5 times the memory of keys and values together."""
    inputs = given(1, 4, 100, 32, 100_000, torch.bfloat16)
    features = inputs[1].nbytes
    sums_and_gradients(inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    queries, keys, values = (each.requires_grad_() for each in inputs)
    sums, mass = fused.prototype_sums(queries, keys, values)
    assert torch.cuda.max_memory_allocated() - before < 0.5 * features
    torch.autograd.grad(sums.sum() + mass.sum(), (queries, keys, values))
    assert torch.cuda.max_memory_allocated() - before < 3 * features  # two of them are the gradients themselves


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("count", "width", "dtype"), [(300, 32, torch.float32), (10, 128, torch.float16)])
def test_what_the_kernels_do_not_take_is_computed_in_blocks(count, width, dtype, given, numbers):
    inputs = given(1, 2, count, width, 77, dtype)
    sums, mass = fused.prototype_sums(*inputs)
    exact = plain.prototype_sums(*(each.double() for each in inputs))
    assert max(numbers.error(sums, exact[0]), numbers.error(mass, exact[1])) < 1e-5
