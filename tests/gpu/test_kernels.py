"""Triton's kernels agree with the plain version, which runs in float64 beside them.

They need a CUDA device. With TRITON_INTERPRET=1 they run on the CPU instead, slowly and without bfloat16, products of
which the interpreter does not know.
"""

import functools
import importlib.util
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.model import Prototyping, fused
from protoformer.model.encoder import Mixer
from protoformer.model.fused import mixing, operators, perceptron, plain
from protoformer.model.synchronization import LatentSynchronization

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = torch.cuda.is_available()

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="needs a CUDA device (or TRITON_INTERPRET=1)"),
]
on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")

PRECISIONS = [torch.float32, torch.float16, *([] if INTERPRETED else [torch.bfloat16])]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
# images, heads, K, head width, pixels
SHAPES = [
    (2, 2, 10, 32, 37),
    (1, 3, 50, 32, 301),
    (2, 4, 100, 32, 515),
    (1, 2, 200, 32, 129),
    (1, 2, 256, 64, 97),
    (1, 2, 100, 16, 64),
    (1, 1, 100, 64, 130),
    (1, 2, 7, 24, 50),
    (3, 1, 100, 32, 1),
    (1, 1, 1, 32, 40),
]


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Normal numbers that `dtype` can hold."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(dtype).to(DEVICE)


