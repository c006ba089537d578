"""Plots of the camera path, in camera units."""

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import protoformer as pf
from protoformer.stabilization.drawing import (
    align_stabilized_path,
    describe_too_short,
    path_page,
    plot_path,
    to_camera_motion,
)
from protoformer.stabilization.metrics import StabilityScores
from protoformer.stabilization.planner import Corrections


def result_of(before: np.ndarray, turns: np.ndarray, shifts: np.ndarray, rate: int = 30) -> pf.StabilizationResult:
    """Of frames of 300x200 pixels."""
    numbers = tuple(range(len(before)))
    times = tuple(Fraction(number, rate) for number in numbers)
    corrections = Corrections(turns.astype(complex), shifts.astype(complex))
    after = before - before[0]
    return pf.StabilizationResult((200, 300), corrections, (), 0.9, False, before, after, (), (), times, numbers)


def swaying(count: int) -> np.ndarray:
    """What is seen goes 8 px to either side, around where it is at first."""
    path = np.zeros((count, 4))
    path[:, 0] = 8 * np.sin(np.arange(count))
    return path


def test_a_sway_that_is_taken_away_leaves_a_line_through_its_middle() -> None:
    before = swaying(20) + 3.0 * np.eye(4)[0]
    before -= before[0]
    steady = result_of(before, np.ones(20), before[:, 0] - 3)
    assert (
        align_stabilized_path(steady)[:, 0] == pytest.approx(np.full(20, 3.0))
        and not align_stabilized_path(steady)[:, 1:].any()
    )


def test_the_steady_path_lies_where_the_warp_shows_the_middle_of_a_frame() -> None:
    turn, shift = 0.98 * np.exp(0.03j), 5 - 2j
    result = result_of(np.zeros((1, 4)), np.array([turn]), np.array([shift]))
    matrix = result.view(0).matrix(result.size)
    center = np.array([(300 - 1) / 2, (200 - 1) / 2])
    seen_at = np.linalg.solve(matrix[:, :2], center - matrix[:, 2])
    x, y, angle, scale = align_stabilized_path(result)[0]
    assert (x, y) == pytest.approx(tuple(result.crop_fraction * (seen_at - center)))
    assert angle == pytest.approx(-0.03) and scale == pytest.approx(-np.log(0.98))


def test_what_is_seen_goes_left_and_down_where_the_camera_goes_right_and_up() -> None:
    path = np.array([[-4.0, 3.0, np.radians(-2), np.log(1.25)]])
    assert to_camera_motion(path)[0] == pytest.approx((4, 3, 2, 25))


def test_plots_have_units_of_people_and_round_marks() -> None:
    plots = [str(figure.content) for figure in plot_path(result_of(swaying(8), np.ones(8), np.zeros(8)))]
    labels = [re.findall(r">([^<>]+)</text>", plot) for plot in plots]  # x ticks, "seconds", y ticks, unit, legend
    assert [each[-3] for each in labels] == ["pixels to the right", "pixels up", "degrees clockwise", "percent zoom"]
    assert labels[0][:-3] == ["0", "0.1", "0.2", "seconds", "-5", "0", "5"]
    assert labels[1][4:7] == ["-0.5", "-0.25", "0"]


def test_every_shot_is_a_line_of_its_own() -> None:
    still = result_of(swaying(20), np.ones(20, complex), np.zeros(20, complex))
    whole, cut = (path_page("clip.mp4", each).html() for each in (still, replace(still, cuts=(8,))))
    assert [html.count('class="plot-curve"') for html in (whole, cut)] == [8, 16]


def test_counts_of_one_are_singular() -> None:
    page = path_page("one.png", result_of(np.zeros((1, 4)), np.ones(1), np.zeros(1))).html()
    assert "<p>1 frame; 90.0% of each side" in page and "0 cuts, 0 frames interpolated" in page
    one = StabilityScores(*[1.0] * 8, videos=1, frames=1, skipped_frames=0, skipped_motions=0)
    assert describe_too_short(one) == "too short to score: 1 frame, and it takes 101"
