"""Depth in colors: equal ratios are equal steps to the eye, near is light, far is dark."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protoformer.errors import InputError
from protoformer.viz.colormaps import _TO_CONES, _TO_LAB, UNKNOWN, color_map, depth_legend, depth_to_color


def seen(colors: np.ndarray) -> np.ndarray:
    """Stored RGB, n x 3, as the eye sees it (OKLab)."""
    stored = colors / 255
    light = np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)
    return np.cbrt(light @ _TO_CONES.T) @ _TO_LAB.T


def test_steps_of_the_map_look_alike_and_get_darker() -> None:
    lab = seen(color_map().astype(float))
    steps = np.linalg.norm(lab[16:] - lab[:-16], axis=1)  # sixteen at a time, so that rounding to 8 bits is small
    assert steps.max() / steps.min() < 1.35
    assert (np.diff(lab[::8, 0]) < 0).all()
    near, far = color_map()[40].astype(int), color_map()[215].astype(int)
    assert near[0] > near[2] and far[2] > far[0]  # warm has more red, cool has more blue


@given(st.floats(0.01, 100), st.floats(1.1, 1000), st.integers(1, 40))
def test_the_ends_of_the_range_have_the_first_and_the_last_color(near: float, ratio: float, wide: int) -> None:
    far = near * ratio
    depth = np.geomspace(near, far, 2 * wide + 1, dtype=np.float64)[None]
    painted = depth_to_color(depth, near, far)
    assert painted.shape == (1, 2 * wide + 1, 3)
    table = color_map()
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
    assert legend.shape == (3, 256, 3) and (legend == color_map()).all()


@pytest.mark.parametrize(("near", "far"), [(0, 1), (2, 1), (1, np.inf), (-1, 3), (np.nan, 2)])
def test_a_range_that_is_none_is_refused(near: float, far: float) -> None:
    with pytest.raises(InputError, match=r"colors cannot go from .* give a near over 0 and a larger far\.$"):
        depth_to_color(np.ones((2, 2)), near, far)
