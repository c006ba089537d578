"""Flicker is the change of the log depth of a point between two frames."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protoformer.depth.metrics import depth_flicker


@given(st.integers(-3, 3), st.integers(-2, 2), st.floats(0.8, 1.25))
def test_a_depth_that_moves_with_the_image_does_not_flicker(right: int, down: int, scale: float) -> None:
    pattern = 1 + torch.rand(1, 1, 20, 30, generator=torch.Generator().manual_seed(1))
    moved = scale * torch.roll(pattern, (down, right), dims=(2, 3))
    flow = torch.zeros(1, 2, 20, 30)
    flow[:, 0], flow[:, 1] = right, down
    visible = torch.zeros(1, 1, 20, 30, dtype=torch.bool)
    visible[..., 3:-3, 3:-3] = True
    result = depth_flicker(torch.cat((pattern, moved)), flow, visible)
    assert result == pytest.approx(abs(math.log(scale)), abs=1e-5)


def test_only_what_is_visible_counts() -> None:
    depths = torch.ones(3, 1, 4, 6)
    depths[2, :, :2] = math.e
    flows, visible = torch.zeros(2, 2, 4, 6), torch.ones(2, 1, 4, 6, dtype=torch.bool)
    assert depth_flicker(depths, flows, visible) == pytest.approx(0.25)
    visible[1, :, :2] = False
    assert depth_flicker(depths, flows, visible) == pytest.approx(0)
    assert math.isnan(depth_flicker(depths, flows, torch.zeros_like(visible)))


def test_flows_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"flows of 3 depths must be \[2, 2, 4, 6\]"):
        depth_flicker(torch.ones(3, 1, 4, 6), torch.zeros(3, 2, 4, 6), torch.ones(2, 1, 4, 6, dtype=torch.bool))
