"""Layers with fused kernels and their gradients agree with torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.models import layers
from protoformer.models.layers import FusedConv, MapNorm, PositionConv, TokenNorm

pytestmark = pytest.mark.usefixtures("requires_kernels")


@pytest.fixture(autouse=True)
def _force_kernels(monkeypatch):
    monkeypatch.setattr(layers, "use_kernels", lambda *_: True)


def evaluate(compute, inputs: list[Tensor], numbers) -> list[Tensor]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    output = compute(*leaves)
    gradient = numbers.random(*output.shape, seed=9, dtype=torch.float32).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]


def assert_close(actual: list[Tensor], expected: list[Tensor], dtype: torch.dtype, numbers) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert numbers.error(one, other) < numbers.tolerance[dtype]


@pytest.mark.parametrize("shape", [(2, 37, 64), (1, 1, 192), (3, 700, 32), (1, 5, 48)], ids=str)
def test_layer_norm(shape, dtype, numbers):
    tokens = 3 * numbers.random(*shape, seed=0, dtype=dtype) + 1
    weight, bias = (numbers.random(shape[-1], seed=seed, dtype=torch.float32) for seed in (1, 2))
    norm = TokenNorm(shape[-1]).to(tokens.device)

    def fused(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (tokens,))

    def reference(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(tokens.float(), shape[-1:], weight, bias)

    inputs = [tokens, weight, bias]
    assert_close(evaluate(fused, inputs, numbers), evaluate(reference, inputs, numbers), dtype, numbers)


@pytest.mark.parametrize("shape", [(2, 32, 7, 9), (1, 64, 33, 20), (3, 24, 2, 2)], ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_instance_norm(shape, relu, dtype, numbers):
    maps = 3 * numbers.random(*shape, seed=0, dtype=dtype) + 1

    def reference(maps: Tensor) -> Tensor:
        normed = F.instance_norm(maps.float())
        return (F.relu(normed) if relu else normed).to(maps.dtype)

    assert_close(evaluate(MapNorm(relu), [maps], numbers), evaluate(reference, [maps], numbers), dtype, numbers)


def test_instance_norm_of_nearly_constant_maps(numbers):
    maps = 100 + 0.1 * numbers.random(1, 16, 20, 30, seed=0, dtype=torch.float32)
    assert numbers.error(MapNorm()(maps), F.instance_norm(maps.double())) < 1e-3


def test_nan_is_kept(numbers):
    maps = numbers.random(1, 16, 4, 5, seed=0, dtype=torch.float32)
    maps[0, 3, 2, 2] = torch.nan
    assert MapNorm(relu=True)(maps)[0, 3].isnan().all()
    conv = FusedConv(16, 8, 1, relu=True).to(maps.device)
    assert conv(maps)[0, :, 2, 2].isnan().all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("channels", [3, 96, 200])
def test_bias_and_activation(relu, channels, numbers):
    maps = numbers.random(2, 5, 9, 11, seed=0, dtype=torch.float32)
    weight = numbers.random(channels, 5, 3, 3, seed=1, dtype=torch.float32) / 7
    bias = numbers.random(channels, seed=2, dtype=torch.float32)
    conv = FusedConv(5, channels, 3, relu, padding=1).to(maps.device)

    def fused(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"weight": weight, "bias": bias}, (maps,))

    def reference(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        plain = F.conv2d(maps, weight, bias, padding=1)
        return F.relu(plain) if relu else plain

    inputs = [maps, weight, bias]
    assert_close(evaluate(fused, inputs, numbers), evaluate(reference, inputs, numbers), torch.float32, numbers)


@pytest.mark.usefixtures("requires_gpu")
@pytest.mark.parametrize("relu", [False, True])
def test_bias_and_activation_of_half_precision(relu, numbers):
    maps = numbers.random(2, 64, 46, 62, seed=0, dtype=torch.float32).to(memory_format=torch.channels_last)
    torch.manual_seed(0)
    conv = FusedConv(64, 96, 3, relu, padding=1).cuda()
    plain = nn.Conv2d(64, 96, 3, padding=1).cuda()
    plain.load_state_dict(conv.state_dict())
    with torch.autocast("cuda", torch.bfloat16):
        actual = evaluate(conv, [maps], numbers)
        # Rounding decides whether values near zero are cut off by the ReLU, and their gradient with them.
        expected = evaluate(lambda maps: plain(maps) * (actual[0] > 0) if relu else plain(maps), [maps], numbers)
    assert_close(actual, expected, torch.bfloat16, numbers)


@pytest.mark.parametrize("shape", [(2, 32, 5, 7), (1, 24, 1, 1), (1, 192, 3, 9), (3, 64, 8, 2)], ids=str)
def test_position(shape, numbers):
    channels = shape[1]
    maps = numbers.random(*shape, seed=0, dtype=torch.float32)
    weight = numbers.random(channels, 1, 3, 3, seed=1, dtype=torch.float32)
    bias = numbers.random(channels, seed=2, dtype=torch.float32)
    conv = PositionConv(channels).to(maps.device)

    def fused(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"weight": weight, "bias": bias}, (maps,))

    def reference(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return maps + F.conv2d(maps, weight, bias, padding=1, groups=channels)

    inputs = [maps, weight, bias]
    assert_close(evaluate(fused, inputs, numbers), evaluate(reference, inputs, numbers), torch.float32, numbers)
