"""Texture bank: packing, sampling, and banks built from a folder of images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.synthetic.texture_bank import TextureBank, bank_from_folder, build_bank, procedural_bank

SIDE = 8


def random_bank(seed: int = 0) -> TextureBank:
    generator = torch.Generator().manual_seed(seed)
    surfaces = torch.randint(256, (3, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    cutouts = torch.randint(256, (2, 4, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    return build_bank(surfaces, cutouts, SIDE)


def texel_centers(side: int) -> tuple[Tensor, Tensor]:
    line = (torch.arange(side) + 0.5) / side
    v, u = torch.meshgrid(line, line, indexing="ij")
    return u, v


def at(bank: TextureBank, texture: int, u: float, v: float, level: float) -> Tensor:
    """One sample: 4."""
    return bank.sample(torch.tensor(texture), torch.tensor(u), torch.tensor(v), torch.tensor(level))


def plainly_sampled(bank: TextureBank, texture: int, u: float, v: float, level: float) -> Tensor:
    """What `sample` promises, one number at a time."""
    level = min(max(level, 0.0), bank.levels - 1.0)
    u, v = 1 - abs(1 - u % 2), 1 - abs(1 - v % 2)

    def bilinear(whole: int) -> Tensor:
        image = bank.level(texture, whole).double() / 255
        size = image.shape[-1]
        x, y = (min(max(c * size - 0.5, 0.0), size - 1.0) for c in (u, v))
        left, top = int(x), int(y)
        right, bottom = min(left + 1, size - 1), min(top + 1, size - 1)
        upper = image[:, top, left] * (1 - x + left) + image[:, top, right] * (x - left)
        lower = image[:, bottom, left] * (1 - x + left) + image[:, bottom, right] * (x - left)
        return upper * (1 - y + top) + lower * (y - top)

    finer = int(level)
    share = level - finer
    return bilinear(finer) * (1 - share) + bilinear(min(finer + 1, bank.levels - 1)) * share


def test_a_bank_counts_its_textures_and_levels() -> None:
    bank = random_bank()
    assert (bank.surfaces, bank.cutouts, bank.count, bank.levels) == (3, 2, 5, 4)
    assert [bank.offset(level) for level in range(4)] == [0, 64, 80, 84]
    assert bank.stride == 85
    assert bank.texels.shape == (5 * 85,) and bank.texels.dtype == torch.int32
    assert bank.silhouettes.shape == (3 * 64,) and bank.silhouettes.dtype == torch.int32


def test_a_texel_packs_red_lowest_and_alpha_highest() -> None:
    color = torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None].expand(3, 4, 4)
    assert build_bank([color], [], 4).texels.tolist() == [(1 | 2 << 8 | 3 << 16 | 255 << 24) - 2**32] * 21


def test_the_finest_level_is_the_texture_itself() -> None:
    surfaces = torch.randint(256, (40, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    bank = build_bank(surfaces, [], 4)
    for number, surface in enumerate(surfaces):
        assert torch.equal(bank.level(number, 0)[:3], surface)
        assert bank.level(number, 0)[3].eq(255).all()


def test_sampling_at_texel_centers_returns_texels_exactly() -> None:
    bank = random_bank()
    for texture in range(bank.count):
        for level in range(bank.levels):
            u, v = texel_centers(SIDE >> level)
            sampled = bank.sample(torch.full_like(u, texture, dtype=torch.int64), u, v, torch.full_like(u, level))
            assert torch.equal(sampled, bank.level(texture, level).float() / 255)


def test_half_way_between_texels_is_their_mean() -> None:
    bank = random_bank()
    texels = bank.level(1, 0).double() / 255
    expected = texels[:, 2:4, 5:7].mean(dim=(1, 2)).float()
    torch.testing.assert_close(at(bank, 1, 6 / SIDE, 3 / SIDE, 0.0), expected)


def test_half_way_between_levels_is_the_mean() -> None:
    bank = random_bank()
    fine, coarse = at(bank, 2, 0.3, 0.6, 1.0), at(bank, 2, 0.3, 0.6, 2.0)
    torch.testing.assert_close(at(bank, 2, 0.3, 0.6, 1.5), (fine + coarse) / 2)
    torch.testing.assert_close(at(bank, 2, 0.3, 0.6, 1.25), 0.75 * fine + 0.25 * coarse)


def test_levels_beyond_those_there_are_count_as_the_last() -> None:
    bank = random_bank()
    for beyond in (9.0, 3.2, float("inf")):
        assert torch.equal(at(bank, 0, 0.2, 0.9, beyond), at(bank, 0, 0.2, 0.9, 3.0))
    for beyond in (-0.4, -7.0, float("-inf")):
        assert torch.equal(at(bank, 0, 0.2, 0.9, beyond), at(bank, 0, 0.2, 0.9, 0.0))


def test_sampling_agrees_with_the_plain_way() -> None:
    bank = random_bank()
    generator = torch.Generator().manual_seed(1)
    texture = torch.randint(bank.count, (200,), generator=generator)
    u, v = torch.rand(2, 200, generator=generator) * 7 - 3
    level = torch.rand(200, generator=generator) * 5 - 1
    sampled = bank.sample(texture, u, v, level)
    everything = zip(texture.tolist(), u.tolist(), v.tolist(), level.tolist(), strict=True)
    expected = torch.stack([plainly_sampled(bank, *one) for one in everything], dim=1).float()
    torch.testing.assert_close(sampled, expected, atol=1e-5, rtol=0)


def test_a_texture_repeats_by_mirroring() -> None:
    bank = random_bank()
    here = at(bank, 0, 0.28125, 0.71875, 0.5)
    for u, v in ((-0.28125, 0.71875), (1.71875, 0.71875), (2.28125, -0.71875), (0.28125, 1.28125), (-3.71875, 4.71875)):
        assert torch.equal(at(bank, 0, u, v, 0.5), here)
    assert not torch.equal(at(bank, 0, 1.28125, 0.71875, 0.5), here)


def test_a_texture_and_a_level_stand_for_many_positions() -> None:
    bank = random_bank()
    u, v = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0))
    texture, level = torch.tensor([[0], [4], [2]]), torch.tensor([[0.3], [1.2], [2.7]])
    full = bank.sample(texture.expand(3, 7), u, v, level.expand(3, 7))
    assert full.shape == (4, 3, 7)
    assert torch.equal(bank.sample(texture, u, v, level), full)
    assert torch.equal(bank.covers(texture, u, v), bank.covers(texture.expand(3, 7), u, v))


def test_sampling_leaves_its_arguments_alone() -> None:
    bank = random_bank()
    arguments = [torch.tensor([4], dtype=torch.int32), *torch.tensor([[2.3], [-1.2], [1.6]])]
    before = [argument.clone() for argument in arguments]
    bank.sample(*arguments)
    bank.covers(*arguments[:3])
    assert all(torch.equal(one, other) for one, other in zip(arguments, before, strict=True))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_position_that_is_not_finite_harms_nothing(wrong: float) -> None:
    bank = random_bank()
    u, v = torch.tensor([wrong, 0.5, wrong, 0.1]), torch.tensor([0.5, wrong, wrong, 0.2])
    texture, level = torch.tensor([0, 4, 1, 2]), torch.tensor([0.0, 1.0, wrong, wrong])
    sampled = bank.sample(texture, u, v, level)
    assert sampled.shape == (4, 4) and sampled[:, :2].isnan().all()
    assert bank.covers(torch.tensor([3, 4, 3, 3]), u, v)[:3].tolist() == [False] * 3


def test_the_coarsest_level_is_the_mean_color() -> None:
    surface = torch.randint(256, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    coarsest = build_bank([surface], [], 16).level(0, 4)
    assert coarsest[:3, 0, 0].tolist() == surface.double().mean(dim=(1, 2)).round().tolist()
    assert coarsest[3, 0, 0] == 255


def test_each_level_is_the_means_of_two_by_two() -> None:
    surface = torch.randint(256, (3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = surface.double().view(3, 4, 2, 4, 2).mean(dim=(2, 4))
    assert (build_bank([surface], [], 8).level(0, 1)[:3].double() - expected).abs().max() <= 0.5


def disc(side: int, hidden: int) -> Tensor:
    """A cut-out of one color with anything under its transparent part: 4 x side x side uint8."""
    line = torch.arange(side) + 0.5 - side / 2
    alpha = ((side * 0.4 - torch.hypot(line[:, None], line)) + 0.5).clamp(0, 1).mul(255).round()
    color = torch.tensor([200.0, 120.0, 40.0])[:, None, None].expand(3, side, side)
    return torch.cat((torch.where(alpha > 0, color, float(hidden)), alpha[None])).to(torch.uint8)


@pytest.mark.parametrize("hidden", [0, 255])
def test_a_cut_out_has_no_fringe_of_a_hidden_color(hidden: int) -> None:
    bank = build_bank([], [disc(32, hidden)], 32)
    generator = torch.Generator().manual_seed(0)
    u, v = torch.rand(2, 4000, generator=generator)
    sampled = bank.sample(torch.zeros(4000, dtype=torch.int64), u, v, torch.rand(4000, generator=generator) * 5)
    expected = torch.tensor([200.0, 120.0, 40.0])[:, None] / 255
    assert (sampled[:3] - expected).abs().max() < 1 / 255
    assert sampled[3].min() == 0 and sampled[3].max() == 1


def test_coarser_colors_of_a_cut_out_weigh_as_much_as_they_are_seen() -> None:
    shape = torch.zeros(4, 4, 4, dtype=torch.uint8)
    shape[:, 1, 1] = torch.tensor([240, 0, 0, 255])
    shape[:, 1, 2] = torch.tensor([0, 0, 80, 51])
    bank = build_bank([], [shape], 4)
    assert bank.level(0, 1)[3].tolist() == [[64, 13], [0, 0]]
    assert bank.level(0, 1)[:3, 0, 0].tolist() == [240, 0, 0]
    # 255 : 51 is 5 : 1.
    assert bank.level(0, 2)[:, 0, 0].tolist() == [200, 0, 13, 19]


def test_covers_is_alpha_of_at_least_a_half() -> None:
    bank = build_bank(torch.zeros(3, 3, 32, 32, dtype=torch.uint8), [disc(32, 0), random_shape(32)], 32)
    u, v = torch.rand(2, 3000, generator=torch.Generator().manual_seed(0))
    for texture in (3, 4):
        alpha = bank.sample(torch.full((3000,), texture), u, v, torch.zeros(3000))[3]
        sure = (alpha - 0.5).abs() > 1e-4
        covered = bank.covers(torch.full((3000,), texture), u, v)
        assert covered.dtype == torch.bool
        assert torch.equal(covered[sure], (alpha >= 0.5)[sure])
        assert covered.any() and not covered.all()


def random_shape(side: int) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    shape = torch.randint(256, (4, side, side), generator=generator, dtype=torch.uint8)
    shape[3, :2] = shape[3, -2:] = 0
    shape[3, :, :2] = shape[3, :, -2:] = 0
    return shape


def test_beyond_its_square_a_cut_out_covers_nothing() -> None:
    solid = torch.full((4, 8, 8), 255, dtype=torch.uint8)
    bank = build_bank([], [solid], 8)
    u, v = torch.tensor([-0.01, 1.01, 0.5, 0.5, -3.0, 1.5, 0.5]), torch.tensor([0.5, 0.5, -0.01, 1.01, 9.0, 0.5, 0.5])
    assert bank.covers(torch.zeros(7, dtype=torch.int64), u, v).tolist() == [False] * 6 + [True]


def test_a_surface_covers_everything() -> None:
    bank = random_bank()
    u, v = torch.rand(2, 500, generator=torch.Generator().manual_seed(0)) * 9 - 4
    assert bank.covers(torch.arange(500) % 3, u, v).all()


@pytest.mark.parametrize("side", [0, 2, 12, 100])
def test_a_side_that_is_no_power_of_two_is_refused(side: int) -> None:
    with pytest.raises(InputError, match=f"side is {side} texels; choose a power of two"):
        TextureBank(torch.empty(0), torch.empty(0), side, 0, 0)


def test_too_many_textures_for_a_bank_are_refused() -> None:
    with pytest.raises(InputError, match="30000 textures of 256 texels do not fit"):
        TextureBank(torch.empty(0), torch.empty(0), 256, 30_000, 0)


def test_the_same_seed_gives_the_same_bank() -> None:
    first = procedural_bank(16, 2, 1)
    procedural_bank.cache_clear()
    torch.manual_seed(5)
    again = procedural_bank(16, 2, 1)
    assert again is not first and again is procedural_bank(16, 2, 1)
    assert torch.equal(first.texels, again.texels) and torch.equal(first.silhouettes, again.silhouettes)
    assert not torch.equal(procedural_bank(16, 2, 2).texels, first.texels)


def test_a_procedural_bank_has_each_family_and_twice_as_many_cut_outs() -> None:
    bank = procedural_bank(16, 3)
    assert (bank.surfaces, bank.cutouts, bank.side) == (21, 6, 16)
    assert all(bank.level(texture, 0)[3].eq(255).all() for texture in range(21))
    for texture in range(21, 27):
        alpha = bank.level(texture, 0)[3]
        assert 0 < alpha[2:-2, 2:-2].sum() == alpha.sum()


def test_a_bank_moves_between_devices() -> None:
    bank = random_bank().to("meta")
    assert bank.texels.device.type == bank.silhouettes.device.type == "meta"
    assert (bank.side, bank.surfaces, bank.cutouts) == (SIDE, 3, 2)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., TextureBank]:
    """Save images by their names and read them as a bank of 16 texels without procedural ones."""

    def read(limit: int | None = None, **images: np.ndarray) -> TextureBank:
        for name, pixels in images.items():
            save(tmp_path / (name.replace("__", "/") + ".png"), pixels)
        return bank_from_folder(tmp_path, side=16, limit=limit, procedural=False)

    return read


def plain(red: int, height: int = 16, width: int = 16) -> np.ndarray:
    return np.full((height, width, 3), (red, 50, 100), dtype=np.uint8)


def reds(bank: TextureBank) -> list[int]:
    return [int(bank.level(texture, 0)[0, 8, 8]) for texture in range(bank.count)]


def test_a_folder_is_read_in_the_order_of_its_paths(folder) -> None:
    bank = folder(b__z=plain(3), a=plain(1), b__a=plain(2), c=plain(4))
    assert (bank.surfaces, bank.cutouts) == (4, 0)
    assert reds(bank) == [1, 2, 3, 4]
    assert bank.level(2, 0)[:, 0, 0].tolist() == [3, 50, 100, 255]


def test_a_limit_takes_images_spread_over_the_folder(folder) -> None:
    assert reds(folder(limit=3, **{f"i{number}": plain(number) for number in range(9)})) == [0, 3, 6]
    assert len(reds(folder(limit=99))) == 9


def test_a_square_from_the_middle_is_taken(folder) -> None:
    pixels = np.concatenate((plain(10, 16, 3), plain(20), plain(10, 16, 3)), axis=1)
    assert folder(a=pixels).level(0, 0)[0].unique().tolist() == [20]


@pytest.mark.parametrize("upright", [False, True])
def test_a_long_image_gives_the_squares_at_its_ends(folder, upright: bool) -> None:
    pixels = np.concatenate((plain(10, 10, 10), plain(20, 10, 10)), axis=1)
    bank = folder(a=pixels.swapaxes(0, 1) if upright else pixels)
    assert [bank.level(texture, 0)[0].unique().tolist() for texture in range(bank.count)] == [[10], [20]]


@pytest.mark.parametrize(("width", "count"), [(15, 1), (16, 2)])
def test_an_image_is_long_from_8_to_5(folder, width: int, count: int) -> None:
    assert folder(a=plain(1, 10, width)).surfaces == count


def test_a_larger_image_is_averaged(folder) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    expected = pixels.reshape(16, 2, 16, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert np.abs(folder(a=pixels).level(0, 0)[:3].numpy() - expected).max() <= 0.5001


def sprite(height: int, width: int) -> np.ndarray:
    """An opaque rectangle in a transparent, differently colored picture of 60 x 80."""
    pixels = np.full((60, 80, 4), (0, 255, 0, 0), dtype=np.uint8)
    pixels[5 : 5 + height, 7 : 7 + width] = (200, 50, 100, 255)
    return pixels


def test_an_image_with_transparency_becomes_a_cut_out_cropped_centered_and_fitted(folder) -> None:
    bank = folder(a=sprite(24, 48), b=plain(7))
    assert (bank.surfaces, bank.cutouts) == (1, 1)
    expected = torch.zeros(16, 16, dtype=torch.uint8)
    expected[5:11, 2:14] = 255
    assert torch.equal(bank.level(1, 0)[3], expected)
    # The green under the transparent part is nowhere.
    assert bank.level(1, 0)[:3].flatten(1).unique(dim=1).tolist() == [[200], [50], [100]]


def test_a_cut_out_with_next_to_nothing_to_see_is_left_out(folder) -> None:
    assert folder(a=sprite(10, 10), b=plain(7), c=sprite(0, 0)).cutouts == 0
    assert folder(a=sprite(12, 13), b=plain(7)).cutouts == 1


def test_an_image_whose_alpha_hides_nothing_is_a_surface(folder) -> None:
    pixels = np.concatenate((plain(9), np.full((16, 16, 1), 255, dtype=np.uint8)), axis=2)
    pixels[0, 0, 3] = 0  # a blemish
    bank = folder(a=pixels)
    assert (bank.surfaces, bank.cutouts) == (1, 0)
    assert bank.level(0, 0)[3].eq(255).all()


def test_procedural_textures_follow_the_folders_own(tmp_path: Path) -> None:
    save(tmp_path / "a.png", plain(9))
    save(tmp_path / "b.png", sprite(30, 40))
    bank, procedural = bank_from_folder(tmp_path, side=16), procedural_bank(16)
    assert (bank.surfaces, bank.cutouts) == (1 + procedural.surfaces, 1 + procedural.cutouts)
    assert torch.equal(bank.level(0, 0)[0].unique(), torch.tensor([9], dtype=torch.uint8))
    assert torch.equal(bank.level(1, 0), procedural.level(0, 0))
    assert torch.equal(bank.level(bank.surfaces + 1, 0), procedural.level(procedural.surfaces, 0))
    assert torch.equal(bank.silhouettes[-256:], procedural.silhouettes[-256:])


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".webp", ".bmp", ".tif", ".ppm"])
def test_the_usual_formats_are_read(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / f"a{suffix}", plain(90))
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "._a.png").write_text("left by a file manager")
    bank = bank_from_folder(tmp_path, side=16, procedural=False)
    assert bank.count == 1 and abs(reds(bank)[0] - 90) <= 3


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    save(tmp_path / "good.png", plain(1))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "bad.jpg").write_bytes(b"not a jpeg")
    with pytest.raises(InputError, match=r"deep/bad\.jpg .*\.$"):
        bank_from_folder(tmp_path, side=16)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no images in it; put .* files there\.$"):
        bank_from_folder(tmp_path)
    with pytest.raises(InputError, match=r"nowhere is not a folder; give .*\.$"):
        bank_from_folder(tmp_path / "nowhere")
    save(tmp_path / "a.png", sprite(30, 40))
    with pytest.raises(InputError, match=r"holds no opaque image; add photographs .*\.$"):
        bank_from_folder(tmp_path, side=16, procedural=False)


def test_the_real_textures_are_read() -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data" / "textures"
    if not root.is_dir():
        pytest.skip("the textures for training are not beside this checkout")
    bank = bank_from_folder(root, side=32, limit=180, procedural=False)
    assert bank.surfaces + bank.cutouts >= 165
    assert bank.cutouts >= 8 and bank.surfaces >= 40
    for texture in range(bank.surfaces, bank.count):
        alpha = bank.level(texture, 0)[3]
        assert 0 < alpha[2:-2, 2:-2].sum() == alpha.sum()
