"""Photometric augmentation: color jitter, blur, noise, erased boxes and moving shadows."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.datasets.augmentation.flow import Augmentation, augment_flow
from protoformer.datasets.augmentation.photometric import (
    MAX_SHADOW_MOTION,
    NUM_WAVES,
    Jitter,
    Light,
    add_noise,
    add_shadows,
    blur,
    erase,
    jitter,
    mean,
    recolor,
    relight_depth,
    relight_flow,
    rotate_hue,
)
from protoformer.errors import InputError
from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic.layers import random_scene
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample

IMAGES = torch.rand(3, 3, 20, 26, generator=torch.Generator().manual_seed(0))
# Nothing moves in the picture, so that what is left is color.
COLOR_ONLY = Augmentation(
    crop=(40, 56), scale_probability=0.0, flip_horizontal=0.0, flip_vertical=0.0, asymmetric=0.0, erase=0.0
)


def scene(seed: int = 0) -> FlowSample:
    return random_scene((40, 56), seed).render()


def turn(degrees: float) -> torch.Tensor:
    return torch.tensor(math.radians(degrees)).view(1, 1, 1, 1)


def pixel(red: float, green: float, blue: float) -> torch.Tensor:
    return torch.tensor([float(red), float(green), float(blue)]).view(1, 3, 1, 1)


def test_no_change_leaves_every_bit() -> None:
    assert torch.equal(jitter(IMAGES, [Jitter()] * 3), IMAGES)


def test_each_image_takes_its_own_change() -> None:
    changes = [Jitter(brightness=0.5), Jitter(contrast=1.3, hue=-0.4), Jitter()]
    together = jitter(IMAGES, changes)
    for index, change in enumerate(changes):
        assert torch.equal(together[index], jitter(IMAGES[index : index + 1], [change])[0])
    assert torch.equal(together[2], IMAGES[2]) and torch.equal(together[0], 0.5 * IMAGES[0])


def test_no_contrast_is_the_mean_gray_and_no_saturation_each_pixels_own() -> None:
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    gray = (IMAGES * weights).sum(dim=1, keepdim=True)
    flat = gray.mean(dim=(2, 3), keepdim=True).expand_as(IMAGES)
    torch.testing.assert_close(jitter(IMAGES, [Jitter(contrast=0.0)] * 3), flat, atol=2e-6, rtol=0)
    torch.testing.assert_close(jitter(IMAGES, [Jitter(saturation=0.0)] * 3), gray.expand_as(IMAGES))


def test_more_contrast_and_saturation_move_away_from_the_gray() -> None:
    calm = 0.4 + 0.2 * IMAGES  # so that nothing is cut off at 0 or 1
    stark = jitter(calm, [Jitter(contrast=1.5)] * 3)
    torch.testing.assert_close(stark.std(dim=(1, 2, 3)), 1.5 * calm.std(dim=(1, 2, 3)))
    vivid = jitter(calm, [Jitter(saturation=1.5)] * 3)
    spread, before = (image.amax(dim=1) - image.amin(dim=1) for image in (vivid, calm))
    torch.testing.assert_close(spread, 1.5 * before, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("degrees", "color"), [(60, (1, 1, 0)), (120, (0, 1, 0)), (180, (0, 1, 1)), (240, (0, 0, 1)), (-60, (1, 0, 1))]
)
def test_red_turns_around_the_wheel(degrees: float, color: tuple[float, float, float]) -> None:
    torch.testing.assert_close(rotate_hue(pixel(1, 0, 0), turn(degrees)), pixel(*color), atol=1e-5, rtol=0)


def test_a_third_of_a_turn_passes_the_channels_on() -> None:
    torch.testing.assert_close(rotate_hue(IMAGES, turn(120)), IMAGES.roll(1, dims=1), atol=1e-5, rtol=0)


def test_a_turn_and_back_is_no_turn() -> None:
    torch.testing.assert_close(rotate_hue(rotate_hue(IMAGES, turn(50)), turn(-50)), IMAGES, atol=1e-5, rtol=0)


@pytest.mark.parametrize("degrees", [-170, -30, 45, 57.3, 120])
def test_gray_stays_gray_whatever_the_hue(degrees: float) -> None:
    gray = IMAGES[:, :1].expand(-1, 3, -1, -1)
    assert torch.equal(rotate_hue(gray, turn(degrees)), gray)


def test_hue_keeps_the_brightest_and_the_darkest_channel() -> None:
    turned = rotate_hue(IMAGES, turn(77))
    torch.testing.assert_close(turned.amax(dim=1), IMAGES.amax(dim=1))
    torch.testing.assert_close(turned.amin(dim=1), IMAGES.amin(dim=1), atol=1e-6, rtol=0)


def test_colors_stay_between_0_and_1() -> None:
    strong = dataclasses.replace(COLOR_ONLY, brightness=1.0, contrast=2.0, saturation=3.0, hue=math.pi, asymmetric=0.5)
    for index in range(20):
        changed = augment_flow(scene(), strong, [(0, 0, index)])
        for image in (changed.first, changed.second):
            assert float(image.min()) >= 0 and float(image.max()) <= 1


def test_equal_images_stay_equal_unless_their_colors_part() -> None:
    still = dataclasses.replace(scene(), second=scene().first)
    for index in range(10):
        alike = augment_flow(still, COLOR_ONLY, [(0, 0, index)])
        assert torch.equal(alike.first, alike.second)
        assert not torch.equal(alike.first, still.first)
        apart = augment_flow(still, dataclasses.replace(COLOR_ONLY, asymmetric=1.0), [(0, 0, index)])
        assert torch.equal(apart.first, alike.first) and not torch.equal(apart.first, apart.second)


def test_colors_leave_motion_alone() -> None:
    changed = augment_flow(scene(), dataclasses.replace(COLOR_ONLY, erase=1.0), [(0, 0, 0)])
    for field in ("flow", "valid", "occlusion"):
        assert torch.equal(getattr(changed, field), getattr(scene(), field))


def test_only_the_second_image_is_erased() -> None:
    config = dataclasses.replace(COLOR_ONLY, erase=1.0, erase_size=(10, 14))
    for index in range(10):
        plain, erased = (augment_flow(scene(), each, [(0, 0, index)]) for each in (COLOR_ONLY, config))
        assert torch.equal(erased.first, plain.first)
        touched = (erased.second != plain.second).any(dim=1, keepdim=True)
        assert 0 < int(touched.sum()) <= 2 * 14 * 14
        filling = mean(plain.second).expand_as(plain.second)
        assert torch.equal(erased.second, torch.where(touched, filling, plain.second))


def test_a_box_is_filled_with_the_mean_color_and_cut_at_the_border() -> None:
    erased = erase(IMAGES, [[(4, 2, 3, 5)], [], [(24, 18, 90, 90), (0, 0, 1, 1)]])
    expected = IMAGES.clone()
    color = IMAGES.mean(dim=(2, 3), keepdim=True)
    expected[0, :, 2:7, 4:7] = color[0]
    expected[2, :, 18:, 24:] = color[2]
    expected[2, :, 0, 0] = color[2, :, 0, 0]
    torch.testing.assert_close(erased, expected, atol=1e-6, rtol=0)
    assert torch.equal(erased[1], IMAGES[1])


def test_a_mean_is_the_mean() -> None:
    torch.testing.assert_close(mean(IMAGES), IMAGES.mean(dim=(2, 3), keepdim=True), atol=1e-6, rtol=0)
    assert torch.equal(mean(torch.ones(1, 3, 7, 9)), torch.ones(1, 3, 1, 1))


def test_a_blurred_point_is_a_gaussian_and_what_is_not_blurred_stays() -> None:
    images = torch.zeros(2, 3, 21, 25)
    images[:, :, 10, 12] = 1.0
    blurred = blur(images, [1.5, 0.0])
    assert torch.equal(blurred[1], images[1])
    assert blurred[0].sum(dim=(1, 2)).allclose(torch.ones(3), atol=1e-5)
    ratio = blurred[0, 0, 10, 14] / blurred[0, 0, 10, 12]
    assert float(ratio) == pytest.approx(math.exp(-(2**2) / (2 * 1.5**2)), rel=1e-4)
    assert torch.allclose(blur(torch.full((1, 3, 9, 9), 0.3), [1.0]), torch.full((), 0.3))


def test_grain_has_its_strength_and_is_that_of_its_seed() -> None:
    images = torch.full((3, 3, 60, 60), 0.5)
    noisy = add_noise(images, [0.05, 0.05, 0.0], [1, 2, 3])
    assert float(noisy[0].std()) == pytest.approx(0.05, rel=0.05)
    assert torch.equal(noisy[2], images[2]) and not torch.equal(noisy[0], noisy[1])
    assert torch.equal(add_noise(images[:1], [0.05], [1]), noisy[:1])
    assert add_noise(images, [2.0] * 3, [0] * 3).aminmax() == (0.0, 1.0)


COUNT, HEIGHT, WIDTH = 6, 32, 48
GENERATOR = torch.Generator().manual_seed(0)
RENDERED = torch.rand(2, COUNT, 3, HEIGHT, WIDTH, generator=GENERATOR)
PAIRS = FlowSample(
    first=RENDERED[0],
    second=RENDERED[1],
    flow=12 * torch.randn(COUNT, 2, HEIGHT, WIDTH, generator=GENERATOR),
    valid=torch.rand(COUNT, 1, HEIGHT, WIDTH, generator=GENERATOR) < 0.8,
    occlusion=torch.rand(COUNT, 1, HEIGHT, WIDTH, generator=GENERATOR) < 0.1,
    names=tuple(f"scene-{number}" for number in range(COUNT)),
)
ROOMS = DepthSample(image=RENDERED[0], depth=1 + RENDERED[1][:, :1], valid=PAIRS.valid, intrinsics=torch.eye(3)[None])
STRONG_LIGHT = Light(
    brightness=1.0,
    contrast=1.0,
    saturation=1.0,
    hue=math.pi,
    gamma=2.0,
    asymmetric=0.5,
    shadow=0.7,
    shade=1.0,
    erase=0.7,
    erase_size=(4, 20),
)


def draws(first: int = 0, count: int = COUNT, seed: int = 5) -> SceneRandom:
    return SceneRandom(seed, range(first, first + count))


def alike(value: float) -> FlowSample:
    """Pairs of images of one gray."""
    gray = torch.full_like(PAIRS.first, value)
    return dataclasses.replace(PAIRS, first=gray, second=gray)


def same(one: object, other: object) -> bool:
    """Whether every field of two samples holds the same bits."""
    for field in dataclasses.fields(one):  # type: ignore[arg-type]
        value, there = getattr(one, field.name), getattr(other, field.name)
        if not (torch.equal(value, there) if isinstance(value, Tensor) else value == there):
            return False
    return True


def test_default_relighting_changes_nothing() -> None:
    assert same(relight_flow(PAIRS, Light(), draws()), PAIRS)
    assert same(relight_depth(ROOMS, Light(), draws()), ROOMS)


def test_light_changes_the_images_and_what_they_hide_and_nothing_else() -> None:
    pairs, rooms = relight_flow(PAIRS, STRONG_LIGHT, draws()), relight_depth(ROOMS, STRONG_LIGHT, draws())
    assert not torch.equal(pairs.first, PAIRS.first) and not torch.equal(rooms.image, ROOMS.image)
    kept = {name: getattr(PAIRS, name) for name in ("first", "second", "occlusion")}
    assert same(dataclasses.replace(pairs, **kept), PAIRS)
    assert same(dataclasses.replace(rooms, image=ROOMS.image), ROOMS)


def test_relit_colors_stay_between_0_and_1() -> None:
    for seed in range(5):
        relit = relight_flow(PAIRS, STRONG_LIGHT, draws(seed=seed))
        for image in (relit.first, relit.second, relight_depth(ROOMS, STRONG_LIGHT, draws(seed=seed)).image):
            assert image.isfinite().all() and image.amin() >= 0 and image.amax() <= 1


def test_a_scene_is_relit_alike_in_any_batch() -> None:
    together = relight_flow(PAIRS, STRONG_LIGHT, draws(20))
    for number in range(COUNT):
        one = FlowSample(
            **{name: getattr(PAIRS, name)[number : number + 1] for name in ("first", "second", "flow", "valid")},
            occlusion=None if PAIRS.occlusion is None else PAIRS.occlusion[number : number + 1],
        )
        alone = relight_flow(one, STRONG_LIGHT, draws(20 + number, 1))
        for name in ("first", "second", "occlusion"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[number])
    assert not torch.equal(relight_flow(PAIRS, STRONG_LIGHT, draws(21)).first, together.first)


def test_an_image_of_depth_is_relit_as_the_first_of_a_pair() -> None:
    assert torch.equal(
        relight_depth(ROOMS, STRONG_LIGHT, draws()).image, relight_flow(PAIRS, STRONG_LIGHT, draws()).first
    )


def test_colors_are_raised_to_a_power_and_then_changed() -> None:
    numbers = torch.tensor([[2.0, 1, 1, 1, 0], [1, 0.5, 1, 1, 0], [0.5, 1, 1, 0, 0]], dtype=torch.float64)
    squared, half, gray = recolor(RENDERED[0, :3], numbers)
    torch.testing.assert_close(squared, RENDERED[0, 0].square())
    assert torch.equal(half, 0.5 * RENDERED[0, 1])
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    torch.testing.assert_close(gray, (RENDERED[0, 2].sqrt() * weights).sum(dim=0).expand(3, -1, -1))


@pytest.mark.parametrize(
    ("light", "least", "most"),
    [
        (Light(gamma=0.8), 0.5 ** (2**0.8), 0.5 ** (2**-0.8)),
        (Light(brightness=0.4), 0.3, 0.7),
        (Light(shadow=1.0, shade=0.6), 0.2, 0.5),
    ],
)
def test_relighting_stays_within_its_strength(light: Light, least: float, most: float) -> None:
    """The brightness that a gray of a half can come to have."""
    result = torch.stack([relight_flow(alike(0.5), light, draws(seed=seed)).first for seed in range(20)])
    assert least <= result.amin() < least + 0.03
    assert most - 0.03 < result.amax() <= most


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_so_many_second_images_have_colors_of_their_own(share: float) -> None:
    light = Light(brightness=0.5, gamma=0.5, asymmetric=share)
    relit = [relight_flow(alike(0.4), light, draws(seed=seed)) for seed in range(40)]
    apart = torch.cat([(pair.first != pair.second).flatten(1).any(dim=1) for pair in relit])
    assert apart.float().mean().item() == pytest.approx(share, abs=0.08)
    usual = relight_flow(alike(0.4), dataclasses.replace(light, asymmetric=0.0), draws(seed=0))
    assert torch.equal(relit[0].first, usual.first)


def test_so_many_scenes_have_shadows_which_only_darken() -> None:
    light = Light(shadow=0.4, shade=0.5)
    shades = [relight_flow(PAIRS, light, draws(seed=seed)) for seed in range(40)]
    for name in ("first", "second"):
        before, after = getattr(PAIRS, name), [getattr(each, name) for each in shades]
        assert all((before >= image).all() and (image >= 0.5 * before - 1e-6).all() for image in after)
        darker = torch.cat([(image != before).flatten(1).any(dim=1) for image in after])
        assert darker.float().mean().item() == pytest.approx(0.4, abs=0.08)


def test_a_shadow_lies_where_its_waves_are_high() -> None:
    """One wave along x, 16 pixels long and sharp: dark for half of its length, about its crests."""
    waves = torch.zeros(1, 4, NUM_WAVES)
    waves[0, :, 0] = torch.tensor([2 * math.pi / 16, 0.0, 0.0, 1.0])
    shadow = torch.cat((torch.tensor([[0.75, 1000.0]]), waves.flatten(1)), dim=1)
    row = add_shadows(torch.ones(1, 3, 4, WIDTH), shadow)[0, 0, 0]
    x = torch.arange(WIDTH)
    crest, trough = torch.minimum(x % 16, -x % 16) < 4, torch.minimum(x % 16, -x % 16) > 4
    torch.testing.assert_close(row[crest], torch.full_like(row[crest], 0.25))
    torch.testing.assert_close(row[trough], torch.ones_like(row[trough]))


def test_a_shadow_moves_between_the_images_by_a_way_of_its_own() -> None:
    white = torch.ones(COUNT, 3, 256, 256)
    still = FlowSample(first=white, second=white, flow=torch.zeros(COUNT, 2, 256, 256), valid=white[:, :1] > 0)
    relit = relight_flow(still, Light(shadow=1.0), draws())
    way = draws().uniform("shadow.passed", -MAX_SHADOW_MOTION * 256, MAX_SHADOW_MOTION * 256, (2,)).float()
    assert (way.abs().amax(dim=0) > 15).all()
    before = (pixel_grid(256, 256) - way[..., None, None]).permute(0, 2, 3, 1)
    moved = F.grid_sample(relit.first, (before + 0.5) / 128 - 1, align_corners=False)
    within = ((before >= 0) & (before <= 255)).all(dim=-1)[:, None]
    for shift, least, most in ((moved, 0.0, 0.003), (relit.first, 0.02, 1.0)):
        assert least < ((shift - relit.second).abs() * within).mean() < most


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_moves_into_an_erased_box_is_hidden(share: float) -> None:
    light = Light(erase=share, erase_size=(3, 9))
    erased = []
    for seed in range(10):
        relit = relight_flow(PAIRS, light, draws(seed=seed))
        gone = (relit.second == mean(PAIRS.second)).all(dim=1, keepdim=True)
        assert torch.equal(torch.where(gone, PAIRS.second, relit.second), PAIRS.second)
        assert torch.equal(relit.first, PAIRS.first)
        sides = gone.flatten(1).sum(dim=1)
        assert sides.amax() <= 2 * 9 * 9
        erased.append(sides > 0)
        # The pixel in which a motion ends is the one whose center is nearest.
        x, y = (pixel_grid(HEIGHT, WIDTH) + PAIRS.flow).add(0.5).floor().long().unbind(dim=1)
        within = (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
        ends = gone[torch.arange(COUNT)[:, None, None], 0, y.clamp(0, HEIGHT - 1), x.clamp(0, WIDTH - 1)] & within
        assert PAIRS.occlusion is not None and relit.occlusion is not None
        expected = PAIRS.occlusion | (ends[:, None] & PAIRS.valid)
        inside = within[:, None]
        assert torch.equal(relit.occlusion & inside, expected & inside)
    assert torch.cat(erased).float().mean().item() == pytest.approx(share, abs=0.15)


def test_an_unknown_occlusion_stays_unknown() -> None:
    relit = relight_flow(dataclasses.replace(PAIRS, occlusion=None), STRONG_LIGHT, draws())
    assert relit.occlusion is None
    assert torch.equal(relit.second, relight_flow(PAIRS, STRONG_LIGHT, draws()).second)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"gamma": -0.5}, "light.gamma is -0.5, but it must be a number, 0 or more."),
        ({"shadow": 1.5}, "light.shadow is 1.5, but it must be a number, 0 or more and at most 1."),
        ({"shade": 2.0}, "light.shade is 2.0, but it must be a number, 0 or more and at most 1."),
        ({"erase": -1.0}, "light.erase is -1.0, but it must be a number, 0 or more and at most 1."),
        ({"erase_size": (5, 2)}, "light.erase_size is (5, 2), but it must be (minimum, maximum)."),
        (
            {"erase_size": (0, 2)},
            "light.erase_size is (0, 2), but it must be a list of 2 whole numbers, each 1 or more.",
        ),
        ({"hue": math.nan}, "light.hue is nan, but it must be a number, 0 or more."),
    ],
)
def test_a_wrong_setting_is_one_sentence(setting: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Light(**setting)  # type: ignore[arg-type]
    assert str(caught.value) == sentence