def sums_inputs(
    batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values laid out as the projections leave them."""
    queries = random(batch, count, heads, width, seed=0, dtype=dtype).transpose(1, 2) * scale
    keys, values = (random(batch, pixels, heads, width, seed=seed, dtype=dtype).transpose(1, 2) for seed in (1, 2))
    return queries, keys, values


def synchronize_inputs(
    batch: int, heads: int, count: int, width: int, pixels: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Features and centres in single precision, as layer norm leaves them; queries, keys, values, alpha and beta."""
    channels = heads * width
    features = random(batch, pixels, channels, seed=0, dtype=torch.float32)
    centres = random(batch, count, channels, seed=1, dtype=torch.float32)
    queries = random(batch, pixels, channels, seed=2, dtype=dtype)
    keys, values = (random(batch, count, channels, seed=seed, dtype=dtype) for seed in (3, 4))
    alpha, beta = (random(heads, seed=seed, dtype=torch.float32) for seed in (5, 6))
    return features, centres, queries, keys, values, alpha, beta


def gradients(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: tuple[Tensor, ...],
    size: float,
    given_as: torch.dtype = torch.float64,
) -> list[Tensor]:
    """What a plain function returns in float64, and its gradients for `arriving` ones, which `given_as` can hold."""
    exact = [each.double().requires_grad_() for each in inputs]
    found = function(*exact)
    arrives = [each.to(given_as).double() for each in arriving(found, size)]
    return [*(each.detach() for each in found), *torch.autograd.grad(found, exact, arrives)]


def arriving(found: tuple[Tensor, ...], size: float) -> list[Tensor]:
    """The gradients that reach these outputs."""
    return [size * random(*each.shape, seed=10 + place, dtype=torch.float64) for place, each in enumerate(found)]


def error(ours: Tensor, exact: Tensor) -> float:
    """The length of the difference over the length of what is right."""
    return float((ours.detach().double() - exact).norm() / exact.norm().clamp_min(1e-30))


def sums_and_gradients(inputs: tuple[Tensor, Tensor, Tensor], size: float = 1.0) -> list[Tensor]:
    from protoformer.model.fused import prototyping_backward_kernels as backward
    from protoformer.model.fused import prototyping_kernels as kernels

    found = kernels.prototype_sums(*inputs)
    d_sums, d_mass = (each.float() for each in arriving(found, size))
    return [*found, *backward.prototype_sums_backward(d_sums, d_mass, *inputs)]


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_their_gradients_are_the_plain_ones(shape, dtype):
    inputs = sums_inputs(*shape, dtype=dtype)
    ours, exact = sums_and_gradients(inputs), gradients(plain.prototype_sums, inputs, size=1.0)
    names = ("sums", "mass", "queries", "keys", "values")
    errors = {name: error(*pair) for name, *pair in zip(names, ours, exact, strict=True)}
    if shape[2] == 1:  # a softmax of one is 1: what has no gradient is left with rounding
        errors = {name: each for name, each in errors.items() if name not in ("queries", "keys")}
        assert all(float(ours[place].abs().max()) < 1e-3 for place in (2, 3))
    assert max(errors.values()) < TOLERANCE[dtype], errors
    assert [each.dtype for each in ours] == [torch.float32, torch.float32, dtype, dtype, dtype]


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_large_logits_are_as_right_as_in_the_plain_version(dtype, scale):
    """The larger the logits, the more rounding of the inputs of a softmax shows: torch's own error is the measure."""
    inputs = sums_inputs(2, 2, 100, 32, 203, dtype, scale)
    ours, exact = sums_and_gradients(inputs), gradients(plain.prototype_sums, inputs, size=1.0)
    assert all(each.isfinite().all() for each in ours)
    single = tuple(each.float().requires_grad_() for each in inputs)
    found = plain.prototype_sums(*single)
    theirs = [*found, *torch.autograd.grad(found, single, [each.float() for each in arriving(found, 1.0)])]
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert error(mine, right) < TOLERANCE[dtype] + 4 * error(other, right)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_a_prototype_that_nobody_belongs_to_has_no_mass_and_no_gradient(dtype):
    queries, keys, values = sums_inputs(1, 1, 10, 16, 70, dtype)
    keys[..., 0] = keys[..., 0].abs() + 1
    queries[:, :, 4] = 0
    queries[:, :, 4, 0] = -2e4
    sums, mass, d_queries, d_keys, d_values = sums_and_gradients((queries, keys, values))
    assert mass[0, 0, 4] == 0 and (sums[0, 0, 4] == 0).all() and (d_queries[0, 0, 4] == 0).all()
    assert d_keys.isfinite().all() and d_values.isfinite().all()


def test_gradients_too_small_for_half_precision_are_not_lost_on_the_way():
    inputs = sums_inputs(1, 2, 100, 32, 300, torch.float16)
    exact = gradients(plain.prototype_sums, inputs, size=1e-4)
    ours = sums_and_gradients(inputs, size=1e-4)
    assert max(error(*pair) for pair in zip(ours[2:], exact[2:], strict=True)) < 1e-2


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_synchronization_and_its_gradients_are_the_plain_ones(shape, dtype):
    from protoformer.model.fused import synchronization_backward_kernels as backward_kernels
    from protoformer.model.fused import synchronization_kernels as kernels

    features, centres, *rest = synchronize_inputs(*shape, dtype=dtype)
    directions = plain.directions(centres)
    attended, assignment = kernels.synchronize(features, directions, *rest)
    cosines = features.double() @ directions.double().transpose(1, 2)
    short = cosines.amax(dim=-1) - cosines.gather(2, assignment[..., None])[..., 0]
    assert (short / features.double().norm(dim=-1)).max() < 1e-6  # the nearest, but for ties of rounding

    def gate(*learned: Tensor) -> tuple[Tensor]:
        return (plain.gated(*learned, assignment),)

    exact = gradients(gate, tuple(rest), size=1.0, given_as=dtype)
    (arrives,) = arriving((attended,), 1.0)
    ours = [attended, *backward_kernels.synchronize_backward(arrives.to(dtype), *rest, assignment)]
    names = ("attended", "queries", "keys", "values", "alpha", "beta")
    errors = {name: error(*pair) for name, *pair in zip(names, ours, exact, strict=True)}
    assert max(errors.values()) < TOLERANCE[dtype], errors


@pytest.mark.parametrize("length", [0.0, 3e-9])
def test_vectors_of_no_length_to_speak_of_have_the_plain_gradient(length):
    from protoformer.model.fused import synchronization_backward_kernels as backward_kernels
    from protoformer.model.fused import synchronization_kernels as kernels

    features, centres, *rest = synchronize_inputs(1, 2, 3, 16, 40, torch.float32)
    rest[0][0, 5] *= length
    rest[1][0, :2] *= length
    attended, assignment = kernels.synchronize(features, plain.directions(centres), *rest)

    def gate(*learned: Tensor) -> tuple[Tensor]:
        return (plain.gated(*learned, assignment),)

    exact = gradients(gate, tuple(rest), size=1.0)
    (arrives,) = arriving((attended,), 1.0)
    ours = backward_kernels.synchronize_backward(arrives.float(), *rest, assignment)
    for mine, right in zip(ours, exact[1:], strict=True):
        assert error(mine, right) < 1e-5


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_two_runs_agree_bit_by_bit(dtype):
    from protoformer.model.fused import synchronization_backward_kernels as backward_kernels
    from protoformer.model.fused import synchronization_kernels as kernels

    inputs = sums_inputs(2, 2, 100, 32, 999, dtype)
    for one, other in zip(sums_and_gradients(inputs), sums_and_gradients(inputs), strict=True):
        assert torch.equal(one, other)
    features, centres, *rest = synchronize_inputs(2, 2, 100, 32, 999, dtype)
    forward = functools.partial(kernels.synchronize, features, plain.directions(centres), *rest)
    (attended, assignment), (again, _) = forward(), forward()
    assert torch.equal(attended, again)
    backward = functools.partial(backward_kernels.synchronize_backward, attended, *rest, assignment)
    for one, other in zip(backward(), backward(), strict=True):
        assert torch.equal(one, other)


def test_layouts_that_are_not_contiguous_are_read_rightly():
    queries, keys, values = sums_inputs(1, 2, 20, 16, 60, torch.float32)
    turned = keys.transpose(2, 3).contiguous().transpose(2, 3)
    assert turned.stride(-1) != 1
    straight = sums_and_gradients((queries, keys, values))
    for one, other in zip(straight, sums_and_gradients((queries, turned, values)), strict=True):
        torch.testing.assert_close(one, other)


# All of a mixer at once.

MIXERS = [
    # images, (H, W), prototypes, channels, heads, settings
    (2, (9, 14), 10, 32, 2, {}),
    (1, (10, 20), 100, 64, 2, {"iterations": 1}),
    (2, (7, 5), 12, 48, 2, {"normalize": False, "iterations": 2}),
    (1, (3, 4), 35, 32, 1, {"residual": False, "iterations": 2}),
]


@pytest.mark.parametrize("case", MIXERS, ids=str)
def test_a_mixer_at_once_is_the_plain_one(case, monkeypatch):
    images, size, count, channels, heads, settings = case
    monkeypatch.setattr(operators, "takes_kernels", lambda *_: True)
    torch.manual_seed(0)
    module = Mixer(Prototyping(channels, heads, count, **settings), LatentSynchronization(channels, heads)).to(DEVICE)
    for each in module.parameters():
        torch.nn.init.normal_(each, std=0.2)
    tokens = 2 * random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32)
    tokens.requires_grad_()
    learned = dict(module.named_parameters())

    def found() -> list[Tensor]:
        output, prototypes = module(tokens, size)
        weighted = output.square().sum() + prototypes.centres.sin().sum()
        gradients = torch.autograd.grad(weighted, [tokens, *learned.values()])
        seen = (prototypes.assignment, prototypes.memberships, output, prototypes.centres)
        return [*(each.detach() for each in seen), *gradients]

    ours = found()
    with fused.computed("plain"):
        theirs = found()
    assert torch.equal(ours[0], theirs[0])
    names = ("memberships", "output", "centres", "tokens", *learned)
    errors = {name: error(mine, other) for name, mine, other in zip(names, ours[1:], theirs[1:], strict=True)}
    errors.pop("prototyping.query.bias")  # a softmax does not change when all its logits do: it has no say
    assert max(errors.values()) < 2e-4, errors


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_a_mixer_that_keeps_nothing_finds_the_same(iterations, monkeypatch):
    monkeypatch.setattr(operators, "takes_kernels", lambda *_: True)
    torch.manual_seed(0)
    module = Mixer(Prototyping(32, 2, 10, iterations=iterations), LatentSynchronization(32, 2)).to(DEVICE)
    tokens = random(2, 9 * 14, 32, seed=0, dtype=torch.float32)
    kept, prototypes = module(tokens, (9, 14))
    with torch.no_grad():
        output, none = module(tokens, (9, 14), asked=False)
        looked_at, same = module(tokens, (9, 14))
    assert none is None
    torch.testing.assert_close((output, looked_at), (kept.detach(), kept.detach()))
    torch.testing.assert_close(same.memberships, prototypes.memberships)


