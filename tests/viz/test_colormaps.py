"""Colors of flow, depth and labels, and conversion to images."""

import colorsys
import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from protoformer.errors import InputError
from protoformer.geometry.warps import cell_of_pixel
from protoformer.models.prototyping import Prototypes
from protoformer.viz.colormaps import (
    color_wheel_legend,
    default_max_motion,
    distinct_colors,
    draw_assignment,
    draw_gray,
    flow_to_color,
    to_uint8,
)
from protoformer.viz.depth_colors import _TO_CONES, _TO_LAB, UNKNOWN, depth_color_map, depth_legend, depth_to_color

WHITE, BLACK = [255, 255, 255], [0, 0, 0]


def color(u: float, v: float, max_motion: float = 1.0) -> list[int]:
    return flow_to_color(np.array([[[u, v]]]), max_motion)[0, 0].tolist()


def published_color(u: float, v: float) -> list[float]:
    """The published program, a pixel at a time: the color (0 .. 255) of motion relative to the maximum, up to it."""
    wheel = [(255, 255 * i // 15, 0) for i in range(15)]
    wheel += [(255 - 255 * i // 6, 255, 0) for i in range(6)]
    wheel += [(0, 255, 255 * i // 4) for i in range(4)]
    wheel += [(0, 255 - 255 * i // 11, 255) for i in range(11)]
    wheel += [(255 * i // 13, 0, 255) for i in range(13)]
    wheel += [(255, 0, 255 - 255 * i // 6) for i in range(6)]
    speed = min(1.0, math.hypot(u, v))
    place = (math.atan2(-v, -u) / math.pi + 1) / 2 * 54
    first = int(place)
    result = []
    for a, b in zip(wheel[first], wheel[(first + 1) % 55], strict=True):
        pure = ((1 - (place - first)) * a + (place - first) * b) / 255
        result.append(255 * (1 - speed * (1 - pure)))
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
    drawn = flow_to_color(flow, max_motion=1.0)
    assert (drawn.dtype, drawn.shape) == (np.uint8, (20, 25, 3))
    assert np.abs(drawn - expected).max() <= 0.5 + 1e-3


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


def test_motion_beyond_the_maximum_keeps_its_hue_at_full_saturation() -> None:
    assert color(1, 0) == color(1.001, 0) == color(50, 0) == [255, 0, 0]
    for angle in np.linspace(0, 2 * np.pi, 25):
        u, v = float(np.cos(angle)), float(np.sin(angle))
        assert color(u, v) == color(7 * u, 7 * v) and min(color(u, v)) == 0


@pytest.mark.parametrize("count", [999, 1000, 1001, 2500])
def test_at_most_one_pixel_in_a_thousand_lies_beyond_the_default_maximum(count: int) -> None:
    lengths = np.random.default_rng(count).pareto(1.0, count).astype(np.float32)
    beyond = int((lengths > default_max_motion(lengths)).sum())
    assert count / 1000 - 2 < beyond <= count / 1000


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


def test_one_outlier_does_not_wash_out_the_colors() -> None:
    flow = np.zeros((40, 40, 2))
    flow[..., 0] = 2
    flow[0, 0, 0] = 1e6
    picture = flow_to_color(flow)
    assert picture[10, 10].tolist() == picture[0, 0].tolist() == [255, 0, 0]


def test_the_rounding_noise_of_a_still_scene_stays_white() -> None:
    assert flow_to_color(np.full((5, 5, 2), 1e-7)).min() == 255


def test_a_tiny_maximum_saturates_without_a_warning() -> None:
    assert color(1e9, 0, 5e-324) == [255, 0, 0]


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


def seen(colors: np.ndarray) -> np.ndarray:
    """Stored RGB, n x 3, as the eye sees it (OKLab)."""
    stored = colors / 255
    light = np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)
    return np.cbrt(light @ _TO_CONES.T) @ _TO_LAB.T


def test_steps_of_the_map_look_alike_and_get_darker() -> None:
    lab = seen(depth_color_map().astype(float))
    steps = np.linalg.norm(lab[16:] - lab[:-16], axis=1)  # sixteen at a time, so that rounding to 8 bits is small
    assert steps.max() / steps.min() < 1.35
    assert (np.diff(lab[::8, 0]) < 0).all()
    near, far = depth_color_map()[40].astype(int), depth_color_map()[215].astype(int)
    assert near[0] > near[2] and far[2] > far[0]  # warm has more red, cool has more blue


@given(st.floats(0.01, 100), st.floats(1.1, 1000), st.integers(1, 40))
def test_the_ends_of_the_range_have_the_first_and_the_last_color(near: float, ratio: float, wide: int) -> None:
    far = near * ratio
    depth = np.geomspace(near, far, 2 * wide + 1, dtype=np.float64)[None]
    painted = depth_to_color(depth, near, far)
    assert painted.shape == (1, 2 * wide + 1, 3)
    table = depth_color_map()
    assert (painted[0, 0] == table[0]).all() and (painted[0, -1] == table[-1]).all()
    middle = np.abs(table.astype(int) - painted[0, wide].astype(int)).sum(axis=1).argmin()
    assert middle in (126, 127, 128, 129)  # the geometric mean, half of the way


def test_what_is_beyond_is_painted_like_the_end_and_the_unknown_is_gray() -> None:
    painted = depth_to_color(np.array([[0.5, 1, 10, 99, 0, np.nan, np.inf, -1]]), 1, 10)
    assert (painted[0, 0] == painted[0, 1]).all() and (painted[0, 2] == painted[0, 3]).all()
    assert (painted[0, 4:] == UNKNOWN).all()


def test_without_a_range_percentiles_decide_and_a_flat_wall_is_one_color() -> None:
    depth = np.geomspace(1, 100, 10_000).reshape(100, 100)
    assert (depth_to_color(depth) == depth_to_color(depth, *np.percentile(depth.astype(np.float32), (2, 98)))).all()
    assert len(np.unique(depth_to_color(np.full((4, 5), 3.0)).reshape(-1, 3), axis=0)) == 1
    assert (depth_to_color(np.zeros((2, 2))) == UNKNOWN).all()


def test_the_legend_is_the_map() -> None:
    legend = depth_legend(256, 3)
    assert legend.shape == (3, 256, 3) and (legend == depth_color_map()).all()


@pytest.mark.parametrize(("near", "far"), [(0, 1), (2, 1), (1, np.inf), (-1, 3), (np.nan, 2)])
def test_a_range_that_is_none_is_refused(near: float, far: float) -> None:
    with pytest.raises(InputError, match=r"colors cannot go from .* give a near over 0 and a larger far\.$"):
        depth_to_color(np.ones((2, 2)), near, far)


def belonging(owner: torch.Tensor, count: int, heads: int = 1) -> Prototypes:
    """Prototypes of which each pixel of a map (H x W) belongs wholly to one."""
    memberships = F.one_hot(owner.flatten(), count).T.float().expand(1, heads, -1, -1)
    return Prototypes(torch.zeros(1, count, 4), memberships, (owner.shape[0], owner.shape[1]))


def test_colors_are_always_the_same() -> None:
    assert torch.equal(distinct_colors(20), distinct_colors(20))
    assert torch.equal(distinct_colors(200)[:20], distinct_colors(20))


@pytest.mark.parametrize("count", [1, 16, 100, 200])
def test_colors_are_distinct_even_in_bytes(count: int) -> None:
    colors = distinct_colors(count)
    assert colors.shape == (count, 3)
    assert colors.min() >= 0 and colors.max() <= 1
    assert len((255 * colors).round().unique(dim=0)) == count


def test_successive_colors_are_far_apart() -> None:
    colors = distinct_colors(100)
    assert (colors[1:] - colors[:-1]).norm(dim=1).min() > 0.3


def test_an_image_becomes_bytes() -> None:
    image = torch.tensor([0.0, 0.5, 1.0, 1.5, -1.0]).view(1, 1, 5).expand(3, 2, 5)
    assert to_uint8(image).tolist() == [[[value] * 3 for value in (0, 128, 255, 255, 0)]] * 2
    assert draw_gray(image[0]).tolist() == [[0, 128, 255, 255, 0]] * 2


@pytest.mark.parametrize("stride", [1, 4, 8])
def test_every_region_has_its_own_color_and_a_dark_rim(stride: int) -> None:
    owner = cell_of_pixel((8, 12), (2, 3)).view(8, 12)
    height, width = 8 * stride, 12 * stride
    shown = draw_assignment(belonging(owner, 6), torch.zeros(3, height, width), stride, strength=1.0)
    assert shown.shape == (height, width, 3) and shown.dtype == np.uint8
    cell = cell_of_pixel((height, width), (2, 3)).view(height, width)
    colors = (255 * distinct_colors(6)).round().byte()
    rim = torch.zeros(height, width, dtype=torch.bool)
    rim[height // 2 - 1] = True
    rim[:, [width // 3 - 1, 2 * width // 3 - 1]] = True
    painted = torch.from_numpy(shown)
    assert torch.equal(painted[~rim], colors[cell][~rim])
    assert torch.equal(painted[rim], (0.4 * 255 * distinct_colors(6)).round().byte()[cell][rim])


def test_one_prototype_for_all_has_one_color() -> None:
    shown = draw_assignment(belonging(torch.zeros(4, 4, dtype=torch.long), 3), torch.zeros(3, 32, 32), 8, strength=1.0)
    assert (shown == shown[0, 0]).all()


def test_the_image_shows_through_in_gray() -> None:
    owner = torch.zeros(4, 4, dtype=torch.long)
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    shown = draw_assignment(belonging(owner, 2), image, 4, strength=0.0)
    assert np.array_equal(shown, to_uint8(image.mean(dim=0).expand(3, -1, -1)))


def test_padding_at_the_bottom_and_right_is_cut_off() -> None:
    # 93 x 121 pixels padded to 96 x 128, at 1/8.
    owner = cell_of_pixel((12, 16), (3, 4)).view(12, 16)
    whole = draw_assignment(belonging(owner, 12), torch.zeros(3, 96, 128), 8)
    cut = draw_assignment(belonging(owner, 12), torch.zeros(3, 93, 121), 8)
    assert cut.shape == (93, 121, 3)
    assert np.array_equal(cut[:-1, :-1], whole[:92, :120])


@pytest.mark.parametrize("side", [1, 15, 33, 40])
def test_a_small_image_that_the_network_pads_a_lot_is_shown_in_its_own_pixels(side: int) -> None:
    # The network pads it to 64 x 64, so that the map at 1/4 has 16 x 16 cells.
    owner = torch.arange(256).view(16, 16)
    shown = draw_assignment(belonging(owner, 256), torch.zeros(3, side, side), 4, strength=1.0)
    assert shown.shape == (side, side, 3)
    assert shown[0, 0].tolist() == (255 * distinct_colors(256)[0]).round().int().tolist()


def test_heads_are_averaged() -> None:
    memberships = torch.tensor([[[0.6], [0.4]], [[0.1], [0.9]]])[None]  # the second head is the surer one
    shown = draw_assignment(
        Prototypes(torch.zeros(1, 2, 4), memberships, (1, 1)), torch.zeros(3, 1, 1), 1, strength=1.0
    )
    assert shown[0, 0].tolist() == (255 * distinct_colors(2)[1]).round().int().tolist()


def test_the_assignment_that_was_made_goes_before_memberships() -> None:
    prototypes = belonging(torch.zeros(2, 2, dtype=torch.long), 3)
    assigned = dataclasses.replace(prototypes, assignment=torch.full((1, 4), 2))
    image = torch.zeros(3, 2, 2)
    expected = draw_assignment(belonging(torch.full((2, 2), 2), 3), image, 1)
    assert np.array_equal(draw_assignment(assigned, image, 1), expected)
    assert not np.array_equal(draw_assignment(prototypes, image, 1), expected)


def test_groups_of_an_image_that_was_seen_enlarged_lie_where_they_are_in_it() -> None:
    enlarged = cell_of_pixel((16, 24), (2, 3)).view(16, 24)
    shown = draw_assignment(belonging(enlarged, 6), torch.zeros(3, 32, 48), 4, strength=1.0, input_size=(64, 96))
    assert shown.shape == (32, 48, 3)
    cell = cell_of_pixel((32, 48), (2, 3)).view(32, 48)
    near_a_rim = (torch.arange(32) % 16 - 15).abs().lt(3)[:, None] | (torch.arange(48) % 16 - 15).abs().lt(3)
    near_a_rim |= (torch.arange(32) % 16).lt(3)[:, None] | (torch.arange(48) % 16).lt(3)
    colors = (255 * distinct_colors(6)).round().byte()
    assert torch.equal(torch.from_numpy(shown)[~near_a_rim], colors[cell][~near_a_rim])
