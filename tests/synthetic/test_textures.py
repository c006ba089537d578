"""Multi-octave noise textures."""

import pytest
import torch

from protoformer.synthetic.textures import noise


def made(seed: int, height: int = 40, width: int = 56, **settings: float) -> torch.Tensor:
    return noise(height, width, torch.Generator().manual_seed(seed), **settings)


@pytest.mark.parametrize("falloff", [0.1, 0.7, 0.95])
@pytest.mark.parametrize("coarsest", [2, 8, 64])
def test_noise_is_an_image(coarsest: int, falloff: float) -> None:
    image = made(0, coarsest=coarsest, falloff=falloff)
    assert image.shape == (3, 40, 56) and image.dtype == torch.float32
    assert image.min() >= 0 and image.max() <= 1


def test_noise_is_decided_by_its_generator_alone() -> None:
    torch.manual_seed(1)
    one = made(4)
    torch.manual_seed(2)
    assert torch.equal(made(4), one)
    assert not torch.equal(made(5), one)


def test_one_generator_gives_a_new_texture_every_time() -> None:
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(noise(16, 16, generator), noise(16, 16, generator))


def test_noise_has_contrast_in_every_channel() -> None:
    assert (made(0, 128, 128).std(dim=(1, 2)) > 0.12).all()


def test_noise_that_falls_off_slowly_is_grainier() -> None:
    def grain(image: torch.Tensor) -> float:
        return float(image.diff(dim=2).abs().mean())

    assert grain(made(0, 128, 128, falloff=0.9)) > 1.5 * grain(made(0, 128, 128, falloff=0.4))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 2), (7, 130), (130, 7)])
def test_noise_comes_in_any_size(size: tuple[int, int]) -> None:
    image = made(0, *size)
    assert image.shape == (3, *size)
    assert image.isfinite().all()
