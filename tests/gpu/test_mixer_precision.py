"""On a GPU the fused mixer is as accurate as the reference, on small maps and on launches that fill the device."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from protoformer.models.kernels import dispatch

pytestmark = pytest.mark.usefixtures("requires_kernels", "requires_gpu")

small = pytest.mark.parametrize(("channels", "heads"), [(128, 4), (384, 12)])
large = pytest.mark.parametrize(
    ("images", "size", "channels", "count"),
    [(24, (80, 112), 128, 100), (24, (40, 56), 256, 100), (2, (270, 480), 128, 100), (8, (40, 56), 256, 200)],
)


@dataclass(frozen=True)
class Results:
    """Output (B x HW x C, float32), assignment (B x HW), and gradients of the tokens and all parameters with effect."""

    output: Tensor
    assignment: Tensor
    gradients: list[Tensor]


def run(
    module: nn.Module, tokens: Tensor, size: tuple[int, int], half: bool, version: str, mask: Tensor | None = None
) -> Results:
    """Run one of dispatch.VERSIONS; gradients are of the squared output, of all pixels or of those in `mask`."""
    tokens = tokens.detach().requires_grad_()
    with dispatch.use_version(version):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output, prototypes = module(tokens, size)
        squares = output.float().square()
        if mask is not None:
            squares = squares * mask[..., None]
        parameters = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
        gradients = torch.autograd.grad(squares.sum(), [tokens, *parameters])
    return Results(output.detach().float(), prototypes.assignment, list(gradients))


@small
def test_the_fused_mixer_in_single_precision_equals_the_reference(channels, heads, mixer, numbers):
    module, size = mixer(channels, heads), (33, 47)
    tokens = 4 * numbers.random(2, 33 * 47, channels, seed=0, dtype=torch.float32)
    fused, plain = (run(module, tokens, size, False, version) for version in dispatch.VERSIONS)
    for one, other in zip([fused.output, *fused.gradients], [plain.output, *plain.gradients], strict=True):
        assert numbers.error(one, other) < 1e-3  # tied pixels may be assigned to either of two prototypes


@small
def test_half_precision_is_as_accurate_as_in_the_reference(channels, heads, mixer, numbers):
    module, size = mixer(channels, heads), (33, 47)
    tokens = 4 * numbers.random(2, 33 * 47, channels, seed=0, dtype=torch.float32)
    exact = run(module, tokens, size, False, "fused")
    fused, plain = (run(module, tokens, size, True, version) for version in dispatch.VERSIONS)
    assert_as_accurate(fused, plain, exact, numbers)
    assert_same_but_for_ties(fused, plain, 2e-2, numbers)


@large
def test_a_training_batch_is_as_accurate_as_in_the_reference(images, size, channels, count, mixer, numbers):
    """Launches that fill the GPU many times over, unlike those of small maps."""
    module = mixer(channels, channels // 32, count)
    tokens = numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    fused = run(module, tokens, size, True, "fused")
    for _ in range(20):
        assert torch.equal(run(module, tokens, size, True, "fused").output, fused.output)
    exact, plain = (run(module, tokens, size, half, "plain") for half in (False, True))
    assert_as_accurate(fused, plain, exact, numbers)
    # On large maps the centers of the reference are less accurate in half precision.
    assert_same_but_for_ties(fused, exact, 1e-2, numbers)


@large
def test_a_training_batch_in_single_precision_equals_the_reference(images, size, channels, count, mixer, numbers):
    module = mixer(channels, channels // 32, count)
    tokens = numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    fused, plain = (run(module, tokens, size, False, version) for version in dispatch.VERSIONS)
    same = assert_same_but_for_ties(fused, plain, 1e-3, numbers)
    # Some of so many pixels tie, and one with another assignment outweighs all rounding errors.
    fused, plain = (run(module, tokens, size, False, version, same) for version in dispatch.VERSIONS)
    for one, other in zip(fused.gradients, plain.gradients, strict=True):
        assert numbers.error(one, other) < 1e-3


def assert_as_accurate(fused: Results, plain: Results, exact: Results, numbers) -> None:
    """Assert that errors are at most about those of the reference in the same precision."""
    results = ([each.output, *each.gradients] for each in (exact, fused, plain))
    for right, one, other in zip(*results, strict=True):
        assert numbers.error(one, right) < 1.5 * numbers.error(other, right) + 1e-2


def assert_same_but_for_ties(fused: Results, plain: Results, limit: float, numbers) -> Tensor:
    """Assert that nearly all pixels have the same assignment, and these the same output; return which they are."""
    same = fused.assignment == plain.assignment
    assert same.double().mean() > 0.99
    assert numbers.error(fused.output[same], plain.output[same]) < limit
    return same
