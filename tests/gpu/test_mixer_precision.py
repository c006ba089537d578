"""On a GPU a mixer strays no further than the plain one, on small maps and on launches that fill the device."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from protoformer.models.kernels import dispatch

pytestmark = pytest.mark.usefixtures("kernels_run", "on_gpu")

small = pytest.mark.parametrize(("channels", "heads"), [(128, 4), (384, 12)])
large = pytest.mark.parametrize(
    ("images", "size", "channels", "count"),
    [(24, (80, 112), 128, 100), (24, (40, 56), 256, 100), (2, (270, 480), 128, 100), (8, (40, 56), 256, 200)],
)


@dataclass(frozen=True)
class Found:
    """output: B x HW x C, float32. assignment: B x HW. gradients: of the tokens and of all parameters with a say."""

    output: Tensor
    assignment: Tensor
    gradients: list[Tensor]


def run(
    module: nn.Module, tokens: Tensor, size: tuple[int, int], half: bool, version: str, counted: Tensor | None = None
) -> Found:
    """What this one of dispatch.VERSIONS finds, with gradients of the squares of all pixels, or of those `counted`."""
    tokens = tokens.detach().requires_grad_()
    with dispatch.use_version(version):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output, prototypes = module(tokens, size)
        squares = output.float().square()
        if counted is not None:
            squares = squares * counted[..., None]
        learned = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
        gradients = torch.autograd.grad(squares.sum(), [tokens, *learned])
    return Found(output.detach().float(), prototypes.assignment, list(gradients))


@small
def test_a_mixer_in_single_precision_is_the_plain_one(channels, heads, mixer, numbers):
    module, size = mixer(channels, heads), (33, 47)
    tokens = 4 * numbers.random(2, 33 * 47, channels, seed=0, dtype=torch.float32)
    ours, theirs = (run(module, tokens, size, False, version) for version in dispatch.VERSIONS)
    for mine, other in zip([ours.output, *ours.gradients], [theirs.output, *theirs.gradients], strict=True):
        assert numbers.error(mine, other) < 1e-3  # pixels that tie may go to either of two prototypes


@small
def test_half_precision_strays_no_further_than_in_the_plain_version(channels, heads, mixer, numbers):
    module, size = mixer(channels, heads), (33, 47)
    tokens = 4 * numbers.random(2, 33 * 47, channels, seed=0, dtype=torch.float32)
    exact = run(module, tokens, size, False, "fused")
    ours, theirs = (run(module, tokens, size, True, version) for version in dispatch.VERSIONS)
    assert_strays_no_further(ours, theirs, exact, numbers)
    assert_same_but_for_ties(ours, theirs, 2e-2, numbers)


@large
def test_a_mixer_of_the_size_of_a_training_batch_strays_no_further_than_the_plain_one(
    images, size, channels, count, mixer, numbers
):
    """Launches that fill the GPU, many times over: what a small map does not show."""
    module = mixer(channels, channels // 32, count)
    tokens = numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    ours = run(module, tokens, size, True, "fused")
    for _ in range(20):
        assert torch.equal(run(module, tokens, size, True, "fused").output, ours.output)
    exact, theirs = (run(module, tokens, size, half, "plain") for half in (False, True))
    assert_strays_no_further(ours, theirs, exact, numbers)
    # On large maps the plain centers lose more to half precision than ours do.
    assert_same_but_for_ties(ours, exact, 1e-2, numbers)


@large
def test_a_mixer_of_the_size_of_a_training_batch_in_single_precision_is_the_plain_one(
    images, size, channels, count, mixer, numbers
):
    module = mixer(channels, channels // 32, count)
    tokens = numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    ours, theirs = (run(module, tokens, size, False, version) for version in dispatch.VERSIONS)
    same = assert_same_but_for_ties(ours, theirs, 1e-3, numbers)
    # Of so many pixels some tie, and one that goes elsewhere weighs more than all errors of rounding.
    ours, theirs = (run(module, tokens, size, False, version, same) for version in dispatch.VERSIONS)
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        assert numbers.error(mine, other) < 1e-3


def assert_strays_no_further(ours: Found, theirs: Found, exact: Found, numbers) -> None:
    """Than the plain version in the same precision does, with some room."""
    results = ([each.output, *each.gradients] for each in (exact, ours, theirs))
    for right, mine, other in zip(*results, strict=True):
        assert numbers.error(mine, right) < 1.5 * numbers.error(other, right) + 1e-2


def assert_same_but_for_ties(ours: Found, theirs: Found, most: float, numbers) -> Tensor:
    """Nearly all pixels go to the same prototypes, and those have the same outputs; returns which they are."""
    same = ours.assignment == theirs.assignment
    assert same.double().mean() > 0.99
    assert numbers.error(ours.output[same], theirs.output[same]) < most
    return same
