"""Stability metrics of camera paths and crops with exact expectations."""

import math
from dataclasses import asdict

import pytest
import torch

from protoformer.stabilization.evaluation import StabilityMetric
from protoformer.stabilization.metrics import (
    StabilityScores,
    camera_path,
    low_frequency_fraction,
    path_signals,
    stability_scores,
)

FRAMES = 41  # and so 40 motions
TIME = torch.arange(FRAMES - 1, dtype=torch.float64)


def identity(count: int = FRAMES) -> torch.Tensor:
    return torch.eye(3, dtype=torch.float64).expand(count, 3, 3).clone()


def places(x: torch.Tensor, y: torch.Tensor | float = 0.0, angle: torch.Tensor | float = 0.0) -> torch.Tensor:
    """A path: position in pixels and angle in radians after each motion, n x 3 x 3."""
    y, angle = (torch.as_tensor(value, dtype=torch.float64).expand_as(x) for value in (y, angle))
    path = identity(len(x))
    path[:, 0, 0] = path[:, 1, 1] = angle.cos()
    path[:, 1, 0], path[:, 0, 1] = angle.sin(), -angle.sin()
    path[:, 0, 2], path[:, 1, 2] = x, y
    return path


def motions_along(path: torch.Tensor) -> torch.Tensor:
    """The motions that lead from the origin to the first place, and on from each to the next."""
    before = torch.cat((identity(1), path[:-1]))
    return torch.linalg.solve(before, path)


def scaled(*factors: tuple[float, float]) -> torch.Tensor:
    views = identity(len(factors))
    for view, (across, down) in zip(views, factors, strict=True):
        view[0, 0], view[1, 1] = across, down
    return views


def wave(cycles: int, amplitude: float = 1.0) -> torch.Tensor:
    return amplitude * torch.cos(2 * math.pi * cycles * TIME / len(TIME))


def same(scores: StabilityScores, expected: StabilityScores) -> bool:
    return asdict(scores) == pytest.approx(asdict(expected), abs=1e-9, nan_ok=True)


def test_a_video_that_is_still_and_uncut_is_perfect() -> None:
    expected = StabilityScores(1, 1, 1, 1, 1, 1, 1, 0, videos=1, frames=FRAMES, skipped_frames=0, skipped_motions=0)
    assert same(stability_scores(identity(), identity(FRAMES - 1)), expected)


def test_a_homography_means_the_same_at_any_scale() -> None:
    views, motions = scaled(*[(1.25, 1.25)] * FRAMES), motions_along(places(10 + wave(3) + wave(9)))
    assert same(stability_scores(-7 * views, 0.1 * motions), stability_scores(views, motions))


def test_motions_chain_into_the_path_they_came_from() -> None:
    path = places(10 + wave(2), wave(5), 0.1 * wave(4))
    torch.testing.assert_close(camera_path(motions_along(path)), path, atol=1e-12, rtol=0)


def test_the_signals_of_a_path_are_its_distance_and_its_angle() -> None:
    distance, angle = path_signals(places(3 * TIME, 4 * TIME, 0.5 * TIME))
    torch.testing.assert_close(distance, 5 * TIME)
    torch.testing.assert_close(angle, 0.5 * TIME)  # through three full turns


@pytest.mark.parametrize(("cycles", "score"), [(1, 1.0), (5, 1.0), (6, 0.0), (13, 0.0), (20, 0.0)])
def test_five_frequencies_are_intended_and_the_rest_is_shake(cycles: int, score: float) -> None:
    scores = stability_scores(identity(), motions_along(places(50 + wave(cycles))))
    assert scores.stability_translation == pytest.approx(score, abs=1e-9)
    assert scores.stability_rotation == 1.0
    assert scores.stability == pytest.approx(score, abs=1e-9)


def test_the_share_is_one_of_energy() -> None:
    scores = stability_scores(identity(), motions_along(places(50 + wave(2, 3.0) + wave(9, 4.0))))
    assert scores.stability_translation == pytest.approx(9 / 25)


def test_the_less_stable_of_translation_and_rotation_is_the_stability() -> None:
    path = places(50 + wave(2, 4.0) + wave(9, 3.0), angle=0.02 * wave(1) + 0.02 * wave(11))
    scores = stability_scores(identity(), motions_along(path))
    assert scores.stability_translation == pytest.approx(16 / 25)
    assert scores.stability_rotation == pytest.approx(0.5)
    assert scores.stability == pytest.approx(0.5)
    assert scores.stability_usual == pytest.approx((16 / 25 + 0.5) / 2)  # of turns alone, both angles are the same


