"""The kernels that end a step of prototyping, and its gradient, agree with sums, means and products of torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.kernels.reference import MIN_MASS

pytestmark = pytest.mark.usefixtures("kernels_run")

PARTS = 9  # more than are read together, and not a multiple of that
SHAPES = [
    # images, prototypes, heads, head width: rows that do not fill programs of 16, and channels that are padded
    (1, 7, 2, 16),
    (2, 10, 3, 16),
    pytest.param((3, 35, 2, 32), marks=pytest.mark.slow_interpreted),
    (1, 1, 1, 24),
    (1, 18, 8, 32),
]
settings = pytest.mark.parametrize(
    ("normalize", "residual"), [(True, True), (True, False), (False, True), (False, False)]
)


class Fenced:
    """Room for a kernel's results, with numbers behind each that have to stay as they are."""

    def __init__(self, device: str) -> None:
        self.device, self.fences = device, list[Tensor]()

    def room(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        wanted = torch.Size(shape).numel()
        memory = torch.full((wanted + 4096,), 7.0, dtype=dtype, device=self.device)
        self.fences.append(memory[wanted:])
        return memory[:wanted].view(shape)

    def stand(self) -> bool:
        return all(bool((each == 7.0).all()) for each in self.fences)


@settings
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_ends_with_its_sums_means_and_what_they_are_projected_to(shape, normalize, residual, numbers):
    from protoformer.models.kernels import center_kernels as center_kernels

    batch, count, heads, width = shape
    channels, outputs = heads * width, 2 * heads * width
    sums = numbers.random(PARTS, *shape, seed=0, dtype=torch.float32)
    masses = numbers.random(PARTS, batch, count, heads, seed=1, dtype=torch.float32).abs()
    masses[:, 0, 0, 0] = MIN_MASS / (2 * PARTS)  # has no members
    before = numbers.random(batch, count, channels, seed=2, dtype=torch.float32)
    weight = numbers.random(outputs, channels, seed=3, dtype=torch.float32)
    bias = numbers.random(outputs, seed=4, dtype=torch.float32)

    whole, mass = sums.double().sum(dim=0), masses.double().sum(dim=0)
    centers = whole
    if normalize:
        centers = torch.where(mass[..., None] > MIN_MASS, whole / mass[..., None], 0.0)
    centers = centers.flatten(2) + (before if residual else 0.0)
    expected = [whole.flatten(2), mass, centers, centers @ weight.double().T + bias]

    fenced = Fenced(numbers.device)
    like = (batch, count, channels)
    found = (fenced.room(*like), fenced.room(*like[:2], heads), fenced.room(*like))
    projected = fenced.room(batch, count, outputs)
    halves = (fenced.room(*like, dtype=torch.float16), fenced.room(*like, dtype=torch.float16))
    given = ((sums, masses), before, found, (weight, bias), projected)
    center_kernels.finish(*given, halves, normalize, residual)
    assert max(map(numbers.error, (*found, projected), expected)) < 1e-5
    assert numbers.error(halves[0].double() + halves[1].double(), 64 * F.normalize(centers, dim=-1)) < 1e-5
    assert fenced.stand()

    with_halves = projected.clone()
    projected.zero_()
    center_kernels.finish(*given, None, normalize, residual)
    assert torch.equal(projected, with_halves)


@settings
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_a_step_is_that_of_its_queries_and_passes_to_the_centers(shape, normalize, residual, numbers):
    from protoformer.models.kernels import center_kernels as center_kernels

    batch, count, heads, width = shape
    rows, channels = batch * count, heads * width
    parts = numbers.random(PARTS, rows + batch, channels, seed=0, dtype=torch.float32)
    d_after = numbers.random(batch, count, channels, seed=1, dtype=torch.float32)
    masses = numbers.random(batch, count, heads, seed=2, dtype=torch.float32).abs()
    masses[0, 0, 0] = MIN_MASS / 2  # has no members
    weight = numbers.random(channels, channels, seed=3, dtype=torch.float32)

    whole = parts.double().sum(dim=0)
    d_queries = whole[:rows].view(batch, count, channels)
    d_before = d_queries @ weight.double() + (d_after if residual else 0.0)
    members = (masses > MIN_MASS).double() if normalize else masses.double()
    d_values = (members[..., None] * d_after.double().unflatten(2, (heads, width))).flatten(2).sum(dim=(0, 1))

    fenced = Fenced(numbers.device)
    like, programs = (batch, count, channels), center_kernels.programs_of(d_after)
    found = (
        fenced.room(*like),
        fenced.room(*like),
        fenced.room(batch, channels),
        fenced.room(programs, channels),
    )
    center_kernels.centers_gradient(parts, d_after, masses, weight, found, normalize, residual)
    expected = (d_queries, d_before, whole[rows:], d_values)
    assert max(map(numbers.error, (*found[:3], found[3].sum(dim=0)), expected)) < 1e-5
    assert fenced.stand()
