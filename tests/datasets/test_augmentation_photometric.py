"""Colors that change, blur, noise, and patches that are erased."""

import dataclasses
import math

import pytest
import torch

from protoformer.datasets.augmentation.flow import Augmentation, augment_flow
from protoformer.datasets.augmentation.photometric import Jitter, add_noise, blur, erase, jitter, mean, rotate_hue
from protoformer.synthetic.layers import random_scene
from protoformer.synthetic.samples import FlowSample

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
