"""Flow drawn as colors and arrows."""

import numpy as np
import pytest
import torch

from protoformer.flow.drawing import arrow_factor, draw_arrows, draw_flow_frame
from protoformer.flow.video import FlowFrame
from protoformer.viz.colormaps import flow_to_color

SIZE = (300, 96)


def step(u: float, v: float, frame: np.ndarray | None = None) -> FlowFrame:
    flow = torch.tensor([u, v]).view(2, 1, 1).expand(2, *SIZE).contiguous()
    gray = np.full((*SIZE, 3), 90, np.uint8) if frame is None else frame
    return FlowFrame(flow, torch.ones(1, *SIZE), frame=gray)


def test_colors_are_those_of_the_scale_however_large_the_frame() -> None:
    random = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(0))
    found = draw_flow_frame(FlowFrame(random, torch.ones(1, *SIZE)), 2.5)
    assert np.array_equal(found, flow_to_color(random.permute(1, 2, 0).numpy(), 2.5))


def test_side_by_side_has_the_frame_on_the_left() -> None:
    found = draw_flow_frame(step(3, 0), 3.0, side_by_side=True)
    assert found.shape == (300, 192, 3)
    assert (found[:, :96] == 90).all()
    assert np.array_equal(found[:, 96:], draw_flow_frame(step(3, 0), 3.0))


def test_arrows_lie_on_a_copy_of_the_frame_and_point_along_the_motion() -> None:
    still, right = step(0.1, 0), step(8, 0)
    assert (draw_flow_frame(still, 1.0, arrows=True) == 90).all()
    found = draw_flow_frame(right, 1.0, arrows=True)
    assert found.shape == (300, 96, 3) and not (found == 90).all()
    assert right.frame is not None and (right.frame == 90).all()
    changed = (found != 90).any(axis=2)
    # A row of arrows marks a thin line of rows, and between two rows of them nothing changes.
    assert not changed.all(axis=1).any() and not changed.any(axis=1).all()


def test_arrows_of_slow_motion_are_lengthened_until_they_are_seen() -> None:
    assert [arrow_factor((400, 640), scale) for scale in (1.0, 4.0, 13.0, 39.0, 200.0)] == [39, 10, 3, 1, 1]
    assert arrow_factor((1080, 1920), 4.0) == 30

    def reach(motion: float, scale: float) -> int:
        """How many columns an arrow changes."""
        changed = (draw_flow_frame(step(motion, 0), scale, arrows=True) != 90).any(axis=2)
        return int(changed[:, :18].any(axis=0).sum())

    assert reach(1.0, 8.0) == 0 and reach(1.0, 1.0) > 10  # nothing beside what is fast; by itself, all there is


def test_what_is_fast_in_a_still_clip_has_arrows_that_do_not_cross_the_frame() -> None:
    frame = np.zeros((360, 640, 3), np.uint8)
    flow = torch.zeros(2, *frame.shape[:2])
    flow[0, :100, :100] = 40.0
    draw_arrows(frame, flow, arrow_factor(frame.shape[:2], 1.0))
    drawn = frame.any(axis=2)
    assert drawn[:100, :100].any() and not drawn[:, 200:].any() and not drawn[110:].any()


def test_frames_of_floats_are_shown_too() -> None:
    found = draw_flow_frame(step(0, 0, np.full((*SIZE, 3), 0.2, np.float32)), 1.0, side_by_side=True)
    assert (found[:, :96] == 51).all()


def test_a_step_without_its_frame_cannot_stand_beside_it() -> None:
    with pytest.raises(ValueError, match="the result has no frame"):
        draw_flow_frame(FlowFrame(torch.zeros(2, 8, 8), torch.ones(1, 8, 8)), 1.0, arrows=True)