def test_the_usual_angle_is_that_of_the_first_column() -> None:
    path = torch.eye(3, dtype=torch.float64).repeat(len(TIME), 1, 1)
    path[:, 0, 1] = 0.1 * wave(12)  # a shear that leaves the first column alone
    path[:, 1, 0] = 0.01 * wave(2)
    scores = stability_scores(identity(), motions_along(path))
    assert scores.stability_rotation < 0.05
    assert scores.stability_usual == pytest.approx(1.0, abs=1e-3)


def test_a_steady_pan_is_a_ramp_whose_spectrum_is_known() -> None:
    # |X_k|^2 of 0, 1 .. n - 1 is (n / 2)^2 / sin^2(pi k / n).
    energy = [1 / math.sin(math.pi * k / 40) ** 2 for k in range(1, 21)]
    scores = stability_scores(identity(), motions_along(places(3 * (1 + TIME))))
    assert scores.stability == pytest.approx(sum(energy[:5]) / sum(energy))
    assert scores.stability > 0.85


def test_a_shake_makes_a_pan_less_stable() -> None:
    shake = torch.randn(len(TIME), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pan = 50 + 3 * TIME
    scores = [stability_scores(identity(), motions_along(places(pan + a * shake))).stability for a in (0, 5, 20)]
    assert scores == sorted(scores, reverse=True) and scores[2] < scores[0] - 0.1


def test_a_pan_does_not_accelerate_and_a_shake_does_both_ways() -> None:
    pan, shake = 3 * TIME, torch.tensor([0.0, 2.0]).repeat(FRAMES // 2).double()
    still = identity()
    assert stability_scores(still, motions_along(places(pan))).acceleration == pytest.approx(3 / 39)  # it starts once
    # From 0 to 2 and back: velocities of 0, 2, -2, 2, ... differ by 2 once and by 4 from then on.
    assert stability_scores(still, motions_along(places(shake))).acceleration == pytest.approx((2 + 38 * 4) / 39)
    assert stability_scores(still, motions_along(places(pan, shake))).acceleration > 4 * 38 / 39


def test_a_turn_about_the_center_does_not_accelerate_it() -> None:
    around, back = identity(1)[0], identity(1)[0]
    around[:2, 2], back[:2, 2] = torch.tensor([50.0, 30.0]), torch.tensor([-50.0, -30.0])
    turns = motions_along(places(torch.zeros_like(TIME), angle=wave(4, 0.1)))
    motions = around @ turns @ back
    assert stability_scores(identity(), motions, (50, 30)).acceleration == pytest.approx(0, abs=1e-9)
    assert stability_scores(identity(), motions).acceleration > 1


def test_an_acceleration_does_not_reach_over_a_motion_that_was_not_found() -> None:
    motions = motions_along(places(torch.where(TIME < 20, 0.0, 7 * (TIME - 20))))
    assert stability_scores(identity(), motions).acceleration == pytest.approx(7 / 39)
    motions[20] = math.nan  # between the rest and the pan: nothing that is known changes
    assert stability_scores(identity(), motions).acceleration == 0


def test_a_homography_that_turns_the_center_inside_out_accelerates_nothing() -> None:
    motions = identity(FRAMES - 1)
    motions[10, 2, 0] = -1 / 50  # no depth is left at x = 50
    assert stability_scores(identity(), motions, (50, 30)).acceleration == 0


def test_a_path_too_short_for_shake_has_no_stability() -> None:
    assert math.isnan(low_frequency_fraction(torch.arange(11.0)))
    assert 0 < low_frequency_fraction(torch.arange(12.0)) < 1
    scores = stability_scores(identity(1), identity(0))
    assert math.isnan(scores.stability) and scores.cropping == 1


@pytest.mark.parametrize(
    ("factors", "cropping", "distortion"),
    [
        ([(1.25, 1.25)] * 3, 0.8, 1.0),
        ([(1.0, 1.0), (2.0, 2.0)], 0.75, 1.0),
        ([(4.0, 1.0)], 0.5, 0.25),
        ([(1.0, 1.0), (1.0, 1.25), (1.0, 1.0)], (2 + 1 / math.sqrt(1.25)) / 3, 0.8),
        ([(0.5, 0.5)], 1.0, 1.0),
        ([(0.8, 0.8), (2.0, 2.0)], 0.875, 1.0),  # it is the mean that is at most 1
    ],
)
def test_enlarging_crops_and_stretching_distorts(factors, cropping: float, distortion: float) -> None:
    scores = stability_scores(scaled(*factors), identity(len(factors) - 1))
    assert scores.cropping == pytest.approx(cropping)
    assert scores.distortion == pytest.approx(distortion)
    assert scores.distortion_singular == pytest.approx(distortion)


def test_a_rotated_view_is_neither_cropped_nor_distorted() -> None:
    views = places(torch.full((3,), 20.0, dtype=torch.float64), 5.0, 1.2)
    scores = stability_scores(views, identity(2))
    assert (scores.cropping, scores.distortion, scores.distortion_singular) == pytest.approx((1, 1, 1))


def test_a_shear_shows_in_the_singular_values_alone() -> None:
    views = identity(1)
    views[0, 0, 1] = 1.5  # singular values 2 and 1/2, eigenvalues 1 and 1
    scores = stability_scores(views, identity(0))
    assert scores.distortion == pytest.approx(1, abs=1e-6)
    assert scores.distortion_singular == pytest.approx(0.25)


def test_frames_that_were_not_matched_are_skipped_and_counted() -> None:
    views, motions = scaled(*[(1.25, 1.25)] * FRAMES), motions_along(places(50 + 3 * TIME))
    views[3] = math.nan
    views[4] = torch.diag(torch.tensor([-1.0, 1.0, 1.0]))  # mirrored
    views[5] = 0.0
    motions[7] = math.nan
    scores = stability_scores(views, motions)
    assert (scores.frames, scores.skipped_frames, scores.skipped_motions) == (FRAMES, 3, 1)
    assert (scores.cropping, scores.distortion) == pytest.approx((0.8, 1.0))
    # Without that one, the pan is one of 39 motions.
    shorter = stability_scores(identity(FRAMES - 1), motions_along(places(50 + 3 * TIME[:-1])))
    assert scores.stability == pytest.approx(shorter.stability)


def test_a_video_of_which_nothing_was_matched_has_no_score() -> None:
    scores = stability_scores(math.nan * identity(), math.nan * identity(FRAMES - 1))
    assert all(math.isnan(value) for value in list(asdict(scores).values())[:6])
    assert (scores.videos, scores.frames, scores.skipped_frames, scores.skipped_motions) == (0, 41, 41, 40)


def videos() -> list[tuple[torch.Tensor, torch.Tensor]]:
    shaky = motions_along(places(50 + wave(2, 3.0) + wave(9, 4.0)))
    return [
        (identity(), identity(FRAMES - 1)),
        (scaled(*[(1.25, 1.0)] * FRAMES), shaky),
        (scaled((2.0, 2.0), (2.0, 2.0)), identity(1)),  # too short to have a stability
    ]


def test_videos_weigh_alike_each_in_the_scores_it_has() -> None:
    metric = StabilityMetric()
    for video in videos():
        metric.update(*video)
    scores = metric.compute()
    assert scores.cropping == pytest.approx((1 + 1 / math.sqrt(1.25) + 0.5) / 3)
    assert scores.distortion == pytest.approx((1 + 0.8 + 1) / 3)
    assert scores.stability == pytest.approx((1 + 9 / 25) / 2)
    assert (scores.videos, scores.frames) == (3, 84)


def test_two_metrics_merge_into_one() -> None:
    whole, first, second = StabilityMetric(), StabilityMetric(), StabilityMetric()
    for video in videos():
        whole.update(*video)
    first.update(*videos()[0])
    second.update(*videos()[1])
    second.update(*videos()[2])
    first.merge_state(second)
    assert same(first.compute(), whole.compute())


def test_a_stability_tells_something_once_what_is_intended_is_a_tenth_of_all_frequencies() -> None:
    """A shake that is the same at every frequency: a single jerk, which few frames would take for intended motion."""
    for motions, telling in ((30, False), (99, False), (100, True)):
        scores = stability_scores(identity(motions + 1), identity(motions))
        assert scores.is_reliable is telling and scores.stability == 1
        jerk = torch.nn.functional.one_hot(torch.tensor(7), motions).double()
        assert (low_frequency_fraction(jerk) <= 0.1) is telling
    lost = identity(110)
    lost[:11] = math.nan
    assert not stability_scores(identity(111), lost).is_reliable


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"not \[41, 3, 3\] and \[41, 3, 3\]"):
        stability_scores(identity(), identity())
    with pytest.raises(ValueError, match=r"not \[0, 3, 3\]"):
        stability_scores(identity(0), identity(0))
