"""Prototyping and synchronization without the matrix of memberships: the same numbers, and never that matrix."""

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
    """Queries, keys and values, the latter two laid out as the projections leave them."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(batch, heads, count, width, generator=generator, dtype=torch.float64)
    tokens = torch.randn(2, batch, pixels, heads, width, generator=generator, dtype=torch.float64)
    keys, values = tokens.transpose(2, 3).to(dtype).unbind()
    return queries.to(dtype).requires_grad_(), keys.requires_grad_(), values.requires_grad_()


def synchronize_inputs(
    batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, ...]:
    """Features, centers, queries, keys, values, alpha and beta."""
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
    """What it returns, and the gradients of a random weighting of it with respect to whatever may have one."""
    found = function(*inputs)
    generator = torch.Generator().manual_seed(seed)
    weighted = [
        (each * torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each.dtype)).sum()
        for each in found
        if each.is_floating_point()
    ]
    gradients = torch.autograd.grad(sum(weighted), [each for each in inputs if each.requires_grad])
    return [*(each.detach() for each in found), *gradients]


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """Each within `tolerance` of the other's length, or of 0.1 where it is shorter; whole numbers exactly."""
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        if mine.is_floating_point():
            assert (mine.double() - other.double()).norm() <= tolerance * other.double().norm().clamp_min(0.1)
        else:
            assert torch.equal(mine, other)


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
def test_sums_over_blocks_are_the_plain_sums(batch, heads, count, width, pixels, elements, dtype):
    inputs = sums_inputs(batch, heads, count, width, pixels, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK_ELEMENTS", elements)
        ours = outputs_and_gradients(fused.prototype_sums, inputs)
    assert_same(ours, outputs_and_gradients(plain.prototype_sums, inputs), 1e-12 if dtype == torch.float64 else 1e-5)


@settings(max_examples=60, deadline=None)
@given(**SHAPES | {"width": st.integers(2, 9)})  # of one number the cosine is 1 or -1, and its gradient rounding alone
def test_synchronization_over_blocks_is_the_plain_one(batch, heads, count, width, pixels, elements, dtype):
    inputs = synchronize_inputs(batch, heads, count, width, pixels, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK_ELEMENTS", elements)
        ours = outputs_and_gradients(fused.synchronize, inputs)
    assert_same(ours, outputs_and_gradients(plain.synchronize, inputs), 1e-12 if dtype == torch.float64 else 1e-5)


def test_where_no_gradient_is_wanted_the_numbers_are_the_very_same():
    sums, synchronized = sums_inputs(2, 2, 5, 4, 30), synchronize_inputs(2, 2, 5, 4, 30)
    with torch.no_grad():
        ours = [*fused.prototype_sums(*sums), *fused.synchronize(*synchronized)]
    theirs = [*fused.prototype_sums(*sums), *fused.synchronize(*synchronized)]
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_gradients_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 30)  # several blocks
    assert torch.autograd.gradcheck(operators.prototype_sums, sums_inputs(2, 2, 3, 4, 7))
    inputs = synchronize_inputs(2, 2, 3, 4, 7)

    def attended(*learned: Tensor) -> Tensor:
        return operators.synchronize(inputs[0], plain.directions(inputs[1]), *learned)[0]

    assert torch.autograd.gradcheck(attended, inputs[2:])


def test_torch_finds_nothing_wrong_with_the_operators():
    torch.library.opcheck(operators.prototype_sums, sums_inputs(2, 2, 5, 4, 9, torch.float32))
    features, centers, *rest = synchronize_inputs(2, 2, 5, 4, 9, torch.float32)
    torch.library.opcheck(operators.synchronize, (features, plain.directions(centers), *rest))


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_large_logits_stay_finite_and_right(scale):
    queries, keys, values = (each.detach() for each in sums_inputs(1, 2, 7, 8, 30))
    inputs = ((queries * scale).requires_grad_(), keys.requires_grad_(), values.requires_grad_())
    ours = outputs_and_gradients(fused.prototype_sums, inputs)
    assert all(each.isfinite().all() for each in ours)
    assert_same(ours, outputs_and_gradients(plain.prototype_sums, inputs), 1e-9)


def test_a_prototype_that_nobody_belongs_to_has_no_mass_and_no_gradient():
    queries, keys, values = (each.detach() for each in sums_inputs(1, 1, 3, 4, 20, torch.float32))
    keys[..., 0] = keys[..., 0].abs() + 1
    queries[:, :, 1] = torch.tensor([-1e4, 0, 0, 0])
    inputs = (queries.requires_grad_(), keys.requires_grad_(), values.requires_grad_())
    sums, mass, *gradients = outputs_and_gradients(fused.prototype_sums, inputs)
    assert mass[0, 0, 1] == 0 and (sums[0, 0, 1] == 0).all()
    assert (gradients[0][0, 0, 1] == 0).all()
    assert all(each.isfinite().all() for each in gradients)


def test_masses_of_all_prototypes_count_the_pixels():
    _, mass = fused.prototype_sums(*sums_inputs(2, 3, 10, 8, 123))
    torch.testing.assert_close(mass.sum(dim=-1), torch.full((2, 3), 123.0, dtype=torch.float64))


@pytest.mark.parametrize("length", [0.0, 3e-9])
def test_vectors_of_no_length_to_speak_of_have_the_plain_gradient(length):
    """A cosine with a vector shorter than 1e-8 counts it as that long, and torch's own says what its gradient is."""
    inputs = synchronize_inputs(1, 2, 3, 4, 6)
    with torch.no_grad():
        inputs[2][0, 1] *= length  # a query
        inputs[3][0, :2] *= length  # two keys of three
    ours, theirs = (outputs_and_gradients(version.synchronize, inputs) for version in (fused, plain))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


def test_sums_that_nobody_uses_have_no_say_in_the_gradient():
    inputs = sums_inputs(1, 2, 5, 4, 9)
    ours = torch.autograd.grad(fused.prototype_sums(*inputs)[0].square().sum(), inputs)
    assert_same(list(ours), list(torch.autograd.grad(plain.prototype_sums(*inputs)[0].square().sum(), inputs)), 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype):
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
def test_products_with_bands_are_adaptive_pooling(size, grid, half):
    tokens = torch.randn(2, size[0] * size[1], 5, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    tokens.requires_grad_()
    with torch.autocast("cpu", HALF, enabled=half):
        ours, theirs = (pool(tokens, size, grid) for pool in (plain.cell_means_by_products, plain.cell_means))
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(each.square().sum(), tokens)[0] for each in (ours, theirs))
    torch.testing.assert_close(*gradients)


def mixer(channels: int = 32, heads: int = 2, num_prototypes: int = 10, **settings: object) -> Mixer:
    torch.manual_seed(0)
    prototyping = Prototyping(channels, heads, num_prototypes, **settings)  # type: ignore[arg-type]
    return Mixer(prototyping, LatentSynchronization(channels, heads))


def mixed(module: nn.Module, half: bool = False) -> list[Tensor]:
    """What a mixer adds to the tokens of a 7 x 9 map, and the gradients of the tokens and of all parameters."""
    dtype = next(module.parameters()).dtype
    tokens = 4 * torch.randn(2, 63, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    tokens.requires_grad_()
    with torch.autocast("cpu", HALF, enabled=half):
        output, _ = module(tokens, (7, 9))
    # A softmax does not change when all its logits do: a bias of queries has no say, and a gradient of rounding alone.
    learned = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
    return [output.detach(), *torch.autograd.grad(output.square().sum(), [tokens, *learned])]


SETTINGS = ({}, {"update": "cosine"}, {"normalize": False}, {"residual": False}, {"num_iterations": 0})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_mixer_is_the_same_computed_either_way(settings):
    module = mixer(**settings).double()
    ours = mixed(module)
    with dispatch.use_version("plain"):
        theirs = mixed(module)
    assert_same(ours, theirs, 1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_half_precision_strays_no_further_than_in_the_plain_version(settings):
    module = mixer(**settings)
    exact, ours = mixed(module), mixed(module, half=True)
    with dispatch.use_version("plain"):
        theirs = mixed(module, half=True)
    for right, mine, other in zip(exact, ours, theirs, strict=True):
        assert (mine - right).norm() <= 1.5 * (other - right).norm() + 1e-2 * right.norm()


@pytest.mark.parametrize("half", [False, True])
def test_a_mixer_compiles_to_one_graph_with_the_same_results(half):
    module = mixer()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert_same(mixed(compiled, half), mixed(module, half), 1e-2 if half else 1e-5)


class OfSize(nn.Module):
    """A mixer of maps of one size, returning a tensor alone."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = mixer().eval()

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.mixer(tokens, (7, 9))[0]
        return output


def test_an_exported_graph_has_none_of_our_operators_and_the_same_results():
    module, tokens = OfSize(), torch.randn(2, 63, 32)
    exported = torch.export.export(module, (tokens,))
    assert not [node for node in exported.graph.nodes if "protoformer" in str(node.target)]
    torch.testing.assert_close(exported.module()(tokens), module(tokens), atol=1e-5, rtol=0)


def test_the_plain_version_is_chosen_within_and_not_after():
    assert not dispatch.is_plain()
    with dispatch.use_version("plain"):
        assert dispatch.is_plain()
    assert not dispatch.is_plain()
    with pytest.raises(ValueError, match="no version 'fast'; choose one of fused, plain"), dispatch.use_version("fast"):
        pass


class Elements(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
        return result


def test_no_block_makes_more_memberships_than_the_cache_holds(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 2**14)
    queries, keys, values = (each.detach() for each in sums_inputs(1, 2, 50, 4, 4000, torch.float32))
    with Elements() as elements:
        sums, mass = blocked.prototype_sums(queries, keys, values)
        blocked.prototype_sums_backward(sums, mass, queries, keys, values)
    assert elements.most == keys.numel() == 32000  # memberships would be 400,000
    features, centers, *rest = (each.detach() for each in synchronize_inputs(1, 2, 50, 4, 4000, torch.float32))
    with Elements() as elements:
        attended, assignment = blocked.synchronize(features, centers, *rest)
        blocked.synchronize_backward(attended, *rest, assignment)
    assert elements.most == features.numel() == 32000


@settings(max_examples=40, deadline=None)
@given(**{name: SHAPES[name] for name in SHAPES if name != "dtype"} | {"width": st.integers(2, 9)})
def test_without_gradients_synchronization_adds_what_it_does_with_them(batch, heads, count, width, pixels, elements):
    """Then what the network after it makes of a prototype's value is computed once for all pixels of the prototype."""
    layer = LatentSynchronization(heads * width, heads)
    features, centers, *_ = synchronize_inputs(batch, heads, count, width, pixels, torch.float32)
    prototypes = Prototypes(centers, torch.empty(0), (1, pixels))
    expected, assignment = layer(features, prototypes)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK_ELEMENTS", elements)
        ours = layer(features, prototypes)
        with dispatch.use_version("plain"):
            theirs = layer(features, prototypes)
    assert_same(list(ours), [expected.detach(), assignment], 1e-5)
    assert_same(list(ours), list(theirs), 1e-5)


def test_without_gradients_nothing_larger_than_the_features_is_made(monkeypatch):
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 2**14)
    module, tokens = mixer(num_prototypes=100), torch.randn(1, 4000, 32)
    with torch.no_grad(), Elements() as elements:
        module(tokens, (40, 100))
    assert elements.most == tokens.numel()  # memberships would be 800,000, and the hidden layer is twice the features


def test_memberships_are_neither_made_nor_kept_until_they_are_asked_for():
    module, tokens = mixer(num_prototypes=100), torch.randn(1, 400, 32).requires_grad_()
    kept = []

    def remember(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor), Elements() as elements:
        output, prototypes = module(tokens, (20, 20))
        output.sum().backward()
    assert elements.most == max(kept) == 2 * tokens.numel()  # inside the feed-forward network
    assert prototypes.memberships.numel() == 2 * 100 * 400 > elements.most


def test_memberships_when_asked_for_are_those_of_the_last_expectation():
    prototyping = Prototyping(32, 2, 10, num_iterations=2)
    tokens = torch.randn(3, 63, 32)
    found = prototyping(tokens, (7, 9))
    keys, values = prototyping.keys_and_values(tokens)
    before, _ = prototyping.step(prototyping.pool(tokens, (7, 9)), keys, values, (7, 9))
    expected = plain.competing(plain.similarities(plain.split_heads(prototyping.query(before), 2), keys))
    torch.testing.assert_close(found.memberships, expected)
    torch.testing.assert_close(found.first(2).cpu().memberships, expected[:2])


def test_the_assignment_that_synchronization_made_comes_with_the_prototypes():
    module, tokens = mixer(), torch.randn(3, 63, 32)
    _, found = module(tokens, (7, 9))
    assert torch.equal(found.assignment, nearest_prototype(tokens, found.centers))
    assert torch.equal(found.first(2).cpu().assignment, found.assignment[:2])
    encoder = Encoder(preset("tiny", encoder={"components": "cap"}).encoder)
    (first, *_), *_ = encoder(torch.zeros(1, 3, 32, 32), return_prototypes=True).prototypes
    assert first.assignment is None


def test_operations_are_counted_as_in_the_plain_version():
    counts = {}
    for version in dispatch.VERSIONS:
        with torch.device("meta"):
            module, tokens = mixer().requires_grad_(False), torch.empty(2, 63, 32)
        with dispatch.use_version(version), torch.no_grad(), flop_counter() as counter:
            module(tokens, (7, 9))
        counts[version] = counter.get_total_flops()
    assert counts["fused"] == counts["plain"] > 0


def test_two_runs_agree_bit_by_bit():
    module = mixer()
    assert all(torch.equal(one, other) for one, other in zip(mixed(module), mixed(module), strict=True))


def test_the_package_works_where_there_is_no_triton():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from protoformer.models import Prototyping\n"
        "Prototyping(16, 2, 4)(torch.randn(1, 12, 16), (3, 4)).centers.sum().backward()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_cosines_that_nearly_tie_are_told_apart_in_single_precision():
    """Features a ten-thousandth nearer to one prototype than to the other, which half precision could not tell."""
    directions = torch.eye(2, 4)[None]
    features = torch.tensor([[[1.0001, 1.0, 0.5, 0.0], [1.0, 1.0001, 0.5, 0.0]]])
    with torch.autocast("cpu", HALF):
        projected = (features, directions, directions, torch.ones(1), torch.zeros(1))
        _, assignment = fused.synchronize(features, directions, *projected)
    assert assignment.tolist() == [[0, 1]]
