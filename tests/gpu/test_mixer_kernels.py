"""The fused mixer agrees with the reference, in single and half precision, for any memory layout of its weights."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch, mixing, operators

pytestmark = pytest.mark.usefixtures("requires_kernels", "force_kernels")

slow = pytest.mark.slow_interpreted
MIXERS = [
    # images, (H, W), prototypes, channels, heads, settings
    pytest.param((2, (9, 14), 10, 32, 2, {}), marks=slow),
    pytest.param((1, (10, 20), 100, 64, 2, {"num_iterations": 1}), marks=slow),
    (2, (7, 5), 12, 48, 2, {"normalize": False, "num_iterations": 2}),
    (1, (3, 4), 35, 32, 1, {"residual": False, "num_iterations": 2}),
    (1, (8, 9), 20, 96, 3, {"num_iterations": 2}),
    (2, (7, 5), 12, 32, 2, {"spatial_prior": True, "num_iterations": 2}),
    pytest.param((2, (9, 14), 10, 48, 3, {"spatial_prior": True, "normalize": False, "residual": False}), marks=slow),
]
HALF_MIXERS = [
    # as above; heads are processed together in synchronization
    (2, (9, 14), 10, 32, 2, {}),
    pytest.param((1, (8, 11), 20, 128, 4, {"num_iterations": 2}), marks=slow),
    (1, (7, 9), 12, 64, 1, {"residual": False, "num_iterations": 2}),
    pytest.param((1, (6, 9), 10, 256, 8, {"num_iterations": 2}), marks=slow),
    # one head after the other, as heads or channels are padded
    (2, (7, 5), 12, 48, 2, {"normalize": False, "num_iterations": 2}),
    pytest.param((1, (8, 9), 20, 96, 3, {"num_iterations": 2}), marks=slow),
    (1, (6, 9), 10, 64, 8, {"num_iterations": 1}),
    (1, (6, 9), 10, 192, 6, {"num_iterations": 2}),
    (2, (7, 9), 10, 32, 2, {"spatial_prior": True, "num_iterations": 2}),
    (1, (6, 9), 12, 48, 2, {"spatial_prior": True, "num_iterations": 2, "residual": False}),
]
WITHOUT_EFFECT = "prototyping.query.bias"
"""Adding a constant to all logits does not change a softmax."""


@pytest.mark.parametrize("case", MIXERS, ids=str)
def test_the_fused_mixer_equals_the_reference(case, mixer, numbers):
    images, size, count, channels, heads, settings = case
    module = mixer(channels, heads, count, **settings)
    for each in module.parameters():
        torch.nn.init.normal_(each, std=0.2)
    tokens = 2 * numbers.random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    parameters = dict(module.named_parameters())

    def compute(module: Mixer, tokens: Tensor) -> list[Tensor]:
        tokens = tokens.clone().requires_grad_()
        output, prototypes = module(tokens, size)
        weighted = output.square().sum() + prototypes.centers.sin().sum()
        if prototypes.positions is not None:
            weighted = weighted + prototypes.positions.sin().sum()
        gradients = torch.autograd.grad(weighted, [tokens, *module.parameters()])
        outputs = (prototypes.assignment, prototypes.memberships, output, prototypes.centers)
        return [*(each.detach() for each in outputs), *gradients]

    actual = compute(module, tokens)
    # In float32 the plain version itself is less exact than the bound where raw sums make large prototypes.
    with dispatch.use_version("plain"):
        expected = compute(copy.deepcopy(module).double(), tokens.double())
    assert torch.equal(actual[0], expected[0])
    names = ("memberships", "output", "centers", "tokens", *parameters)
    errors = {name: numbers.error(*pair) for name, *pair in zip(names, actual[1:], expected[1:], strict=True)}
    errors.pop(WITHOUT_EFFECT)
    errors.pop("prototyping.log_temperature", None)  # zero in both
    assert max(errors.values()) < 2e-4, errors


def gradients_of(
    module: Mixer, tokens: Tensor, outputs: Sequence[Tensor], d_outputs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the gradients of the tokens and parameters for gradients of the outputs."""
    silent = (WITHOUT_EFFECT, "prototyping.log_temperature")
    parameters = {name: each for name, each in module.named_parameters() if name not in silent}
    gradients = torch.autograd.grad(
        list(outputs),
        [tokens, *parameters.values()],
        [each.to(output.dtype) for each, output in zip(d_outputs, outputs, strict=True)],
    )
    return dict(zip(("tokens", *parameters), gradients, strict=True))


