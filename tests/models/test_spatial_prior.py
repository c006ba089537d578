"""The spatial prior: positions of prototypes in the E-step, in the M-step and in the assignment."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid
from protoformer.models.config import EncoderConfig, ModelConfig, preset
from protoformer.models.encoder import Encoder, Mixer
from protoformer.models.kernels import blocked, dispatch, fused, operators
from protoformer.models.kernels import reference as plain
from protoformer.models.prototyping import E_STEPS, Prototypes, Prototyping
from protoformer.models.synchronization import LatentSynchronization

SIZE, GRID, CHANNELS, HEADS = (9, 14), (2, 5), 32, 2


def mixer(spatial_prior: bool = True, **settings: object) -> Mixer:
    torch.manual_seed(0)
    prototyping = Prototyping(CHANNELS, HEADS, GRID[0] * GRID[1], spatial_prior=spatial_prior, **settings)  # type: ignore[arg-type]
    return Mixer(prototyping, LatentSynchronization(CHANNELS, HEADS))


def tokens_of(dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.randn(2, SIZE[0] * SIZE[1], CHANNELS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return drawn.to(dtype)


def reference_em(module: Mixer, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return centers, positions in cells from the corner of the map, and the assignment, image by image."""
    cap, (height, width), (rows, columns) = module.prototyping, SIZE, GRID
    pixels = in_cells(pixel_grid(height, width).flatten(1).T.double())
    squared_width, temperature = cap.log_width.exp() ** 2, cap.log_temperature.exp()
    results = []
    for features in tokens:
        centers = cap.pool(features[None], SIZE)[0]
        positions = torch.tensor([[c + 0.5, r + 0.5] for r in range(rows) for c in range(columns)]).double()
        for _ in range(cap.num_iterations):
            distances = (positions[:, None] - pixels).square().sum(dim=-1)
            query, key, value = cap.query(centers), cap.key(features), cap.value(features)
            parts = zip(*(each.chunk(HEADS, dim=1) for each in (query, key, value)), strict=True)
            shares = [(q @ k.T / math.sqrt(16) - distances / (2 * squared_width)).softmax(dim=0) for q, k, _ in parts]
            means = [s @ v / s.sum(dim=1)[:, None] for s, v in zip(shares, value.chunk(HEADS, dim=1), strict=True)]
            centers, total = centers + torch.cat(means, dim=1), sum(shares)
            positions = total @ pixels / total.sum(dim=1)[:, None]
        cosines = torch.nn.functional.normalize(features, dim=1) @ torch.nn.functional.normalize(centers, dim=1).T
        distances = (pixels[:, None] - positions).square().sum(dim=-1)
        results.append((centers, positions, (cosines / temperature - distances / (2 * squared_width)).argmax(dim=1)))
    centers, positions, assignment = (torch.stack(each) for each in zip(*results, strict=True))
    return centers, positions, assignment


def in_cells(positions: Tensor) -> Tensor:
    """Convert positions in pixels to cells from the corner of the map."""
    return (positions + 0.5) * positions.new_tensor([GRID[1] / SIZE[1], GRID[0] / SIZE[0]])


@pytest.mark.parametrize("version", dispatch.VERSIONS)
def test_prior_and_its_gradients_equal_a_reference(version):
    """Of plain and blocked versions; those of the Triton kernels are in tests/gpu."""
    module, tokens = mixer().double(), tokens_of().requires_grad_()
    parameters = [each for name, each in module.prototyping.named_parameters() if name != "query.bias"]

    def gradients(centers: Tensor, positions: Tensor) -> list[Tensor]:
        weighted = centers.sin().sum() + (3 * positions).sin().sum()
        return list(torch.autograd.grad(weighted, [tokens, *parameters], allow_unused=True))

    centers, positions, assignment = reference_em(module, tokens)
    with dispatch.use_version(version):
        _, prototypes = module(tokens, SIZE)
        assert torch.equal(prototypes.assignment, assignment)
        torch.testing.assert_close((prototypes.centers, in_cells(prototypes.positions)), (centers, positions))
        actual = gradients(prototypes.centers, in_cells(prototypes.positions))
    for one, other in zip(actual, gradients(centers, positions), strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_blocks_equal_the_reference_without_gradients(monkeypatch):
    module, tokens = mixer(), tokens_of(torch.float32)
    expected, prototypes = module(tokens, SIZE)
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 400)  # several blocks
    with torch.no_grad():
        output, same = module(tokens, SIZE)
    assert torch.equal(same.assignment, prototypes.assignment)
    torch.testing.assert_close((output, same.positions), (expected, prototypes.positions), atol=1e-5, rtol=1e-5)


def test_gradients_of_sums_equal_finite_differences(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 30)
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 3, 4), (2, 2, 7, 4), (2, 2, 7, 4), (2, 3, 3)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    pixels = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(operators.spatial_sums, (*inputs, pixels))
    torch.library.opcheck(operators.spatial_sums, (*inputs, pixels))
    compute: Callable[..., tuple[Tensor, ...]]
    for compute in (fused.spatial_sums, plain.spatial_sums):
        outputs = compute(*inputs[:3], plain.PriorCoefficients(inputs[3], pixels))
        torch.testing.assert_close(outputs, plain.spatial_sums(*inputs[:3], plain.PriorCoefficients(inputs[3], pixels)))