@pytest.mark.parametrize(("size", "grid"), [((8, 12), (2, 3)), ((9, 14), (4, 5)), ((3, 4), (5, 7)), ((1, 50), (1, 6))])
def test_cells_are_pooled_and_spread_as_torch_does(size, grid):
    from protoformer.model.fused import cell_kernels

    tokens = random(2, size[0] * size[1], 40, seed=0, dtype=torch.float32).requires_grad_()
    expected = plain.cell_means(tokens, size, grid)
    found, added = torch.empty_like(expected), random(*tokens.shape, seed=1, dtype=torch.float32)
    cell_kernels.pool(tokens.detach(), size, grid, found)
    torch.testing.assert_close(found, expected.detach())
    arrives = random(*expected.shape, seed=2, dtype=torch.float32)
    (gradient,) = torch.autograd.grad(expected, tokens, arrives)
    torch.testing.assert_close(cell_kernels.spread(arrives, added, size, grid), gradient + added)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_a_mixer_at_once_compiles_to_one_graph(monkeypatch):
    monkeypatch.setattr(operators, "takes_kernels", lambda *_: True)
    torch.manual_seed(0)
    module = Mixer(Prototyping(32, 2, 10), LatentSynchronization(32, 2)).to(DEVICE)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    tokens = random(2, 63, 32, seed=0, dtype=torch.float32).requires_grad_()
    outputs = [each(tokens, (7, 9))[0] for each in (module, compiled)]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), tokens)[0] for each in outputs))