@pytest.mark.parametrize("case", HALF_MIXERS, ids=str)
def test_a_mixer_in_half_precision_is_exact_for_pixels_with_the_same_assignment(case, mixer, numbers):
    images, size, count, channels, heads, settings = case
    module = mixer(channels, heads, count, **settings)
    for name, each in module.named_parameters():  # large enough that an error would show in the output
        if each.dim() == 1:
            torch.nn.init.normal_(each, std=2.0 if name.endswith("alpha") else 0.5)
    module.prototyping.query.weight.data *= 3  # otherwise prototypes are similar, and keys get little gradient
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

    # Pixels with another assignment get no gradient.
    to_output, to_centers = numbers.output_gradients((right, expected.centers), 1.0)
    gradient = (torch.where(same[..., None], to_output, 0.0).half().double(), to_centers)
    actual_gradients = gradients_of(module, tokens, (output, prototypes.centers), gradient)
    expected_gradients = gradients_of(exact, right_tokens, (right, expected.centers), gradient)
    errors = {name: numbers.error(actual_gradients[name], expected_gradients[name]) for name in expected_gradients}
    assert max(errors.values()) < 1e-2, errors


@pytest.mark.parametrize("iterations", [1, 2, pytest.param(3, marks=slow)])
def test_a_mixer_without_stored_tensors_gives_the_same_output(iterations, mixer, numbers):
    module = mixer(32, 2, 10, num_iterations=iterations)
    tokens = numbers.random(2, 9 * 14, 32, seed=0, dtype=torch.float32)
    kept, prototypes = module(tokens, (9, 14))
    with torch.no_grad():
        output, none = module(tokens, (9, 14), return_prototypes=False)
        with_prototypes, same = module(tokens, (9, 14))
    assert none is None
    torch.testing.assert_close((output, with_prototypes), (kept.detach(), kept.detach()))
    torch.testing.assert_close(same.memberships, prototypes.memberships)


@pytest.fixture
def weights(numbers):
    """Return a function that draws the weights of a mixer."""

    def draw(channels: int, heads: int) -> mixing.Weights:
        wide, double = 3 * channels, 2 * channels
        shapes = [(wide, channels), (wide,), (channels,) * 2, (channels,), (double, channels), (double,), (heads,)]
        drawn = [numbers.random(*each, seed=seed, dtype=torch.float32) for seed, each in enumerate([*shapes, (heads,)])]
        log_width = numbers.random(1, seed=9, dtype=torch.float32)[0] / 4
        return mixing.Weights(*(each / channels**0.5 for each in drawn), log_width, log_width - 2)

    return draw


@pytest.mark.parametrize(("channels", "heads"), [(32, 2), (48, 2)])
def test_weights_of_a_mixer_may_be_transposed(channels, heads, dtype, weights, numbers):
    def compute(inputs: Sequence[Tensor]) -> list[Tensor]:
        leaves = [each.detach().requires_grad_() for each in inputs]
        attended, centers, _, assignment, *_ = mixing.mix(*leaves, [5, 6], [2, 3], 2, True, True, dtype, True)
        gradient = numbers.output_gradients((attended, centers), 1.0)
        gradients = torch.autograd.grad((attended, centers), leaves, [gradient[0].to(dtype), gradient[1].float()])
        return [attended.detach(), centers.detach(), assignment, *gradients]

    tokens = numbers.random(1, 30, channels, seed=9, dtype=torch.float32)
    contiguous = weights(channels, heads)
    transposed = [numbers.transposed(each) if each.dim() else each for each in contiguous]
    assert not any(each.is_contiguous() for each in transposed if each.dim())
    for one, other in zip(compute([tokens, *transposed]), compute([tokens, *contiguous]), strict=True):
        assert numbers.error(one, other) < numbers.tolerance[dtype]  # libraries may sum in another order


def test_the_operators_pass_opcheck(numbers):
    inputs = [numbers.random(1, 30, 32, seed=0, dtype=torch.float32)]
    shapes = [(96, 32), (96,), (32, 32), (32,), (64, 32), (64,), (2,), (2,)]
    inputs += [numbers.random(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    rest = ([5, 6], [2, 3], 2, True, True, torch.float16, True)
    without_prior = (*(each.requires_grad_() for each in inputs), None, None, *rest)
    torch.library.opcheck(mixing.mix, without_prior)
    of_prior = (torch.tensor(each, device=inputs[0].device).requires_grad_() for each in (-0.3, -2.5))
    torch.library.opcheck(mixing.mix, (*inputs, *of_prior, *rest))
    shapes = [(70, 32), (64, 32), (64,), (32, 64), (32,)]
    inputs = [numbers.random(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    inputs[0] = inputs[0].half()
    torch.library.opcheck(operators.mlp, tuple(each.requires_grad_() for each in inputs))
