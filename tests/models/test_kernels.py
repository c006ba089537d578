"""CAP and LS in blocks equal the reference and never store the membership matrix."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from protoformer.models.config import preset
from protoformer.models.encoder import Encoder, Mixer
from protoformer.models.kernels import blocked, dispatch, fused, operators
from protoformer.models.kernels import reference as plain
from protoformer.models.kernels.reference import nearest_prototype
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import flop_counter
from protoformer.models.synchronization import LatentSynchronization

HALF = torch.bfloat16


def sums_inputs(
    batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values; the latter two with the memory layout of the projections."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(batch, heads, count, width, generator=generator, dtype=torch.float64)
    tokens = torch.randn(2, batch, pixels, heads, width, generator=generator, dtype=torch.float64)
    keys, values = tokens.transpose(2, 3).to(dtype).unbind()
    return queries.to(dtype).requires_grad_(), keys.requires_grad_(), values.requires_grad_()


def synchronize_inputs(
    batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, ...]:
    """Return features, centers, queries, keys, values, alpha and beta."""
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    channels = heads * width
    pixel_like = [some(batch, pixels, channels) for _ in range(2)]
    prototype_like = [some(batch, count, channels) for _ in range(3)]
    projected = (pixel_like[1], *prototype_like[1:], some(heads), some(heads))
    return pixel_like[0], prototype_like[0], *(each.requires_grad_() for each in projected)


def outputs_and_gradients(
    function: Callable[..., tuple[Tensor, Tensor]], inputs: tuple[Tensor, ...], seed: int = 1
) -> list[Tensor]:
    """Return the outputs of a function, and the gradients of a random weighted sum of them."""
    outputs = function(*inputs)
    generator = torch.Generator().manual_seed(seed)
    weighted = [
        (each * torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each.dtype)).sum()
        for each in outputs
        if each.is_floating_point()
    ]
    gradients = torch.autograd.grad(sum(weighted), [each for each in inputs if each.requires_grad])
    return [*(each.detach() for each in outputs), *gradients]


def assert_same(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Assert that tensors differ by at most `tolerance` of their norm (at least 0.1); integers exactly."""
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        if one.is_floating_point():
            assert (one.double() - other.double()).norm() <= tolerance * other.double().norm().clamp_min(0.1)
        else:
            assert torch.equal(one, other)


SHAPES = {
    "batch": st.integers(1, 3),
    "heads": st.integers(1, 3),
    "count": st.integers(1, 12),
    "width": st.integers(1, 9),
    "pixels": st.integers(1, 40),
    "elements": st.sampled_from([1, 100, 500, 2**18]),
    "dtype": st.sampled_from([torch.float64, torch.float32]),
}


