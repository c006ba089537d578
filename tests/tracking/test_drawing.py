"""Drawing of boxes: one color per target, readable on any background, dashed if lost."""

import numpy as np
import pytest

from protoformer.tracking.drawing import draw_targets, target_color
from protoformer.tracking.result import TrackedBox


def blank(gray: int = 128, height: int = 240, width: int = 320) -> np.ndarray:
    return np.full((height, width, 3), gray, np.uint8)


def seen(*box: float, lost: bool = False) -> TrackedBox:
    return TrackedBox((box[0], box[1], box[2], box[3]), 0.5, lost)


def near(frame: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """Pixels of a color, H x W, bool."""
    return np.abs(frame.astype(int) - color).max(axis=2) < 30


def test_a_box_goes_through_its_corner_pixels() -> None:
    frame = blank()
    assert draw_targets(frame, [seen(100, 80, 60, 40)]) is frame
    line = near(frame, target_color(0))
    assert line[90:115, 100].all() and line[90:115, 159].all() and line[119, 110:150].all() and line[80, 140:158].all()
    assert (frame[85:114, 106:153] == 128).all()  # what is inside can be seen
    assert (frame[130:, :] == 128).all()


def test_the_color_of_a_target_does_not_depend_on_the_others() -> None:
    colors = [target_color(index) for index in range(8)]
    assert len(set(colors)) == 8
    alone, together = (
        draw_targets(blank(), boxes)
        for boxes in ([seen(20, 60, 60, 60)], [seen(20, 60, 60, 60), seen(200, 60, 60, 60)])
    )
    assert (alone[:, :150] == together[:, :150]).all()


@pytest.mark.parametrize("gray", [0, 128, 255])
def test_a_box_contrasts_with_any_background(gray: int) -> None:
    for index in range(6):
        frame = draw_targets(blank(gray), [seen(-900, 0, 5, 5)] * index + [seen(100, 80, 60, 40)])
        across = frame[100, 95:106].astype(int)
        assert np.abs(across - gray).max() > 90


def test_a_lost_target_is_broken_and_dim() -> None:
    whole, broken = (draw_targets(blank(), [seen(100, 80, 100, 100, lost=lost)]) for lost in (False, True))
    row = slice(105, 195)
    assert (whole[179, row] != 128).all(axis=-1).all()
    gaps = (broken[179, row] == 128).all(axis=-1)
    assert 0.2 < gaps.mean() < 0.8
    assert not near(broken, target_color(0)).any()


@pytest.mark.parametrize(
    "box", [(-50, -50, 60, 60), (310, 230, 50, 50), (0, 0, 320, 240), (1e7, -1e7, 1e8, 3), (5, 5, 0.2, 0.2)]
)
def test_a_box_anywhere_is_drawn_and_its_label_stays_in_the_frame(box: tuple[float, float, float, float]) -> None:
    frame = draw_targets(blank(), [seen(*box)])
    assert (frame != 128).any()
    assert near(frame, target_color(0)).sum() > 100  # the label, at least


def test_the_smallest_frame_is_no_trouble() -> None:
    draw_targets(blank(height=4, width=6), [seen(1, 1, 2, 2), seen(0, 0, 6, 4, lost=True)])
