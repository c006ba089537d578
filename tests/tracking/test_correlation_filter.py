"""The correlation filter tracks moving, growing and occluded targets."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.tracking.baselines import LOST_BELOW, CorrelationFilter


def texture(seed: int, height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def scene(x: int, y: int, width: int, height: int, seed: int = 0) -> np.ndarray:
    """A textured thing in front of a textured ground of 160x120 pixels."""
    frame = texture(seed + 100, 120, 160) // 2 + 60
    frame[y : y + height, x : x + width] = texture(seed, height, width)
    return frame


@settings(max_examples=12, deadline=None)
@given(
    width=st.integers(16, 44),
    height=st.integers(16, 44),
    right=st.integers(-4, 4),
    down=st.integers(-4, 4),
    seed=st.integers(0, 50),
)
def test_a_thing_that_moves_is_followed(width: int, height: int, right: int, down: int, seed: int) -> None:
    frames = [scene(60 + right * n, 40 + down * n, width, height, seed) for n in range(6)]
    follower = CorrelationFilter(frames[0], (60, 40, width, height))
    for number, frame in enumerate(frames[1:], 1):
        result = follower.follow(frame)
        x, y, wide, high = result.box
        assert x + wide / 2 == pytest.approx(60 + right * number + width / 2, abs=3)
        assert y + high / 2 == pytest.approx(40 + down * number + height / 2, abs=3)
    assert result.peak > LOST_BELOW


def test_what_stays_stays() -> None:
    frame = scene(50, 40, 30, 20)
    follower = CorrelationFilter(frame, (50, 40, 30, 20))
    assert follower.box == (50, 40, 30, 20)
    result = [follower.follow(frame) for _ in range(3)][-1]
    assert result.box == pytest.approx((50, 40, 30, 20), abs=0.1)
    assert result.peak > 0.8


def test_what_comes_nearer_gets_a_larger_box() -> None:
    view = scene(60, 45, 36, 30)
    follower = CorrelationFilter(view, (60, 45, 36, 30))
    for number in range(1, 13):
        scale = 1.03**number
        about = cv2.getRotationMatrix2D((78.0, 60.0), 0.0, scale)
        result = follower.follow(cv2.warpAffine(view, about, (160, 120), borderMode=cv2.BORDER_REPLICATE))
    x, y, width, height = result.box
    assert width == pytest.approx(36 * scale, rel=0.12) and height / width == pytest.approx(30 / 36)
    assert (x + width / 2, y + height / 2) == pytest.approx((78, 60), abs=3)


def test_a_thing_that_is_gone_is_lost_and_its_box_stays() -> None:
    follower = CorrelationFilter(scene(60, 40, 30, 30), (60, 40, 30, 30))
    result = follower.follow(np.full((120, 160, 3), 90, np.uint8))
    assert result.peak < LOST_BELOW
    assert result.box == pytest.approx((60, 40, 30, 30))
    assert follower.follow(scene(62, 41, 30, 30)).box[:2] == pytest.approx((62, 41), abs=2)


def test_a_box_at_the_border_and_beyond_it_is_no_trouble() -> None:
    frame = scene(0, 0, 20, 20)
    for box in ((-10, -10, 30, 30), (150, 110, 40, 40), (0, 0, 160, 120), (5, 5, 1, 1), (3.5, 4.25, 2, 90)):
        result = CorrelationFilter(frame, box).follow(frame)
        assert np.isfinite(result.box).all() and 0 <= result.peak <= 1
