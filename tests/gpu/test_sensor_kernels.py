"""The kernels of lens, sensor and codec agree with torch."""

import pytest
import torch
from torch import Tensor

from protoformer.synthetic.sensor import compress, defocus, expose, sensor_noise, steps_of, vignette
from protoformer.synthetic.textures import noise

pytestmark = pytest.mark.usefixtures("requires_kernels")
slow = pytest.mark.slow_interpreted
SIZES = [pytest.param((45, 61), marks=slow), (16, 32), (33, 24), (17, 3), (1, 1)]


@pytest.fixture(params=SIZES, ids=str)
def images(request: pytest.FixtureRequest) -> Tensor:
    """Four images, on the CPU."""
    images = [noise(64, 64, torch.Generator().manual_seed(seed), falloff=0.5) for seed in range(4)]
    return torch.stack(images)[..., : request.param[0], : request.param[1]].contiguous()


def uniform(count: int, low: float, high: float, seed: int) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("quality", [5.0, 40.0, 63.0, 90.0, 100.0])
def test_compression_equals_torch(images: Tensor, quality: float, numbers) -> None:
    from protoformer.synthetic.kernels.sensor_kernels import compressed

    qualities = torch.tensor([quality, 0.5 * quality, quality, max(1.0, quality - 7)])
    actual = compressed(images.to(numbers.device), steps_of(qualities).to(numbers.device)).cpu()
    expected = compress(images, qualities)
    difference = (actual - expected).abs()
    assert (difference > 1e-6).float().mean() < 1e-3  # where the last bit changes the rounding
    assert difference.mean() < 1e-4


@slow
def test_the_codec_keeps_every_gray_level(numbers) -> None:
    from protoformer.synthetic.kernels.sensor_kernels import compressed

    gray = (torch.arange(256) / 255).view(-1, 1, 1, 1).expand(-1, 3, 16, 16).contiguous()
    steps = steps_of(torch.full((256,), 100.0)).to(numbers.device)
    assert torch.equal(compressed(gray.to(numbers.device), steps).cpu(), gray)


def test_the_sensor_equals_torch(images: Tensor, numbers) -> None:
    from protoformer.synthetic.kernels.sensor_kernels import developed_, key_words

    count = len(images)
    gain = torch.stack([uniform(count, 0.5, 2.0, seed) for seed in range(3)], dim=1)
    gamma, lift, dim, read, shot = (
        uniform(count, low, high, 10 + seed)
        for seed, (low, high) in enumerate([(0.6, 1.6), (-0.1, 0.1), (0.0, 0.6), (0.0, 0.05), (0.0, 0.1)])
    )
    gamma[1] = 1.0
    keys = torch.tensor([3, -4, 2**40 + 7, 1_000_003 * 5])
    images[0, :, 0] = 0  # black stays black for any gamma
    expected = sensor_noise(vignette(expose(images, gain, gamma, lift), dim), keys, read, shot)
    settings = torch.cat((gain, torch.stack((gamma, lift, dim, read, shot), dim=1)), dim=1)
    actual = images.clone().to(numbers.device)
    developed_(actual, settings.to(numbers.device), key_words(keys).to(numbers.device))
    assert (actual.cpu() - expected).abs().max() < 1e-5


def test_a_perfect_sensor_does_not_change_the_image(images: Tensor, numbers) -> None:
    from protoformer.synthetic.kernels.sensor_kernels import developed_, key_words

    settings = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]).repeat(len(images), 1).to(numbers.device)
    actual = images.clone().to(numbers.device)
    developed_(actual, settings, key_words(torch.arange(len(images))).to(numbers.device))
    assert torch.equal(actual.cpu(), images)


def test_defocus_equals_torch_and_does_not_change_sharp_images(images: Tensor, numbers) -> None:
    from protoformer.synthetic.kernels.sensor_kernels import defocus_

    depth = 0.5 + 8 * images.flip(0)[:, :1]
    depth[0, :, :3] = torch.inf
    focus, aperture = torch.tensor([2.0, 3.0, 9.0, torch.inf]), torch.tensor([30.0, 0.0, 8.0, 300.0])
    which = (aperture > 0).nonzero()[:, 0]
    actual = images.clone().to(numbers.device)
    lens = torch.stack((aperture, focus), dim=1).to(numbers.device)
    defocus_(actual, depth.to(numbers.device), lens, which.to(numbers.device))
    expected = defocus(images, depth, focus, aperture)
    assert (actual.cpu() - expected).abs().max() < 1e-5
    assert torch.equal(actual[1].cpu(), images[1])
    assert images[0].numel() < 20 or (expected[0] - images[0]).abs().max() > 0.01