@pytest.mark.skipif(INTERPRETED and not ON_GPU, reason="the interpreter knows no products of bfloat16")
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_a_mixer_at_once_takes_fewer_than_forty_launches_forward():
    module, tokens = mixer(), random(2, 33 * 47, 128, seed=0, dtype=torch.float32)

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            module(tokens, (33, 47))

    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    assert sum(each.device_type == torch.autograd.DeviceType.CUDA for each in profile.events()) <= 40


def test_torch_finds_nothing_wrong_with_the_operator_of_a_mixer():
    inputs = [random(1, 30, 32, seed=0, dtype=torch.float32)]
    shapes = [(96, 32), (96,), (32, 32), (32,), (64, 32), (64,), (2,), (2,)]
    inputs += [random(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    rest = ([5, 6], [2, 3], 2, True, True, torch.float16, True)
    torch.library.opcheck(mixing.mix, (*(each.requires_grad_() for each in inputs), *rest))
    shapes = [(70, 32), (64, 32), (64,), (32, 64), (32,)]
    inputs = [random(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    inputs[0] = inputs[0].half()
    torch.library.opcheck(perceptron.perceptron, tuple(each.requires_grad_() for each in inputs))


@pytest.mark.parametrize("dtype", PRECISIONS[1:], ids=str)
@pytest.mark.parametrize(("rows", "channels", "hidden"), [(300, 128, 256), (37, 48, 96), (1, 32, 64), (129, 256, 512)])
def test_a_perceptron_and_its_gradients_are_the_plain_ones(rows, channels, hidden, dtype):
    shapes = [(rows, channels), (hidden, channels), (hidden,), (channels, hidden), (channels,)]
    inputs = [random(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
    for place in (1, 3):
        inputs[place] /= 8
    arrives = random(rows, channels, seed=9, dtype=dtype)

    def found(*given: Tensor) -> Tensor:
        tokens, first, first_bias, second, second_bias = given
        hidden_layer = torch.nn.functional.gelu(tokens @ first.T + first_bias)
        return hidden_layer @ second.T + second_bias

    exact = [each.double().requires_grad_() for each in inputs]
    right = found(*exact)
    mine = [inputs[0].detach().requires_grad_(), *(each.float().requires_grad_() for each in inputs[1:])]
    output = perceptron.perceptron(*mine)
    assert error(output, right.detach()) < TOLERANCE[dtype]
    pairs = zip(
        torch.autograd.grad(output, mine, arrives), torch.autograd.grad(right, exact, arrives.double()), strict=True
    )
    assert max(error(*pair) for pair in pairs) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", PRECISIONS[1:], ids=str)
@pytest.mark.parametrize(("rows", "channels"), [(300, 128), (37, 48), (1, 32), (70, 256)])
def test_a_projection_is_the_plain_one_and_hands_the_tokens_on(rows, channels, dtype):
    from protoformer.model.fused import projection_kernels

    tokens, bias = (
        random(rows, channels, seed=0, dtype=torch.float32),
        random(2 * channels, seed=1, dtype=torch.float32),
    )
    weight, narrowed = random(2 * channels, channels, seed=2, dtype=dtype), torch.empty_like(tokens, dtype=dtype)
    found = projection_kernels.project(tokens, weight, bias, narrowed)
    assert torch.equal(narrowed, tokens.to(dtype))
    right = narrowed.double() @ weight.double().T + bias.double()
    assert error(found, right) < TOLERANCE[dtype]
    assert torch.equal(projection_kernels.project(tokens, weight, bias, None), found)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [(2, 2, 10, 32, 37), (1, 4, 100, 64, 70), (1, 2, 7, 24, 50)], ids=str)
def test_queries_made_on_the_way_are_those_of_a_layer(shape, dtype):
    from protoformer.model.fused import synchronization_kernels as kernels

    features, centres, _, *rest = synchronize_inputs(*shape, dtype=dtype)
    channels = features.shape[2]
    weight, bias = random(channels, channels, seed=7, dtype=dtype), random(channels, seed=8, dtype=torch.float32)
    queries = features.to(dtype).double() @ weight.double().T + bias.double()
    attended, assignment = kernels.synchronize(features, centres, (weight, bias), *rest)
    right = plain.gated(queries, *(each.double() for each in rest), assignment)
    assert error(attended, right) < TOLERANCE[dtype]


# Through the network's own parts: the choice of the kernels, autocast, torch.compile and CUDA graphs.


def mixer() -> Mixer:
    torch.manual_seed(0)
    return Mixer(Prototyping(128, 4), LatentSynchronization(128, 4)).to(DEVICE)


def mixed(module: torch.nn.Module, half: bool) -> list[Tensor]:
    """What a mixer adds to the tokens of two 33 x 47 maps, and the gradients of the tokens and of its parameters."""
    tokens = 4 * random(2, 33 * 47, 128, seed=0, dtype=torch.float32)
    tokens.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        output, _ = module(tokens, (33, 47))
    learned = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]
    found = torch.autograd.grad(output.float().square().sum(), [tokens, *learned])
    return [output.detach().float(), *found]


@on_gpu
def test_a_mixer_in_single_precision_is_the_plain_one():
    module = mixer()
    ours = mixed(module, half=False)
    with fused.computed("plain"):
        theirs = mixed(module, half=False)
    for mine, other in zip(ours, theirs, strict=True):
        assert error(mine, other.double()) < 1e-3  # pixels that tie may go to either of two prototypes


@on_gpu
def test_half_precision_strays_no_further_than_in_the_plain_version():
    module = mixer()
    exact, ours = mixed(module, half=False), mixed(module, half=True)
    with fused.computed("plain"):
        theirs = mixed(module, half=True)
    for right, mine, other in zip(exact, ours, theirs, strict=True):
        assert error(mine, right.double()) < 1.5 * error(other, right.double()) + 1e-2


@on_gpu
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_a_compiled_mixer_is_one_graph_with_the_same_results():
    module = mixer()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True)
    for mine, other in zip(mixed(compiled, half=True), mixed(module, half=True), strict=True):
        assert error(mine, other.double()) < 3e-2


@on_gpu
def test_a_cuda_graph_replays_what_was_captured():
    module, tokens = mixer().requires_grad_(False), random(2, 33 * 47, 128, seed=0, dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        for _ in range(2):
            module(tokens, (33, 47))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, _ = module(tokens, (33, 47))
        tokens.mul_(-0.5)
        graph.replay()
        expected, _ = module(tokens, (33, 47))
    torch.testing.assert_close(captured, expected)


@on_gpu
@pytest.mark.parametrize(
    ("images", "size", "channels", "count"),
    [(24, (80, 112), 128, 100), (24, (40, 56), 256, 100), (2, (270, 480), 128, 100), (8, (40, 56), 256, 200)],
)
def test_a_mixer_of_the_size_of_a_training_batch_strays_no_further_than_the_plain_one(images, size, channels, count):
    """Launches that fill the GPU, many times over: what a small map does not show."""
    torch.manual_seed(0)
    heads = channels // 32
    module = Mixer(Prototyping(channels, heads, count), LatentSynchronization(channels, heads)).to(DEVICE)
    tokens = random(images, size[0] * size[1], channels, seed=0, dtype=torch.float32).requires_grad_()
    learned = [each for name, each in module.named_parameters() if not name.endswith("prototyping.query.bias")]

    def found(half: bool) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output, _ = module(tokens, size)
        gradients = torch.autograd.grad(output.float().square().sum(), [tokens, *learned])
        return [output.detach().float(), *gradients]

    ours = found(half=True)
    for _ in range(20):
        assert torch.equal(found(half=True)[0], ours[0])
    with fused.computed("plain"):
        exact, theirs = found(half=False), found(half=True)
    for right, mine, other in zip(exact, ours, theirs, strict=True):
        assert error(mine, right.double()) < 1.5 * error(other, right.double()) + 1e-2


@on_gpu
def test_nothing_of_the_size_of_memberships_is_allocated():
    """Four heads of 100 prototypes: memberships would take 12.5 times the memory of keys and values together."""
    inputs = sums_inputs(1, 4, 100, 32, 100_000, torch.bfloat16)
    features = inputs[1].nbytes
    sums_and_gradients(inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    queries, keys, values = (each.requires_grad_() for each in inputs)
    sums, mass = fused.prototype_sums(queries, keys, values)
    assert torch.cuda.max_memory_allocated() - before < 0.5 * features
    torch.autograd.grad(sums.sum() + mass.sum(), (queries, keys, values))
    assert torch.cuda.max_memory_allocated() - before < 3 * features  # two of them are the gradients themselves


@on_gpu
@pytest.mark.parametrize(("count", "width", "dtype"), [(300, 32, torch.float32), (10, 128, torch.float16)])
def test_what_the_kernels_do_not_take_is_computed_in_blocks(count, width, dtype):
    inputs = sums_inputs(1, 2, count, width, 77, dtype)
    sums, mass = fused.prototype_sums(*inputs)
    exact = plain.prototype_sums(*(each.double() for each in inputs))
    assert max(error(sums, exact[0]), error(mass, exact[1])) < 1e-5
