"""All of a mixer at once agrees with the plain one, in single and in half precision, however its weights lie."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch, mixing, operators

pytestmark = pytest.mark.usefixtures("kernels_run", "kernels_taken")

slow = pytest.mark.slow_interpreted
MIXERS = [
    # images, (H, W), prototypes, channels, heads, settings
    pytest.param((2, (9, 14), 10, 32, 2, {}), marks=slow),
    pytest.param((1, (10, 20), 100, 64, 2, {"iterations": 1}), marks=slow),
    (2, (7, 5), 12, 48, 2, {"normalize": False, "iterations": 2}),
    (1, (3, 4), 35, 32, 1, {"residual": False, "iterations": 2}),
    (1, (8, 9), 20, 96, 3, {"iterations": 2}),
]
HALF_MIXERS = [
    # the same; synchronization takes heads together
    (2, (9, 14), 10, 32, 2, {}),
    pytest.param((1, (8, 11), 20, 128, 4, {"iterations": 2}), marks=slow),
    (1, (7, 9), 12, 64, 1, {"residual": False, "iterations": 2}),
    pytest.param((1, (6, 9), 10, 256, 8, {"iterations": 2}), marks=slow),
    # one after the other: they or the channels are padded
    (2, (7, 5), 12, 48, 2, {"normalize": False, "iterations": 2}),
    pytest.param((1, (8, 9), 20, 96, 3, {"iterations": 2}), marks=slow),
    (1, (6, 9), 10, 64, 8, {"iterations": 1}),
    (1, (6, 9), 10, 192, 6, {"iterations": 2}),
]
WITHOUT_A_SAY = "prototyping.query.bias"
"""A softmax does not change when all its logits do."""


@pytest.mark.parametrize("case", MIXERS, ids=str)
def test_a_mixer_at_once_is_the_plain_one(case, mixer, numbers):
    images, size, count, channels, heads, settings = case
    module = mixer(channels, heads, count, **settings)
    for each in module.parameters():
        torch.nn.init.normal_(each, std=0.2)
    tokens = 2 * numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    tokens.requires_grad_()
    learned = dict(module.named_parameters())

    def found() -> list[Tensor]:
        output, prototypes = module(tokens, size)
        weighted = output.square().sum() + prototypes.centers.sin().sum()
        gradients = torch.autograd.grad(weighted, [tokens, *learned.values()])
        seen = (prototypes.assignment, prototypes.memberships, output, prototypes.centers)
        return [*(each.detach() for each in seen), *gradients]

    ours = found()
    with dispatch.use_version("plain"):
        theirs = found()
    assert torch.equal(ours[0], theirs[0])
    names = ("memberships", "output", "centers", "tokens", *learned)
    errors = {name: numbers.error(mine, other) for name, mine, other in zip(names, ours[1:], theirs[1:], strict=True)}
    errors.pop(WITHOUT_A_SAY)
    assert max(errors.values()) < 2e-4, errors


def gradients_of(
    module: Mixer, tokens: Tensor, found: Sequence[Tensor], arrives: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Of the tokens and of all that was learned, for the gradients that arrive at what was found."""
    learned = {name: each for name, each in module.named_parameters() if name != WITHOUT_A_SAY}
    gradients = torch.autograd.grad(
        list(found), [tokens, *learned.values()], [each.to(one.dtype) for each, one in zip(arrives, found, strict=True)]
    )
    return dict(zip(("tokens", *learned), gradients, strict=True))