@settings(max_examples=60, deadline=None)
@given(**SHAPES)
def test_sums_over_blocks_equal_the_reference(batch, heads, count, width, pixels, elements, dtype):
    inputs = sums_inputs(batch, heads, count, width, pixels, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK_ELEMENTS", elements)
        actual = outputs_and_gradients(fused.prototype_sums, inputs)
    assert_same(actual, outputs_and_gradients(plain.prototype_sums, inputs), 1e-12 if dtype == torch.float64 else 1e-5)


@settings(max_examples=60, deadline=None)
@given(**SHAPES | {"width": st.integers(2, 9)})  # one channel has no gradient but rounding
def test_synchronization_over_blocks_equals_the_reference(batch, heads, count, width, pixels, elements, dtype):
    inputs = synchronize_inputs(batch, heads, count, width, pixels, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK_ELEMENTS", elements)
        actual = outputs_and_gradients(fused.synchronize, inputs)
    assert_same(actual, outputs_and_gradients(plain.synchronize, inputs), 1e-12 if dtype == torch.float64 else 1e-5)


def test_outputs_without_gradients_are_bit_identical():
    sums, synchronized = sums_inputs(2, 2, 5, 4, 30), synchronize_inputs(2, 2, 5, 4, 30)
    with torch.no_grad():
        actual = [*fused.prototype_sums(*sums), *fused.synchronize(*synchronized)]
    expected = [*fused.prototype_sums(*sums), *fused.synchronize(*synchronized)]
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def test_gradients_equal_finite_differences(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 30)  # several blocks
    assert torch.autograd.gradcheck(operators.prototype_sums, sums_inputs(2, 2, 3, 4, 7))
    inputs = synchronize_inputs(2, 2, 3, 4, 7)

    def attended(*parameters: Tensor) -> Tensor:
        return operators.synchronize(inputs[0], plain.unit_vectors(inputs[1]), *parameters)[0]

    assert torch.autograd.gradcheck(attended, inputs[2:])


def test_the_operators_pass_opcheck():
    torch.library.opcheck(operators.prototype_sums, sums_inputs(2, 2, 5, 4, 9, torch.float32))
    features, centers, *rest = synchronize_inputs(2, 2, 5, 4, 9, torch.float32)
    torch.library.opcheck(operators.synchronize, (features, plain.unit_vectors(centers), *rest))


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_large_logits_give_finite_and_correct_results(scale):
    queries, keys, values = (each.detach() for each in sums_inputs(1, 2, 7, 8, 30))
    inputs = ((queries * scale).requires_grad_(), keys.requires_grad_(), values.requires_grad_())
    actual = outputs_and_gradients(fused.prototype_sums, inputs)
    assert all(each.isfinite().all() for each in actual)
    assert_same(actual, outputs_and_gradients(plain.prototype_sums, inputs), 1e-9)


def test_a_prototype_without_members_has_no_mass_and_no_gradient():
    queries, keys, values = (each.detach() for each in sums_inputs(1, 1, 3, 4, 20, torch.float32))
    keys[..., 0] = keys[..., 0].abs() + 1
    queries[:, :, 1] = torch.tensor([-1e4, 0, 0, 0])
    inputs = (queries.requires_grad_(), keys.requires_grad_(), values.requires_grad_())
    sums, mass, *gradients = outputs_and_gradients(fused.prototype_sums, inputs)
    assert mass[0, 0, 1] == 0 and (sums[0, 0, 1] == 0).all()
    assert (gradients[0][0, 0, 1] == 0).all()
    assert all(each.isfinite().all() for each in gradients)


def test_masses_sum_to_the_number_of_pixels():
    _, mass = fused.prototype_sums(*sums_inputs(2, 3, 10, 8, 123))
    torch.testing.assert_close(mass.sum(dim=-1), torch.full((2, 3), 123.0, dtype=torch.float64))


@pytest.mark.parametrize("length", [0.0, 3e-9])
def test_vectors_of_almost_zero_length_have_the_gradient_of_the_reference(length):
    """Cosines use a norm of at least 1e-8, with the gradient of torch's cosine similarity."""
    inputs = synchronize_inputs(1, 2, 3, 4, 6)
    with torch.no_grad():
        inputs[2][0, 1] *= length  # a query
        inputs[3][0, :2] *= length  # two keys of three
    actual, expected = (outputs_and_gradients(version.synchronize, inputs) for version in (fused, plain))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_unused_outputs_do_not_change_the_gradient():
    inputs = sums_inputs(1, 2, 5, 4, 9)
    actual = torch.autograd.grad(fused.prototype_sums(*inputs)[0].square().sum(), inputs)
    assert_same(list(actual), list(torch.autograd.grad(plain.prototype_sums(*inputs)[0].square().sum(), inputs)), 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single_precision(dtype):
    inputs = sums_inputs(1, 2, 10, 16, 3000, dtype)
    exact = outputs_and_gradients(
        plain.prototype_sums, tuple(each.double().detach().requires_grad_() for each in inputs)
    )
    sums, mass, *gradients = outputs_and_gradients(fused.prototype_sums, inputs)
    assert sums.dtype == mass.dtype == torch.float32
    assert_same([sums, mass], exact[:2], 1e-5)
    assert_same(gradients, exact[2:], 1e-2)
    assert [each.dtype for each in gradients] == [dtype] * 3


@pytest.mark.parametrize(("size", "grid"), [((8, 12), (2, 3)), ((9, 14), (4, 5)), ((3, 4), (5, 7)), ((1, 50), (1, 6))])
@pytest.mark.parametrize("half", [False, True])
def test_pooling_by_matrix_products_equals_adaptive_pooling(size, grid, half):
    tokens = torch.randn(2, size[0] * size[1], 5, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    tokens.requires_grad_()
    with torch.autocast("cpu", HALF, enabled=half):
        actual, expected = (pool(tokens, size, grid) for pool in (plain.cell_means_by_products, plain.cell_means))
    torch.testing.assert_close(actual, expected)
    gradients = (torch.autograd.grad(each.square().sum(), tokens)[0] for each in (actual, expected))
    torch.testing.assert_close(*gradients)


def mixer(channels: int = 32, heads: int = 2, num_prototypes: int = 10, **settings: object) -> Mixer:
    torch.manual_seed(0)
    prototyping = Prototyping(channels, heads, num_prototypes, **settings)  # type: ignore[arg-type]
    return Mixer(prototyping, LatentSynchronization(channels, heads))


def mixer_outputs(module: nn.Module, half: bool = False) -> list[Tensor]:
    """Return the output of a mixer for a 7 x 9 map, and the gradients of the tokens and all parameters."""
    dtype = next(module.parameters()).dtype
    tokens = 4 * torch.randn(2, 63, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    tokens.requires_grad_()
    with torch.autocast("cpu", HALF, enabled=half):
        output, _ = module(tokens, (7, 9))
    # A softmax does not change when all its logits do: a bias of queries has no say, and a gradient of rounding alone.
    parameters = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
    return [output.detach(), *torch.autograd.grad(output.square().sum(), [tokens, *parameters])]


SETTINGS = ({}, {"update": "cosine"}, {"normalize": False}, {"residual": False}, {"num_iterations": 0})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_mixer_equals_the_reference(settings):
    module = mixer(**settings).double()
    actual = mixer_outputs(module)
    with dispatch.use_version("plain"):
        expected = mixer_outputs(module)
    assert_same(actual, expected, 1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_half_precision_is_as_accurate_as_in_the_reference(settings):
    module = mixer(**settings)
    exact, actual = mixer_outputs(module), mixer_outputs(module, half=True)
    with dispatch.use_version("plain"):
        expected = mixer_outputs(module, half=True)
    for right, one, other in zip(exact, actual, expected, strict=True):
        assert (one - right).norm() <= 1.5 * (other - right).norm() + 1e-2 * right.norm()


@pytest.mark.parametrize("half", [False, True])
def test_a_mixer_compiles_to_one_graph_with_the_same_results(half):
    module = mixer()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_same(mixer_outputs(compiled, half), mixer_outputs(module, half), 1e-2 if half else 1e-5)


class FixedSizeMixer(nn.Module):
    """A mixer for maps of one size that returns only the output."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = mixer().eval()

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.mixer(tokens, (7, 9))[0]
        return output


def test_an_exported_graph_has_no_custom_operators_and_the_same_results():
    module, tokens = FixedSizeMixer(), torch.randn(2, 63, 32)
    exported = torch.export.export(module, (tokens,))
    assert not [node for node in exported.graph.nodes if "protoformer" in str(node.target)]
    torch.testing.assert_close(exported.module()(tokens), module(tokens), atol=1e-5, rtol=0)


def test_use_version_applies_only_within_its_context():
    assert not dispatch.is_plain()
    with dispatch.use_version("plain"):
        assert dispatch.is_plain()
    assert not dispatch.is_plain()
    with pytest.raises(ValueError, match="no version 'fast'; choose one of fused, plain"), dispatch.use_version("fast"):
        pass


class MaxElements(TorchDispatchMode):
    """Records the largest number of elements of a tensor that an operation returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
        return result


def test_blocks_limit_the_size_of_intermediates(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 2**14)
    queries, keys, values = (each.detach() for each in sums_inputs(1, 2, 50, 4, 4000, torch.float32))
    with MaxElements() as elements:
        sums, mass = blocked.prototype_sums(queries, keys, values)
        blocked.prototype_sums_backward(sums, mass, queries, keys, values)
    assert elements.most == keys.numel() == 32000  # memberships would be 400,000
    features, centers, *rest = (each.detach() for each in synchronize_inputs(1, 2, 50, 4, 4000, torch.float32))
    with MaxElements() as elements:
        attended, assignment = blocked.synchronize(features, centers, *rest)
        blocked.synchronize_backward(attended, *rest, assignment)
    assert elements.most == features.numel() == 32000


@settings(max_examples=40, deadline=None)
@given(**{name: SHAPES[name] for name in SHAPES if name != "dtype"} | {"width": st.integers(2, 9)})
def test_synchronization_without_gradients_gives_the_same_output(batch, heads, count, width, pixels, elements):
    """Without gradients the first layer of the network is applied once per prototype instead of per pixel."""
    layer = LatentSynchronization(heads * width, heads)
    features, centers, *_ = synchronize_inputs(batch, heads, count, width, pixels, torch.float32)
    prototypes = Prototypes(centers, torch.empty(0), (1, pixels))
    expected, assignment = layer(features, prototypes)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK_ELEMENTS", elements)
        actual = layer(features, prototypes)
        with dispatch.use_version("plain"):
            plain_outputs = layer(features, prototypes)
    assert_same(list(actual), [expected.detach(), assignment], 1e-5)
    assert_same(list(actual), list(plain_outputs), 1e-5)


def test_without_gradients_no_tensor_is_larger_than_the_features(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 2**14)
    module, tokens = mixer(num_prototypes=100), torch.randn(1, 4000, 32)
    with torch.no_grad(), MaxElements() as elements:
        module(tokens, (40, 100))
    assert elements.most == tokens.numel()  # memberships would be 800,000, and the hidden layer is twice the features


def test_memberships_are_computed_on_access():
    module, tokens = mixer(num_prototypes=100), torch.randn(1, 400, 32).requires_grad_()
    kept = []

    def remember(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor), MaxElements() as elements:
        output, prototypes = module(tokens, (20, 20))
        output.sum().backward()
    assert elements.most == max(kept) == 2 * tokens.numel()  # inside the feed-forward network
    assert prototypes.memberships.numel() == 2 * 100 * 400 > elements.most


def test_memberships_are_those_of_the_last_expectation():
    prototyping = Prototyping(32, 2, 10, num_iterations=2)
    tokens = torch.randn(3, 63, 32)
    prototypes = prototyping(tokens, (7, 9))
    keys, values = prototyping.keys_and_values(tokens)
    before, *_ = prototyping.step(prototyping.pool(tokens, (7, 9)), keys, values, (7, 9))
    expected = plain.softmax_over_prototypes(plain.similarities(plain.split_heads(prototyping.query(before), 2), keys))
    torch.testing.assert_close(prototypes.memberships, expected)
    torch.testing.assert_close(prototypes.first(2).cpu().memberships, expected[:2])


def test_prototypes_contain_the_assignment_of_synchronization():
    module, tokens = mixer(), torch.randn(3, 63, 32)
    _, prototypes = module(tokens, (7, 9))
    assert torch.equal(prototypes.assignment, nearest_prototype(tokens, prototypes.centers))
    assert torch.equal(prototypes.first(2).cpu().assignment, prototypes.assignment[:2])
    encoder = Encoder(preset("tiny", encoder={"components": "cap"}).encoder)
    (first, *_), *_ = encoder(torch.zeros(1, 3, 32, 32), return_prototypes=True).prototypes
    assert first.assignment is None


def test_operation_counts_equal_the_reference():
    counts = {}
    for version in dispatch.VERSIONS:
        with torch.device("meta"):
            module, tokens = mixer().requires_grad_(False), torch.empty(2, 63, 32)
        with dispatch.use_version(version), torch.no_grad(), flop_counter() as counter:
            module(tokens, (7, 9))
        counts[version] = counter.get_total_flops()
    assert counts["fused"] == counts["plain"] > 0


def test_two_runs_are_bit_identical():
    module = mixer()
    assert all(torch.equal(one, other) for one, other in zip(mixer_outputs(module), mixer_outputs(module), strict=True))


def test_the_package_works_without_triton():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from protoformer.models import Prototyping\n"
        "Prototyping(16, 2, 4)(torch.randn(1, 12, 16), (3, 4)).centers.sum().backward()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_nearly_tied_cosines_are_resolved_in_single_precision():
    """Features are nearer to one of two prototypes by 1e-4, which half precision does not resolve."""
    directions = torch.eye(2, 4)[None]
    features = torch.tensor([[[1.0001, 1.0, 0.5, 0.0], [1.0, 1.0001, 0.5, 0.0]]])
    with torch.autocast("cpu", HALF):
        projected = (features, directions, directions, torch.ones(1), torch.zeros(1))
        _, assignment = fused.synchronize(features, directions, *projected)
    assert assignment.tolist() == [[0, 1]]


@torch.no_grad()
def test_half_precision_sums_are_those_of_float32_up_to_the_rounding_of_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = [tensor.to(HALF) for tensor in sums_inputs(2, 3, 10, 32, 700, torch.float32)]
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 2**13)  # several blocks
    (sums, mass), (true_sums, true_mass) = blocked.half_prototype_sums(*inputs), blocked.prototype_sums(*inputs)
    assert sums.dtype == mass.dtype == torch.float32
    assert (sums - true_sums).norm() < 0.02 * true_sums.norm() and (mass - true_mass).norm() < 0.01 * true_mass.norm()
    large = [100 * inputs[0], *inputs[1:]]  # whose exponentials overflow
    for half, full in zip(blocked.half_prototype_sums(*large), blocked.prototype_sums(*large), strict=True):
        assert torch.equal(half, full)
