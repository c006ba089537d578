"""Camera path planning: shake is removed, intended motion stays, and the crop never leaves a frame."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protoformer.stabilization.camera_motion import Motion, centered_cells, fit_motion
from protoformer.stabilization.planner import (
    MIN_SCALE,
    Corrections,
    Frame,
    OnlinePlanner,
    largest_crop,
    plan_online,
    plan_path,
    position_terms,
    stabilized_motions,
    static_path,
)
from protoformer.stabilization.quadratic_program import QuadraticProgram, solve

FRAME = Frame.of((240, 320), 0.9)


def motions_of(path: np.ndarray, angles: np.ndarray | None = None) -> list[Motion]:
    """A path of complex places, pixels, as motions of the picture."""
    turns = np.exp(1j * np.diff(np.zeros(len(path)) if angles is None else angles))
    return [Motion(complex(turn), complex(step), 1.0) for turn, step in zip(turns, np.diff(path), strict=True)]


def path_of(motions: list[Motion]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum([motion.shift for motion in motions])))


def shake(count: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(2, count))
    return 2.0 * (noise[0] + 1j * noise[1])


def corners_inside(corrections: Corrections, frame: Frame) -> bool:
    """Whether the crop, moved and turned, lies inside every frame."""
    corners = np.array(
        [x + 1j * y for x in (-frame.half_width, frame.half_width) for y in (-frame.half_height, frame.half_height)]
    )
    places = corrections.turns[:, None] * frame.crop * corners + corrections.shifts[:, None]
    return bool((np.abs(places.real) <= frame.half_width).all() and (np.abs(places.imag) <= frame.half_height).all())


def test_shake_is_flattened() -> None:
    motions = motions_of(shake(120))
    steady = path_of(stabilized_motions(motions, plan_path(motions, FRAME)))
    assert np.abs(np.diff(steady)).max() < 1 and np.abs(np.diff(steady, 2)).max() < 0.1
    assert np.abs(np.diff(path_of(motions), 2)).mean() > 4


def test_a_pan_is_left_alone() -> None:
    motions = motions_of(np.arange(100) * (3 - 1j))
    result = plan_path(motions, FRAME)
    assert np.abs(result.shifts).max() < 1e-3 and np.abs(result.turns - 1).max() < 1e-5
    assert largest_crop(result, FRAME) > 0.999


def test_a_pan_with_shake_becomes_a_pan() -> None:
    pan = np.arange(150) * 2.5
    motions = motions_of(pan + shake(150), 0.003 * shake(150, 1).real)
    steady = stabilized_motions(motions, plan_path(motions, FRAME))
    steps = np.array([motion.shift for motion in steady])
    assert np.abs(steps - 2.5).max() < 0.5 and np.abs(np.angle([motion.turn for motion in steady])).max() < 0.002


def test_where_room_is_short_a_horizon_is_kept_level_before_a_shift_is() -> None:
    """A sway of more than the crop has room for, in both: of the turn less is left."""
    sway = np.sin(np.arange(200) / 6)
    motions = motions_of(40 * sway, 0.25 * sway)
    steady = stabilized_motions(motions, plan_path(motions, FRAME))
    shifts = np.abs([motion.shift for motion in steady]).mean() / np.abs(np.diff(40 * sway)).mean()
    turns = np.abs(np.angle([motion.turn for motion in steady])).mean() / np.abs(np.diff(0.25 * sway)).mean()
    assert turns < 0.8 * shifts


def test_a_camera_on_a_tripod_does_not_move_within_the_margin() -> None:
    motions = motions_of(8 * np.sin(np.arange(80) / 12) + shake(80))
    assert (
        np.abs([motion.shift for motion in stabilized_motions(motions, plan_path(motions, FRAME, tripod=True))]).max()
        < 0.05
    )


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    count=st.integers(1, 30),
    size=st.floats(0, 60),
    turn=st.floats(0, 0.2),
    share=st.floats(0.6, 0.99),
    tripod=st.booleans(),
)
@example(seed=0, count=2, size=0.0, turn=4.5e-302, share=0.75, tripod=False)
@example(seed=25, count=4, size=0.0, turn=0.125, share=0.875, tripod=False)
def test_the_crop_never_leaves_a_frame(
    seed: int, count: int, size: float, turn: float, share: float, tripod: bool
) -> None:
    motions = motions_of(size * shake(count, seed), turn * shake(count, seed + 1).real)
    frame = Frame.of((48, 64), share)
    for result in (plan_path(motions, frame, tripod), plan_online(motions, frame, 4)):
        assert len(result.turns) == count and corners_inside(result, frame)
        assert largest_crop(result, frame) >= share


@pytest.mark.parametrize("share", [0.9997, 0.99985, 0.9999, 0.99999, 1.0])
def test_where_the_crop_leaves_no_room_frames_stay_as_they_are(share: float) -> None:
    motions, frame = motions_of(shake(12)), Frame.of((48, 64), share)
    for result in (plan_path(motions, frame), plan_path(motions, frame, tripod=True), plan_online(motions, frame, 3)):
        assert corners_inside(result, frame) and np.abs(result.turns).min() > MIN_SCALE - 1e-9
        assert (share < 0.9998) == bool(result.shifts.any())


def test_a_chain_that_begins_beyond_its_bounds_is_refused() -> None:
    frame = Frame.of((48, 64), 0.9)
    program = QuadraticProgram(
        (position_terms(static_path(3, frame), 1.0),), np.ones((3, 1, 4)), np.full((3, 1), frame.radius)
    )
    with pytest.raises(ValueError, match="strictly within every bound"):
        solve(program, static_path(3, frame))


def test_no_decision_waits_longer_than_its_delay() -> None:
    motions = motions_of(shake(40) + np.arange(40))
    planner = OnlinePlanner(FRAME, 5)
    answers = [planner.add(motion) is not None for motion in motions]
    assert answers == [False] * 4 + [True] * 35 and len(planner.rest()) == 5
    other = [*motions[:20], *motions_of(30 * shake(20, 7))]
    one, two = plan_online(motions, FRAME, 5), plan_online(other, FRAME, 5)
    assert np.allclose(one.shifts[:16], two.shifts[:16]) and not np.allclose(one.shifts[16:], two.shifts[16:])


def test_an_online_path_is_smoother_than_the_shake() -> None:
    motions = motions_of(np.arange(60) * 2 + shake(60))
    steady = path_of(stabilized_motions(motions, plan_online(motions, FRAME, 15)))
    assert np.abs(np.diff(steady, 2)).mean() < 0.1 * np.abs(np.diff(path_of(motions), 2)).mean()


def test_thousands_of_frames_are_planned_at_once() -> None:
    motions = motions_of(np.arange(3000) * 1.5 + shake(3000))
    result = plan_path(motions, FRAME)
    assert corners_inside(result, FRAME)
    assert np.abs(np.diff(path_of(stabilized_motions(motions, result))) - 1.5).max() < 0.5


def test_camera_motion_is_estimated_despite_independent_motion() -> None:
    places = centered_cells(12, 16, (96, 128)).ravel()
    turn, shift = 1.01 * np.exp(0.02j), 3 - 2j
    shifts = turn * places + shift - places
    shifts[:60] += 9 + 5j
    result = fit_motion(places, shifts, np.ones(len(places)))
    assert result.turn == pytest.approx(turn, abs=1e-6) and result.shift == pytest.approx(shift, abs=1e-4)
    assert 0.6 < result.inlier_fraction < 0.7


def test_a_motion_is_shared_among_steps_that_make_it_up() -> None:
    whole = Motion(1.1 * np.exp(0.3j), 5 - 3j, 1.0)
    part, place = whole.split(4), 7 + 2j
    for _ in range(4):
        place = part.turn * place + part.shift
    assert place == pytest.approx(whole.turn * (7 + 2j) + whole.shift)
