"""The kernels of the M-step and its gradient agree with sums, means and products of torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.kernels.reference import MIN_MASS

pytestmark = pytest.mark.usefixtures("requires_kernels")

PARTS = 9  # more than one load, and not a multiple of it
SHAPES = [
    # images, prototypes, heads, head dim: rows that do not fill a program, and padded channels
    (1, 7, 2, 16),
    (2, 10, 3, 16),
    pytest.param((3, 35, 2, 32), marks=pytest.mark.slow_interpreted),
    (1, 1, 1, 24),
    (1, 18, 8, 32),
]
settings = pytest.mark.parametrize(
    ("normalize", "residual"), [(True, True), (True, False), (False, True), (False, False)]
)


class GuardedOutputs:
    """Outputs of a kernel, each followed by values that must not change."""

    def __init__(self, device: str) -> None:
        self.device, self.guards = device, list[Tensor]()

    def allocate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        size = torch.Size(shape).numel()
        memory = torch.full((size + 4096,), 7.0, dtype=dtype, device=self.device)
        self.guards.append(memory[size:])
        return memory[:size].view(shape)

    def are_intact(self) -> bool:
        return all(bool((each == 7.0).all()) for each in self.guards)


@settings
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_iteration_ends_with_sums_means_and_their_projection(shape, normalize, residual, numbers):
    from protoformer.models.kernels import center_kernels

    batch, count, heads, width = shape
    channels, num_outputs = heads * width, 2 * heads * width
    sums = numbers.random(PARTS, *shape, seed=0, dtype=torch.float32)
    masses = numbers.random(PARTS, batch, count, heads, seed=1, dtype=torch.float32).abs()
    masses[:, 0, 0, 0] = MIN_MASS / (2 * PARTS)  # no members
    before = numbers.random(batch, count, channels, seed=2, dtype=torch.float32)
    weight = numbers.random(num_outputs, channels, seed=3, dtype=torch.float32)
    bias = numbers.random(num_outputs, seed=4, dtype=torch.float32)

    total, mass = sums.double().sum(dim=0), masses.double().sum(dim=0)
    centers = total
    if normalize:
        centers = torch.where(mass[..., None] > MIN_MASS, total / mass[..., None], 0.0)
    centers = centers.flatten(2) + (before if residual else 0.0)
    expected = [total.flatten(2), mass, centers, centers @ weight.double().T + bias]

    guarded = GuardedOutputs(numbers.device)
    like = (batch, count, channels)
    outputs = (guarded.allocate(*like), guarded.allocate(*like[:2], heads), guarded.allocate(*like))
    projected = guarded.allocate(batch, count, num_outputs)
    halves = (guarded.allocate(*like, dtype=torch.float16), guarded.allocate(*like, dtype=torch.float16))
    arguments = ((sums, masses), before, outputs, (weight, bias), projected)
    center_kernels.m_step(*arguments, halves, normalize, residual)
    assert max(map(numbers.error, (*outputs, projected), expected)) < 1e-5
    assert numbers.error(halves[0].double() + halves[1].double(), 64 * F.normalize(centers, dim=-1)) < 1e-5
    assert guarded.are_intact()

    with_halves = projected.clone()
    projected.zero_()
    center_kernels.m_step(*arguments, None, normalize, residual)
    assert torch.equal(projected, with_halves)


@settings
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_an_iteration_is_that_of_its_queries_and_centers(shape, normalize, residual, numbers):
    from protoformer.models.kernels import center_kernels

    batch, count, heads, width = shape
    rows, channels = batch * count, heads * width
    parts = numbers.random(PARTS, rows + batch, channels, seed=0, dtype=torch.float32)
    d_after = numbers.random(batch, count, channels, seed=1, dtype=torch.float32)
    masses = numbers.random(batch, count, heads, seed=2, dtype=torch.float32).abs()
    masses[0, 0, 0] = MIN_MASS / 2  # no members
    weight = numbers.random(channels, channels, seed=3, dtype=torch.float32)

    total = parts.double().sum(dim=0)
    d_queries = total[:rows].view(batch, count, channels)
    d_before = d_queries @ weight.double() + (d_after if residual else 0.0)
    members = (masses > MIN_MASS).double() if normalize else masses.double()
    d_values = (members[..., None] * d_after.double().unflatten(2, (heads, width))).flatten(2).sum(dim=(0, 1))

    guarded = GuardedOutputs(numbers.device)
    like, programs = (batch, count, channels), center_kernels.programs_of(d_after)
    outputs = (
        guarded.allocate(*like),
        guarded.allocate(*like),
        guarded.allocate(batch, channels),
        guarded.allocate(programs, channels),
    )
    center_kernels.centers_gradient(parts, d_after, masses, weight, outputs, normalize, residual)
    expected = (d_queries, d_before, total[rows:], d_values)
    assert max(map(numbers.error, (*outputs[:3], outputs[3].sum(dim=0)), expected)) < 1e-5
    assert guarded.are_intact()
