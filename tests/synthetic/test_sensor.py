"""Lens, sensor and codec model."""

import io
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from protoformer.synthetic.sensor import compress, defocus, expose, sensor_noise, vignette
from protoformer.synthetic.textures import noise

HEIGHT, WIDTH = 45, 61
WIDEST = math.sqrt(168)  # pixels


def random_image(seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return noise(height, width, torch.Generator().manual_seed(seed), falloff=0.5)[None]


def each(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


def plane(meters: float, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return torch.full((1, 1, height, width), meters)


def random_images() -> Tensor:
    return torch.cat([random_image(seed) for seed in range(3)])


def depths() -> Tensor:
    return 0.5 + 8 * torch.cat([random_image(seed)[:, :1] for seed in (5, 6, 7)])


EFFECTS: dict[str, Callable[..., Tensor]] = {
    "defocus": lambda own, images, depth, a, b, c: defocus(images, depth, 1 + a, 20 + 9 * b),
    "vignette": lambda own, images, depth, a, b, c: vignette(images, a),
    "expose": lambda own, images, depth, a, b, c: expose(images, torch.stack((a, b, c), dim=1) + 0.5, b + 0.5, c - 0.5),
    "noise": lambda own, images, depth, a, b, c: sensor_noise(images, own, 0.1 * a, 0.1 * b),
    "compress": lambda own, images, depth, a, b, c: compress(images, (100 * a).ceil()),
}
effects = pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
NUMBERS = (each(0.2, 0.5, 0.9), each(0.9, 0.1, 0.6), each(0.3, 0.7, 0.5))


@effects
def test_an_image_comes_out_the_same_in_any_batch(effect: Callable[..., Tensor]) -> None:
    arguments = (torch.tensor([4, -5, 6]), random_images(), depths(), *NUMBERS)
    batch = effect(*arguments)
    assert batch.shape == (3, 3, HEIGHT, WIDTH) and batch.dtype == torch.float32
    assert batch.min() >= 0 and batch.max() <= 1
    for row in range(3):
        alone = effect(*(argument[row : row + 1] for argument in arguments))
        # Powers and logarithms may differ in the last bit with a value's place in memory, all else in none.
        exact = effect not in (EFFECTS["expose"], EFFECTS["noise"])
        torch.testing.assert_close(alone[0], batch[row], rtol=0, atol=0 if exact else 1e-6)
        assert (alone[0] - arguments[1][row]).abs().mean() > 0.002


@effects
def test_no_value_decides_what_is_computed(effect: Callable[..., Tensor]) -> None:
    # Tensors that have a shape and no values: to look at one raises.
    arguments = (torch.tensor([4, -5, 6]), random_images(), depths(), *NUMBERS)
    shaped = effect(*(argument.to("meta") for argument in arguments))
    assert shaped.shape == (3, 3, HEIGHT, WIDTH)


@pytest.mark.parametrize("size", [(1, 1), (1, 20), (17, 3), (16, 32)])
@effects
def test_images_come_in_any_size(effect: Callable[..., Tensor], size: tuple[int, int]) -> None:
    images, depth = (values[..., : size[0], : size[1]].contiguous() for values in (random_images(), depths()))
    out = effect(torch.tensor([4, -5, 6]), images, depth, *NUMBERS)
    assert out.shape == (3, 3, *size)
    assert out.min() >= 0 and out.max() <= 1


def test_a_pinhole_leaves_the_image_as_it_is() -> None:
    for depth in (depths()[:1], plane(0.0), plane(math.inf)):
        for focus in (2.0, math.inf):
            assert torch.equal(defocus(random_image(), depth, each(focus), each(0.0)), random_image())


def test_what_is_in_focus_stays_as_it_is() -> None:
    assert torch.equal(defocus(random_image(), plane(2.0), each(2.0), each(50.0)), random_image())
    assert torch.equal(defocus(random_image(), plane(math.inf), each(math.inf), each(50.0)), random_image())


@pytest.mark.parametrize("focus", [1.0, math.inf], ids=["behind the focus", "before the focus"])
@pytest.mark.parametrize("diameter", [0.5, 2.0, 2.9, 5.0, 6.4, 9.0, 12.0, 12.9])
def test_a_point_spreads_as_its_circle_of_confusion_does(diameter: float, focus: float) -> None:
    image = torch.zeros(1, 3, 41, 41)
    image[..., 20, 20] = 0.8
    depth = math.inf if focus == 1.0 else 1.0
    spot = defocus(image, plane(depth, 41, 41), each(focus), each(diameter))[0, 1].double()
    assert spot.sum() == pytest.approx(0.8, rel=1e-4)
    across = torch.arange(41) - 20
    # The variance of a disc along an axis is a quarter of its squared radius.
    assert (spot.sum(dim=0) * across**2).sum() / 0.8 == pytest.approx(diameter**2 / 16, rel=1e-3)
    torch.testing.assert_close(spot, spot.T)
    torch.testing.assert_close(spot, spot.flip(0))


def test_the_blur_has_a_largest_diameter() -> None:
    widest = defocus(random_image(), plane(math.inf), each(1.0), each(WIDEST))
    torch.testing.assert_close(defocus(random_image(), plane(math.inf), each(1.0), each(1e6)), widest)
    assert (defocus(random_image(), plane(math.inf), each(1.0), each(11.0)) - widest).abs().max() > 0.01


def test_one_color_stays_one_color() -> None:
    gray = torch.full((3, 3, HEIGHT, WIDTH), 0.3)
    torch.testing.assert_close(defocus(gray, depths(), each(1.0, 3.0, 9.0), each(5.0, 30.0, 300.0)), gray)


def test_the_border_does_not_change_the_blur_along_it() -> None:
    stripes = random_image()[..., :1, :].expand(-1, -1, HEIGHT, -1)
    out = defocus(stripes, plane(math.inf), each(1.0), each(9.0))
    torch.testing.assert_close(out, out[..., HEIGHT // 2, None, :].expand_as(out))
    turned = defocus(stripes.transpose(2, 3), plane(math.inf, WIDTH, HEIGHT), each(1.0), each(9.0))
    torch.testing.assert_close(turned.transpose(2, 3), out)


def test_blur_grows_without_a_jump() -> None:
    apertures = torch.arange(0, 30, 0.1)
    count = len(apertures)
    images = (random_images()[:1, :, :12, :12] > 0.4).float().expand(count, -1, -1, -1)
    depth = depths()[:1, :, :12, :12].expand(count, -1, -1, -1)
    out = defocus(images, depth, torch.full((count,), 2.0), apertures)
    assert out.diff(dim=0).abs().max() < 0.05
    assert (out[-1] - out[0]).abs().max() > 0.1


def edge(left: float, right: float) -> Tensor:
    """Two halves of one depth each, meters, meeting between columns 29 and 30."""
    depth = plane(left)
    depth[..., 30:] = right
    return depth


def halves() -> Tensor:
    """White on the left, black on the right."""
    image = torch.zeros(1, 3, HEIGHT, WIDTH)
    image[..., :30] = 1
    return image


def test_a_sharp_thing_in_front_neither_bleeds_nor_fades() -> None:
    image = random_image()
    image[..., 30:] = 0
    out = defocus(image, edge(1.0, math.inf), each(1.0), each(12.0))
    assert torch.equal(out, image)


def test_a_sharper_thing_in_front_is_kept_from_what_is_behind_it() -> None:
    # Circles of 6.32 and 12.65 pixels: alone, the blur of the front would reach 3 columns and that of the back 7.
    out = defocus(halves(), edge(2.0, math.inf), each(1.0), each(2 * math.sqrt(40)))
    torch.testing.assert_close(out[..., :27], torch.ones(1, 3, HEIGHT, 27))
    assert out[..., 28].mean() > 0.8


def test_a_blurred_thing_in_front_covers_what_is_sharp_behind_it() -> None:
    out = defocus(halves(), edge(1.0, math.inf), each(math.inf), each(WIDEST))
    fall = out[0, 0, 20, 30:38]
    assert fall[0] > 0.4 and (fall.diff() < 0).all()
    assert torch.equal(out[..., 38:], torch.zeros(1, 3, HEIGHT, WIDTH - 38))


def test_a_vignette_takes_its_share_of_light_in_the_corners() -> None:
    out = vignette(torch.full((1, 3, 5, 9), 0.5), each(0.4))
    assert out[0, :, 2, 4].tolist() == [0.5] * 3
    for y in (0, 4):
        for x in (0, 8):
            assert out[0, 0, y, x] == pytest.approx(0.3)
    assert out[0, 0, 2, 8] == pytest.approx(0.5 * (1 - 0.4 * 16 / 20))
    assert torch.equal(vignette(random_image(), each(0.0)), random_image())


def test_exposure_is_gain_then_gamma_then_offset() -> None:
    gray = torch.full((1, 3, 2, 2), 0.25)
    assert expose(gray, each(2.0), each(2.0), each(0.1)).unique().tolist() == pytest.approx([0.35])
    balanced = expose(gray, each(1.0, 2.0, 3.0)[None], each(1.0), each(0.0))
    assert balanced[0, :, 0, 0].tolist() == [0.25, 0.5, 0.75]


def test_exposure_saturates_as_a_sensor_does() -> None:
    gray = torch.full((1, 3, 2, 2), 0.5)
    assert expose(gray, each(8.0), each(1.0), each(-0.2)).unique().tolist() == pytest.approx([0.8])
    assert expose(gray, each(1.0), each(1.0), each(0.7)).unique().tolist() == [1.0]
    assert expose(gray, each(1.0), each(1.0), each(-0.7)).unique().tolist() == [0.0]


def test_neutral_exposure_leaves_the_image_as_it_is() -> None:
    for gain in (torch.ones(1), torch.ones(1, 3)):
        assert torch.equal(expose(random_image(), gain, each(1.0), each(0.0)), random_image())


@pytest.mark.parametrize(
    ("level", "deviation"), [(0.25, math.hypot(0.01, 0.02)), (0.5, math.hypot(0.01, 0.04 * 0.5**0.5))]
)
def test_noise_grows_with_the_root_of_the_signal(level: float, deviation: float) -> None:
    gray = torch.full((1, 3, 128, 128), level)
    error = (sensor_noise(gray, torch.tensor([3]), each(0.01), each(0.04)) - gray).double()
    assert error.std() == pytest.approx(deviation, rel=0.02)
    assert abs(error.mean()) < 5 * deviation / math.sqrt(error.numel())
    assert torch.stack([channel.flatten() for channel in error[0]]).corrcoef().triu(1).abs().max() < 0.04


def test_the_key_decides_the_noise() -> None:
    images, read, shot = random_image().expand(3, -1, -1, -1), each(0.1, 0.1, 0.1), each(0.0, 0.0, 0.0)
    noisy = sensor_noise(images, torch.tensor([3, 3, 4]), read, shot)
    torch.testing.assert_close(noisy[0], noisy[1], rtol=0, atol=1e-6)
    assert (noisy[0] - noisy[2]).abs().mean() > 0.05


def test_a_perfect_sensor_leaves_the_image_as_it_is() -> None:
    assert torch.equal(sensor_noise(random_image(), torch.tensor([3]), each(0.0), each(0.0)), random_image())


def jpeg(image: Tensor, quality: int) -> Tensor:
    """What a real codec makes of it."""
    file = io.BytesIO()
    levels = (image[0] * 255).round().byte().permute(1, 2, 0)
    Image.fromarray(levels.numpy()).save(file, "jpeg", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)[None] / 255


@pytest.mark.parametrize("quality", [1, 10, 30, 49, 50, 60, 75, 90, 100])
def test_compression_looks_as_that_of_a_real_codec(quality: int) -> None:
    image = random_image(height=173, width=245)
    compressed, real = compress(image, each(quality)), jpeg(image, quality)
    assert (compressed - real).abs().mean() * 255 < 0.6
    loss, real_loss = (10 * float(((out - image) ** 2).mean().log10()) for out in (compressed, real))
    # At 100 there is little left but the codec's own arithmetic in whole numbers.
    assert loss == pytest.approx(real_loss, rel=0.03 if quality == 100 else 0.01)


def test_compression_halves_the_detail_of_color_only() -> None:
    stripes = torch.zeros(1, 3, 32, 32)
    stripes[:, 0, :, ::2], stripes[:, 2, :, 1::2] = 0.4, 0.4
    out = compress(stripes, each(100))
    color = (out[:, 0] - out[:, 2])[..., 4:-4]
    assert color.abs().max() < 0.03
    gray = torch.zeros(1, 3, 32, 32)
    gray[..., ::2] = 0.4
    torch.testing.assert_close(compress(gray, each(100)), gray, rtol=0, atol=2.5 / 255)


@pytest.mark.parametrize("level", [0, 1, 77, 128, 200, 255])
def test_compression_keeps_flat_gray_where_the_step_allows(level: int) -> None:
    # The mean of a block is kept in eighths of a step: of 1 at quality 100, of 16 at quality 50.
    gray = torch.full((1, 3, 20, 20), level / 255)
    assert torch.equal(compress(gray, each(100)), gray)
    coarse = math.copysign(math.floor(abs(level - 128) / 2 + 0.5) * 2, level - 128) + 128
    assert (compress(gray, each(50)) * 255).unique().tolist() == pytest.approx([min(coarse, 255)])


def test_compression_gives_whole_levels() -> None:
    levels = compress(random_image(), each(40)) * 255
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