@pytest.mark.parametrize("update", E_STEPS)
@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_positions_stay_inside_the_image(update, iterations):
    module = mixer(update=update, num_iterations=iterations)
    for parameter in module.prototyping.parameters():
        torch.nn.init.normal_(parameter)
    _, prototypes = module(10 * tokens_of(torch.float32), SIZE)
    x, y = prototypes.positions.unbind(dim=-1)
    assert x.min() >= -1e-4 and x.max() <= SIZE[1] - 1 + 1e-4 and y.min() >= -1e-4 and y.max() <= SIZE[0] - 1 + 1e-4


@pytest.mark.parametrize("update", E_STEPS)
def test_a_very_wide_prior_changes_nothing(update):
    module, tokens = mixer(update=update).double(), tokens_of()
    without = mixer(spatial_prior=False, update=update).double()
    without.load_state_dict({name: each for name, each in module.state_dict().items() if ".log_" not in name})
    torch.nn.init.constant_(module.prototyping.log_width, 20.0)
    (output, prototypes), (expected, others) = module(tokens, SIZE), without(tokens, SIZE)
    assert torch.equal(prototypes.assignment, others.assignment)
    torch.testing.assert_close((output, prototypes.memberships), (expected, others.memberships))


def test_a_narrow_prior_assigns_every_pixel_to_its_cell():
    module = mixer(num_iterations=0)
    torch.nn.init.constant_(module.prototyping.log_width, -8.0)
    _, prototypes = module(tokens_of(torch.float32)[:, : 8 * 10], (8, 10))
    cells = torch.arange(10).view(2, 5).repeat_interleave(4, dim=0).repeat_interleave(2, dim=1)
    assert torch.equal(prototypes.assignment[0].view(8, 10), cells)
    torch.testing.assert_close(prototypes.positions[0, 0], torch.tensor([0.5, 1.5]))


def test_positions_follow_the_members():
    """Two flat parts: each prototype moves from the middle of its cell to the middle of its part."""
    module = Prototyping(4, 1, 2, num_iterations=3, residual=False, spatial_prior=True)
    for projection in (module.query, module.key, module.value):
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    torch.nn.init.constant_(module.log_width, 3.0)
    maps = torch.zeros(1, 4, 20, 4)
    maps[:, :, :6, 0], maps[:, :, 6:, 1] = 1.0, 1.0
    prototypes = module(30 * maps.flatten(1, 2), (4, 20))
    assert prototypes.positions is not None
    torch.testing.assert_close(prototypes.positions[0], torch.tensor([[2.5, 1.5], [12.5, 1.5]]))


def test_the_soft_assignment_has_its_maximum_at_the_assignment_and_reaches_every_parameter():
    module, tokens = mixer(), tokens_of(torch.float32).requires_grad_()
    _, prototypes = module(tokens, SIZE)
    soft = prototypes.soft_assignment()
    assert torch.equal(soft.argmax(dim=1), prototypes.assignment)
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(2, SIZE[0] * SIZE[1]))
    soft.square().mean().backward()
    assert tokens.grad is not None and tokens.grad.abs().max() > 0
    silent = [name for name, each in module.prototyping.named_parameters() if not each.grad.abs().max() > 0]
    assert silent == []
    with pytest.raises(ValueError, match="features"):
        Prototypes(prototypes.centers, prototypes.memberships, SIZE).soft_assignment()
    mixer_without = mixer(spatial_prior=False)
    _, plain_prototypes = mixer_without(tokens, SIZE)
    assert torch.equal(plain_prototypes.soft_assignment().argmax(dim=1), plain_prototypes.assignment)


def test_parts_of_a_batch_and_copies_keep_the_prior():
    _, prototypes = mixer()(tokens_of(torch.float32), SIZE)
    part = prototypes.first(1).cpu()
    torch.testing.assert_close(
        (part.positions, part.memberships), (prototypes.positions[:1], prototypes.memberships[:1])
    )


def test_half_precision_keeps_positions_in_single_precision():
    module, tokens = mixer(), tokens_of(torch.float32)
    _, exact = module(tokens, SIZE)
    for version in dispatch.VERSIONS:
        with torch.autocast("cpu", torch.bfloat16), dispatch.use_version(version):
            _, prototypes = module(tokens, SIZE)
        assert prototypes.positions.dtype == torch.float32
        assert (prototypes.positions - exact.positions).abs().max() < 0.05


def test_a_configuration_without_the_field_has_no_prior():
    sections = ModelConfig().as_dict()
    del sections["encoder"]["spatial_prior"]
    assert not ModelConfig.from_dict(sections).encoder.spatial_prior
    assert not EncoderConfig().spatial_prior and not preset("paper").encoder.spatial_prior
    assert preset("fast").encoder.spatial_prior and preset("tiny").encoder.spatial_prior
    names = dict(Encoder(EncoderConfig(embed_dims=(32, 32))).named_parameters())
    assert not [name for name in names if "log_" in name]


def test_an_exported_mixer_has_the_same_results():
    class FixedSize(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixer = copy.deepcopy(mixer()).eval()

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.mixer(tokens, SIZE, return_prototypes=False)[0]
            return output

    module, tokens = FixedSize(), tokens_of(torch.float32)
    exported = torch.export.export(module, (tokens,))
    torch.testing.assert_close(exported.module()(tokens), module(tokens), atol=1e-5, rtol=0)
