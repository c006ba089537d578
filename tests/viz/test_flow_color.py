"""Middlebury's colors: hue is direction, saturation is speed."""

import colorsys
import math

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.viz.colormaps import color_wheel_legend, flow_to_color

WHITE, BLACK = [255, 255, 255], [0, 0, 0]


def color(u: float, v: float, max_motion: float = 1.0) -> list[int]:
    return flow_to_color(np.array([[[u, v]]]), max_motion)[0, 0].tolist()


def published_color(u: float, v: float) -> list[float]:
    """The published program, a pixel at a time: the color (0 .. 255) of motion relative to the maximum."""
    wheel = [(255, 255 * i // 15, 0) for i in range(15)]
    wheel += [(255 - 255 * i // 6, 255, 0) for i in range(6)]
    wheel += [(0, 255, 255 * i // 4) for i in range(4)]
    wheel += [(0, 255 - 255 * i // 11, 255) for i in range(11)]
    wheel += [(255 * i // 13, 0, 255) for i in range(13)]
    wheel += [(255, 0, 255 - 255 * i // 6) for i in range(6)]
    speed = math.hypot(u, v)
    place = (math.atan2(-v, -u) / math.pi + 1) / 2 * 54
    first = int(place)
    result = []
    for a, b in zip(wheel[first], wheel[(first + 1) % 55], strict=True):
        pure = ((1 - (place - first)) * a + (place - first) * b) / 255
        result.append(255 * (1 - speed * (1 - pure) if speed <= 1 else 0.75 * pure))
    return result


def hue(angle: float) -> float:
    """The hue in degrees of motion at the maximum in a direction (radians, clockwise on screen from the right)."""
    red, green, blue = color(0.999 * math.cos(angle), 0.999 * math.sin(angle))
    return 360 * colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)[0]


def test_no_motion_is_white() -> None:
    assert (flow_to_color(np.zeros((4, 5, 2))) == 255).all()
    assert color(-0.0, 0.0) == color(0.0, -0.0) == WHITE


def test_the_four_axes_have_their_published_colors() -> None:
    assert color(1, 0) == [255, 0, 0]
    assert color(1, -0.0) == [255, 0, 0]
    assert color(0, 1) == [255, 230, 0]
    assert color(-1, 0) == [0, 209, 255]
    assert color(0, -1) == [88, 0, 255]


def test_every_vector_has_the_published_color_to_the_nearest_level() -> None:
    rng = np.random.default_rng(3)
    flow = rng.uniform(-1.5, 1.5, (20, 25, 2)).astype(np.float32)
    expected = np.array([[published_color(float(u), float(v)) for u, v in row] for row in flow])
    picture = flow_to_color(flow, max_motion=1.0)
    assert (picture.dtype, picture.shape) == (np.uint8, (20, 25, 3))
    assert np.abs(picture - expected).max() <= 0.5 + 1e-3


def test_opposite_directions_have_opposite_hues() -> None:
    # The wheel has uneven steps, so opposite motion is 150 to 180 degrees of hue apart, not always 180.
    for angle in np.linspace(0, np.pi, 181):
        apart = abs(hue(angle) - hue(angle + np.pi))
        assert min(apart, 360 - apart) >= 149


def test_hue_turns_once_as_the_direction_turns_once() -> None:
    hues = [hue(angle) for angle in np.linspace(0, 2 * np.pi, 73)[:-1]]
    assert hues[0] == 0
    assert (np.diff(hues) > 0).all()
    assert hues[-1] > 340


def test_slower_motion_is_whiter_and_keeps_its_hue() -> None:
    assert [color(speed, 0) for speed in (0.2, 0.6, 1.0)] == [[255, 204, 204], [255, 102, 102], [255, 0, 0]]


def test_motion_beyond_the_maximum_is_darkened() -> None:
    assert color(1.001, 0) == color(50, 0) == [191, 0, 0]


def test_only_motion_relative_to_the_maximum_counts() -> None:
    rng = np.random.default_rng(4)
    flow = rng.normal(size=(8, 9, 2)).astype(np.float32)
    np.testing.assert_array_equal(flow_to_color(flow, 2.0), flow_to_color(flow * 4, 8.0))
    np.testing.assert_array_equal(flow_to_color(flow), flow_to_color(flow * 4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e9, -1e10, 1e30])
def test_unknown_motion_is_black_and_does_not_count_for_the_maximum(value: float) -> None:
    flow = np.array([[[2, 0], [value, 0]], [[0, value], [2, 0]]])
    assert flow_to_color(flow).tolist() == [[[255, 0, 0], BLACK], [BLACK, [255, 0, 0]]]


def test_a_flow_that_is_unknown_everywhere_is_black() -> None:
    assert not flow_to_color(np.full((3, 4, 2), np.nan)).any()


def test_one_outlier_does_not_wash_out_the_picture() -> None:
    flow = np.zeros((20, 20, 2))
    flow[..., 0] = 2
    flow[0, 0] = 1e6
    picture = flow_to_color(flow)
    assert picture[10, 10].tolist() == [255, 0, 0]
    assert picture[0, 0].max() == 191


def test_the_rounding_noise_of_a_still_scene_stays_white() -> None:
    assert flow_to_color(np.full((5, 5, 2), 1e-7)).min() == 255


def test_a_tiny_maximum_darkens_without_a_warning() -> None:
    assert color(1e9, 0, 5e-324) == [191, 0, 0]


@pytest.mark.parametrize("max_motion", [0, -1, np.nan, np.inf])
def test_a_maximum_that_is_no_length_is_refused(max_motion: float) -> None:
    with pytest.raises(InputError, match="max_motion is a length in pixels over 0"):
        color(1, 0, max_motion)


def test_what_is_not_a_flow_is_refused() -> None:
    with pytest.raises(InputError, match="HxWx2"):
        flow_to_color(np.zeros((4, 4, 3)))


def test_the_legend_shows_at_each_pixel_the_motion_towards_it() -> None:
    legend = color_wheel_legend(101)
    assert (legend.dtype, legend.shape) == (np.uint8, (101, 101, 3))
    assert legend[50, 50].tolist() == WHITE
    assert legend[50, 100].tolist() == color(1, 0)
    assert legend[50, 0].tolist() == color(-1, 0)
    assert legend[100, 50].tolist() == color(0, 1)
    assert legend[0, 50].tolist() == color(0, -1)
    assert legend[50, 75].tolist() == color(0.5, 0)
    for corner in (legend[0, 0], legend[0, -1], legend[-1, 0], legend[-1, -1]):
        assert corner.tolist() == WHITE


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_a_legend_has_any_size_from_one_pixel(size: int) -> None:
    assert color_wheel_legend(size).shape == (size, size, 3)


def test_a_legend_of_no_pixels_is_refused() -> None:
    with pytest.raises(InputError, match="at least one pixel wide, not 0"):
        color_wheel_legend(0)
