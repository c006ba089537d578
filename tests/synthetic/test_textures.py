"""Procedural textures, silhouettes and multi-octave noise."""

import pytest
import torch
from torch import Tensor

from protoformer.synthetic.textures import FAMILIES, cutout, noise, spectral_noise, voronoi

SIDE = 64
MANY = 24


def several(name: str, count: int = MANY, side: int = SIDE) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [FAMILIES[name](side, generator) for _ in range(count)]


def cutouts(count: int = 40, side: int = SIDE) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [cutout(side, generator) for _ in range(count)]


def test_there_are_seven_families() -> None:
    assert set(FAMILIES) == {"cloud", "stripes", "cells", "gradient", "marks", "flat", "speckle"}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_texture_is_an_image_of_middling_brightness(name: str) -> None:
    for texture in several(name):
        assert texture.shape == (3, SIDE, SIDE) and texture.dtype == torch.float32
        assert texture.min() >= 0 and texture.max() <= 1
        assert 0.2 < texture.mean() < 0.8
        # Little of it is so dark or so bright that what was there is lost.
        assert ((texture < 0.004) | (texture > 0.996)).float().mean() < 0.15


@pytest.mark.parametrize("name", FAMILIES)
def test_a_texture_is_decided_by_its_generator_alone(name: str) -> None:
    torch.manual_seed(1)
    first = several(name, 2)
    torch.manual_seed(2)
    again = several(name, 2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("name", FAMILIES)
def test_no_texture_is_dead(name: str) -> None:
    assert all(texture.std(dim=(1, 2)).max() > 0.004 for texture in several(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_textures_come_in_any_side(name: str) -> None:
    for side in (16, 17, 32):
        assert all(texture.isfinite().all() and texture.shape == (3, side, side) for texture in several(name, 8, side))


def test_flat_is_the_flattest_family() -> None:
    contrast = {name: sum(float(texture.std(dim=(1, 2)).mean()) for texture in several(name)) for name in FAMILIES}
    assert min(contrast, key=contrast.__getitem__) == "flat"
    assert contrast["flat"] < MANY * 0.06


def test_colors_vary_and_some_are_saturated() -> None:
    means = torch.stack([texture.mean(dim=(1, 2)) for name in FAMILIES for texture in several(name)])
    saturation = means.amax(dim=1) - means.amin(dim=1)
    assert means.mean(dim=1).std() > 0.08
    assert saturation.median() < 0.25 < saturation.max()


def test_noise_has_unit_deviation_and_no_mean() -> None:
    field = spectral_noise(64, torch.Generator().manual_seed(0), slope=1.0)
    assert float(field.mean()) == pytest.approx(0, abs=1e-5)
    assert float(field.std()) == pytest.approx(1, rel=1e-4)


def test_noise_of_a_steeper_slope_is_smoother() -> None:
    def roughness(slope: float) -> float:
        return float(spectral_noise(64, torch.Generator().manual_seed(0), slope=slope).diff(dim=1).std())

    assert roughness(0.0) > 2 * roughness(1.0) > 4 * roughness(2.0)


def test_noise_is_drawn_out_along_x_where_it_is_stretched() -> None:
    field = spectral_noise(64, torch.Generator().manual_seed(0), slope=0.7, stretch=0.1)
    assert field.diff(dim=0).std() > 2 * field.diff(dim=1).std()


@pytest.mark.parametrize("jitter", [0.0, 0.6, 1.0])
def test_every_texel_belongs_to_the_nearest_seed(jitter: float) -> None:
    side, pieces = 48, 6
    edge, owner, center = voronoi(side, pieces, jitter, torch.Generator().manual_seed(0))
    y, x = 0.5 + jitter * (torch.rand(2, pieces, pieces, generator=torch.Generator().manual_seed(0)) - 0.5)
    if jitter == 0:
        x = x + 0.5 * (torch.arange(pieces) % 2)[:, None]
    row, column = torch.meshgrid(torch.arange(pieces), torch.arange(pieces), indexing="ij")
    seeds = torch.stack((y + row, x + column), dim=-1).view(-1, 2)
    line = (torch.arange(side) + 0.5) * (pieces / side)
    texels = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).view(-1, 1, 2)
    away = (texels - seeds + pieces / 2) % pieces - pieces / 2  # the pattern repeats
    nearest = away.norm(dim=-1).topk(2, largest=False)
    torch.testing.assert_close(center.flatten(), nearest.values[:, 0], atol=1e-4, rtol=0)
    unique = nearest.values[:, 1] - nearest.values[:, 0] > 1e-3
    assert torch.equal(owner.flatten()[unique], nearest.indices[:, 0][unique])
    # A second seed farther off may lie outside the nine cells looked at, where no joint is near.
    close = nearest.values[:, 1] < 1
    torch.testing.assert_close(
        edge.flatten()[close], (nearest.values[:, 1] - nearest.values[:, 0])[close], atol=1e-4, rtol=0
    )


def test_a_cut_out_is_an_image_with_alpha() -> None:
    for texture in cutouts():
        assert texture.shape == (4, SIDE, SIDE) and texture.dtype == torch.float32
        assert texture.min() >= 0 and texture.max() <= 1


def test_a_cut_out_leaves_two_texels_along_every_border() -> None:
    for texture in cutouts():
        assert texture[3, 2:-2, 2:-2].max() > 0.5
        assert texture[3, [0, 1, -2, -1]].max() == texture[3][:, [0, 1, -2, -1]].max() == 0


def test_a_cut_out_is_centered_and_fills_the_square() -> None:
    for texture in cutouts():
        solid = texture[3] > 0.02
        for axis in (0, 1):
            line = solid.any(dim=axis).nonzero()[:, 0]
            first, last = int(line[0]), SIDE - 1 - int(line[-1])
            assert abs(first - last) <= 4
        extents = [int(solid.any(dim=axis).sum()) for axis in (0, 1)]
        assert max(extents) >= 0.8 * SIDE and min(extents) >= 0.4 * SIDE


def test_a_cut_out_is_seen_or_not_but_for_its_outline() -> None:
    between = torch.stack([((alpha > 0.02) & (alpha < 0.98)).float().mean() for *_, alpha in cutouts(40, 128)])
    assert between.median() < 0.1


def test_cut_outs_differ_in_how_much_they_cover() -> None:
    cover = torch.stack([alpha.mean() for *_, alpha in cutouts()])
    assert cover.min() > 0.03 and cover.max() < 0.95
    assert cover.std() > 0.08


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