@pytest.mark.parametrize("case", HALF_MIXERS, ids=str)
def test_a_mixer_in_half_precision_is_the_exact_one_wherever_pixels_go_to_the_same_prototypes(case, mixer, numbers):
    images, size, count, channels, heads, settings = case
    module = mixer(channels, heads, count, **settings)
    for name, each in module.named_parameters():  # so that each shows: a wrong one would be seen in the output
        if each.dim() == 1:
            torch.nn.init.normal_(each, std=2.0 if name.endswith("alpha") else 0.5)
    module.prototyping.query.weight.data *= 3  # prototypes that are all alike leave the keys little to learn
    exact = copy.deepcopy(module).double()
    tokens = 2 * numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    right_tokens = tokens.double().requires_grad_()
    tokens.requires_grad_()

    with torch.autocast(numbers.device, torch.float16):
        output, prototypes = module(tokens, size)
    with dispatch.use_version("plain"):
        right, expected = exact(right_tokens, size)
    assert output.dtype == torch.float16
    same = prototypes.assignment == expected.assignment
    assert same.double().mean() > 0.97
    assert numbers.error(output[same], right[same]) < 1e-2
    assert numbers.error(prototypes.centers, expected.centers) < 1e-2

    # Nothing arrives at pixels that went elsewhere: a gradient would go there, too.
    to_output, to_centers = numbers.arriving((right, expected.centers), 1.0)
    arrives = (torch.where(same[..., None], to_output, 0.0).half().double(), to_centers)
    ours = gradients_of(module, tokens, (output, prototypes.centers), arrives)
    theirs = gradients_of(exact, right_tokens, (right, expected.centers), arrives)
    errors = {name: numbers.error(ours[name], theirs[name]) for name in theirs}
    assert max(errors.values()) < 1e-2, errors


@pytest.mark.parametrize("iterations", [1, 2, pytest.param(3, marks=slow)])
def test_a_mixer_that_keeps_nothing_finds_the_same(iterations, mixer, numbers):
    module = mixer(32, 2, 10, num_iterations=iterations)
    tokens = numbers.random(2, 9 * 14, 32, seed=0, dtype=torch.float32)
    kept, prototypes = module(tokens, (9, 14))
    with torch.no_grad():
        output, none = module(tokens, (9, 14), asked=False)
        looked_at, same = module(tokens, (9, 14))
    assert none is None
    torch.testing.assert_close((output, looked_at), (kept.detach(), kept.detach()))
    torch.testing.assert_close(same.memberships, prototypes.memberships)


@pytest.fixture
def weights(numbers):
    """Makes those of a mixer of so many channels and heads."""

    def made(channels: int, heads: int) -> mixing.Weights:
        wide, double = 3 * channels, 2 * channels
        shapes = [(wide, channels), (wide,), (channels,) * 2, (channels,), (double, channels), (double,), (heads,)]
        found = [numbers.random(*each, seed=seed, dtype=torch.float32) for seed, each in enumerate([*shapes, (heads,)])]
        return mixing.Weights(*(each / channels**0.5 for each in found))

    return made


@pytest.mark.parametrize(("channels", "heads"), [(32, 2), (48, 2)])
def test_weights_of_a_mixer_may_lie_turned(channels, heads, dtype, weights, numbers):
    def found(given: Sequence[Tensor]) -> list[Tensor]:
        given = [each.detach().requires_grad_() for each in given]
        attended, centers, assignment, *_ = mixing.mix(*given, [5, 6], [2, 3], 2, True, True, dtype, True)
        arrives = numbers.arriving((attended, centers), 1.0)
        learned = torch.autograd.grad((attended, centers), given, [arrives[0].to(dtype), arrives[1].float()])
        return [attended.detach(), centers.detach(), assignment, *learned]

    tokens = numbers.random(1, 30, channels, seed=9, dtype=torch.float32)
    straight = weights(channels, heads)
    turned = [numbers.turned(each) for each in straight]
    assert not any(each.is_contiguous() for each in turned)
    for one, other in zip(found([tokens, *turned]), found([tokens, *straight]), strict=True):
        assert numbers.error(one, other) < numbers.tolerance[dtype]  # libraries may add up in another order


def test_torch_finds_nothing_wrong_with_the_operator_of_a_mixer(numbers):
    inputs = [numbers.random(1, 30, 32, seed=0, dtype=torch.float32)]
    shapes = [(96, 32), (96,), (32, 32), (32,), (64, 32), (64,), (2,), (2,)]
    inputs += [numbers.random(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    rest = ([5, 6], [2, 3], 2, True, True, torch.float16, True)
    torch.library.opcheck(mixing.mix, (*(each.requires_grad_() for each in inputs), *rest))
    shapes = [(70, 32), (64, 32), (64,), (32, 64), (32,)]
    inputs = [numbers.random(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    inputs[0] = inputs[0].half()
    torch.library.opcheck(operators.mlp, tuple(each.requires_grad_() for each in inputs))
