"""The kernels of the correlation lookup and their gradients agree with the stored correlation."""

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid
from protoformer.models.heads.correlation import KernelCorrelation, KernelOnDemandCorrelation, StoredCorrelation
from protoformer.models.heads.flow import CorrelationCosts
from protoformer.training.engine import recompute_activations

pytestmark = pytest.mark.usefixtures("requires_kernels")

slow = pytest.mark.slow_interpreted
SIZES = [
    (3, 5, 4, 4),
    (5, 3, 2, 1),
    *(pytest.param(*each, marks=slow) for each in [(9, 11, 2, 3), (8, 13, 4, 4), (8, 8, 4, 2), (5, 23, 1, 1)]),
]
"""Height, width, levels, radius."""


def draw_centers(numbers, height: int, width: int, spread: float, seed: int) -> Tensor:
    noise = numbers.random(2, 2, height, width, seed=seed, dtype=torch.float32)
    return pixel_grid(height, width, noise.device) + spread * noise


def evaluate(kind, maps: list[Tensor], centers: list[Tensor], levels: int, radius: int) -> list[Tensor]:
    """Return windows around several centers, as updates read them, and the gradients of both maps."""
    source, target = (each.clone().requires_grad_() for each in maps)
    correlation = kind(source, target, levels)
    windows = [correlation.windows(each, radius) for each in centers]
    loss = sum(((number + 1) * each.float()).square().sum() for number, each in enumerate(windows))
    return [*(each.detach() for each in windows), *torch.autograd.grad(loss, (source, target))]


@pytest.mark.parametrize(("height", "width", "levels", "radius"), SIZES)
@pytest.mark.parametrize("spread", [0.0, 1.5, 40.0])
def test_windows_and_gradients_equal_the_stored_correlation(height, width, levels, radius, spread, numbers):
    maps = [numbers.random(2, 24, height, width, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    centers = [draw_centers(numbers, height, width, spread, seed) for seed in (2, 3, 4)]
    actual, expected = (
        evaluate(kind, maps, centers, levels, radius) for kind in (KernelCorrelation, StoredCorrelation)
    )
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape and numbers.error(one, other) < 1e-5


@pytest.mark.parametrize(("height", "width", "levels", "radius"), SIZES)
@pytest.mark.parametrize("spread", [0.0, 40.0])
def test_costs_on_demand_equal_the_stored_correlation(height, width, levels, radius, spread, dtype, numbers):
    maps = [numbers.random(2, 40, height, width, seed=seed, dtype=dtype) for seed in (0, 1)]
    centers = draw_centers(numbers, height, width, spread, 2)
    actual = KernelOnDemandCorrelation(*maps, levels).windows(centers, radius)
    expected = StoredCorrelation(*(each.float() for each in maps), levels).windows(centers, radius)
    assert actual.shape == expected.shape and numbers.error(actual, expected) < numbers.tolerance[dtype]


@pytest.mark.parametrize("kind", [KernelCorrelation, KernelOnDemandCorrelation])
def test_centers_far_outside_read_zeros(kind, numbers):
    maps = [numbers.random(2, 8, 8, 9, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    centers = draw_centers(numbers, 8, 9, 0.0, 0)
    centers[0, 0], centers[1, 1] = 1e30, -1e30
    assert not kind(*maps, 2).windows(centers, 3).any()


def test_without_a_lookup_the_gradient_is_zero(numbers):
    source, target = (numbers.random(1, 8, 8, 9, seed=seed, dtype=torch.float32).requires_grad_() for seed in (0, 1))
    correlation = KernelCorrelation(source, target, 2)
    for gradient in torch.autograd.grad(correlation.autograd_handle, (source, target)):
        assert not gradient.any()


@slow
def test_recomputed_windows_give_the_same_gradient(numbers, monkeypatch):
    monkeypatch.setattr("protoformer.models.heads.flow.use_kernels", lambda *_: True)
    centers = draw_centers(numbers, 8, 9, 1.0, 2)
    gradients = []
    for recompute in (False, True):
        costs = CorrelationCosts(2, 3)
        if recompute:
            recompute_activations(costs)
        maps = [numbers.random(2, 8, 8, 9, seed=seed, dtype=torch.float32).requires_grad_() for seed in (0, 1)]
        read = costs.prepare(*maps, maps[0], False)
        loss = read(centers).square().sum() + read(centers + 1).square().sum()
        gradients.append(torch.autograd.grad(loss, maps))
    for once, twice in zip(*gradients, strict=True):
        assert torch.equal(once, twice)


@pytest.mark.usefixtures("requires_gpu")
def test_half_precision_has_only_its_rounding_error(numbers):
    maps = [numbers.random(2, 64, 24, 40, seed=seed, dtype=torch.float32).bfloat16() for seed in (0, 1)]
    centers = [draw_centers(numbers, 24, 40, 2.0, seed) for seed in (2, 3)]
    with torch.autocast("cuda", torch.bfloat16):
        actual = evaluate(KernelCorrelation, maps, centers, 4, 4)
    expected = evaluate(StoredCorrelation, [each.double().float() for each in maps], centers, 4, 4)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.bfloat16 and numbers.error(one, other) < 1e-2


@pytest.mark.usefixtures("requires_gpu")
def test_inference_in_half_precision_stores_float16_costs(numbers):
    maps = [30 * numbers.random(2, 192, 24, 40, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    maps = [each.bfloat16() for each in maps]
    centers = draw_centers(numbers, 24, 40, 2.0, 2)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        actual = KernelCorrelation(*maps, 1)
        windows = actual.windows(centers, 4)
    expected = StoredCorrelation(*(each.float() for each in maps), 1)
    assert actual.stored.costs.dtype == torch.float16 and windows.dtype == torch.bfloat16
    volume = expected.volumes[0]
    assert numbers.error(actual.stored.costs.view_as(volume), volume) < 5e-4  # bfloat16 gives 2e-3
    assert numbers.error(windows, expected.windows(centers, 4)) < 3e-3


@pytest.mark.usefixtures("requires_gpu")
def test_two_runs_are_bit_identical(numbers):
    maps = [numbers.random(2, 64, 24, 40, seed=seed, dtype=torch.float32).bfloat16() for seed in (0, 1)]
    centers = [draw_centers(numbers, 24, 40, 2.0, seed) for seed in (2, 3, 4)]
    with torch.autocast("cuda", torch.bfloat16):
        for one, other in zip(*(evaluate(KernelCorrelation, maps, centers, 4, 4) for _ in range(2)), strict=True):
            assert torch.equal(one, other)
