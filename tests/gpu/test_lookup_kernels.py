"""Costs read by kernels are those of the stored volume, in their gradients too."""

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid
from protoformer.models.heads.correlation import KernelCorrelation, KernelOnDemandCorrelation, StoredCorrelation
from protoformer.models.heads.flow import CorrelationCosts
from protoformer.training.step import recompute_activations

pytestmark = pytest.mark.usefixtures("kernels_run")

slow = pytest.mark.slow_interpreted
SIZES = [
    (3, 5, 4, 4),
    (5, 3, 2, 1),
    *(pytest.param(*each, marks=slow) for each in [(9, 11, 2, 3), (8, 13, 4, 4), (8, 8, 4, 2), (5, 23, 1, 1)]),
]
"""Height, width, levels, radius."""


def estimates(numbers, height: int, width: int, spread: float, seed: int) -> Tensor:
    wander = numbers.random(2, 2, height, width, seed=seed, dtype=torch.float32)
    return pixel_grid(height, width, wander.device) + spread * wander


def learned(kind, maps: list[Tensor], centers: list[Tensor], levels: int, radius: int) -> list[Tensor]:
    """Windows around several estimates, as updates read them, and the gradients of both maps."""
    source, target = (each.clone().requires_grad_() for each in maps)
    correlation = kind(source, target, levels)
    found = [correlation.windows(each, radius) for each in centers]
    loss = sum(((number + 1) * each.float()).square().sum() for number, each in enumerate(found))
    return [*(each.detach() for each in found), *torch.autograd.grad(loss, (source, target))]


@pytest.mark.parametrize(("height", "width", "levels", "radius"), SIZES)
@pytest.mark.parametrize("spread", [0.0, 1.5, 40.0])
def test_windows_and_gradients_are_those_of_the_stored_volume(height, width, levels, radius, spread, numbers):
    maps = [numbers.random(2, 24, height, width, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    centers = [estimates(numbers, height, width, spread, seed) for seed in (2, 3, 4)]
    ours, right = (learned(kind, maps, centers, levels, radius) for kind in (KernelCorrelation, StoredCorrelation))
    for mine, expected in zip(ours, right, strict=True):
        assert mine.shape == expected.shape and numbers.error(mine, expected) < 1e-5


@pytest.mark.parametrize(("height", "width", "levels", "radius"), SIZES)
@pytest.mark.parametrize("spread", [0.0, 40.0])
def test_costs_computed_on_demand_are_those_of_the_stored_volume(height, width, levels, radius, spread, dtype, numbers):
    maps = [numbers.random(2, 40, height, width, seed=seed, dtype=dtype) for seed in (0, 1)]
    centers = estimates(numbers, height, width, spread, 2)
    ours = KernelOnDemandCorrelation(*maps, levels).windows(centers, radius)
    right = StoredCorrelation(*(each.float() for each in maps), levels).windows(centers, radius)
    assert ours.shape == right.shape and numbers.error(ours, right) < numbers.tolerance[dtype]


@pytest.mark.parametrize("kind", [KernelCorrelation, KernelOnDemandCorrelation])
def test_estimates_that_are_lost_read_nothing(kind, numbers):
    maps = [numbers.random(2, 8, 8, 9, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    centers = estimates(numbers, 8, 9, 0.0, 0)
    centers[0, 0], centers[1, 1] = 1e30, -1e30
    assert not kind(*maps, 2).windows(centers, 3).any()


def test_nothing_read_is_no_gradient(numbers):
    source, target = (numbers.random(1, 8, 8, 9, seed=seed, dtype=torch.float32).requires_grad_() for seed in (0, 1))
    correlation = KernelCorrelation(source, target, 2)
    for gradient in torch.autograd.grad(correlation.ticket, (source, target)):
        assert not gradient.any()


@slow
def test_windows_that_are_computed_a_second_time_give_the_same_gradient(numbers, monkeypatch):
    monkeypatch.setattr("protoformer.models.heads.flow.use_kernels", lambda *_: True)
    centers = estimates(numbers, 8, 9, 1.0, 2)
    gradients = []
    for again in (False, True):
        costs = CorrelationCosts(2, 3)
        if again:
            recompute_activations(costs)
        maps = [numbers.random(2, 8, 8, 9, seed=seed, dtype=torch.float32).requires_grad_() for seed in (0, 1)]
        read = costs.prepare(*maps, maps[0], False)
        loss = read(centers).square().sum() + read(centers + 1).square().sum()
        gradients.append(torch.autograd.grad(loss, maps))
    for once, twice in zip(*gradients, strict=True):
        assert torch.equal(once, twice)


@pytest.mark.usefixtures("on_gpu")
def test_half_precision_loses_no_more_than_its_own_rounding(numbers):
    maps = [numbers.random(2, 64, 24, 40, seed=seed, dtype=torch.float32).bfloat16() for seed in (0, 1)]
    centers = [estimates(numbers, 24, 40, 2.0, seed) for seed in (2, 3)]
    with torch.autocast("cuda", torch.bfloat16):
        ours = learned(KernelCorrelation, maps, centers, 4, 4)
    right = learned(StoredCorrelation, [each.double().float() for each in maps], centers, 4, 4)
    for mine, expected in zip(ours, right, strict=True):
        assert mine.dtype == torch.bfloat16 and numbers.error(mine, expected) < 1e-2


@pytest.mark.usefixtures("on_gpu")
def test_in_use_half_precision_keeps_half_of_the_bytes(numbers):
    maps = [30 * numbers.random(2, 192, 24, 40, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    maps = [each.bfloat16() for each in maps]
    centers = estimates(numbers, 24, 40, 2.0, 2)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        ours = KernelCorrelation(*maps, 1)
        found = ours.windows(centers, 4)
    right = StoredCorrelation(*(each.float() for each in maps), 1)
    assert ours.kept.costs.dtype == torch.float16 and found.dtype == torch.bfloat16
    assert numbers.error(ours.kept.costs.view_as(right.volumes[0]), right.volumes[0]) < 5e-4  # bfloat16 gives 2e-3
    assert numbers.error(found, right.windows(centers, 4)) < 3e-3


@pytest.mark.usefixtures("on_gpu")
def test_two_runs_agree_bit_by_bit(numbers):
    maps = [numbers.random(2, 64, 24, 40, seed=seed, dtype=torch.float32).bfloat16() for seed in (0, 1)]
    centers = [estimates(numbers, 24, 40, 2.0, seed) for seed in (2, 3, 4)]
    with torch.autocast("cuda", torch.bfloat16):
        for one, other in zip(*(learned(KernelCorrelation, maps, centers, 4, 4) for _ in range(2)), strict=True):
            assert torch.equal(one, other)
