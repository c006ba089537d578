"""State of a target: search region, score thresholds and size smoothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protoformer.tracking.result import Box
from protoformer.tracking.tracker import (
    LOST_SCORE,
    PATIENCE,
    REDETECT_SCORE,
    REDETECT_SCORE_REMOTE,
    REMOTE_REGIONS,
    Candidate,
    SearchRegion,
    Target,
)

SIZE = (240, 320)
BOX = (100.0, 80.0, 40.0, 30.0)


def candidate(box: Box, score: float, remote: bool = False) -> Candidate:
    return Candidate(SearchRegion(0.0, 0.0, 1.0, remote), box, score)


def lost(frames: int) -> Target:
    target = Target(BOX)
    for _ in range(frames):
        target = target.after(candidate((0.0, 0.0, 9.0, 9.0), 0.0), SIZE)
    return target


def side(target: Target) -> float:
    return target.search_regions(4.0, SIZE)[0].side


def test_a_target_is_searched_around_its_last_box() -> None:
    (region,) = Target(BOX).search_regions(4.0, SIZE)
    assert (region.x, region.y, region.remote) == (120, 95, False)
    assert region.side == pytest.approx(4 * (40 * 30) ** 0.5)


def test_a_sure_box_is_taken_over_and_its_size_changes_a_little_less_than_it_was_seen_to() -> None:
    target = Target(BOX).after(candidate((110.0, 90.0, 44.0, 30.0), 0.9), SIZE)
    x, y, width, height = target.box
    assert (x + width / 2, y + height / 2) == pytest.approx((132, 105))
    assert 40 < width < 44 and height == pytest.approx(30) and not target.lost


def test_a_low_score_is_ignored_and_the_last_sure_one_stays() -> None:
    target = Target(BOX).after(candidate((0.0, 0.0, 9.0, 9.0), LOST_SCORE - 0.01), SIZE)
    assert target.lost and target.box == BOX and target.prior_strength == 0
    assert Target(BOX).after(candidate((0.0, 0.0, 9.0, 9.0), LOST_SCORE + 0.01), SIZE).lost is False


def test_a_lost_target_is_detected_again_from_a_higher_score_on_and_a_still_higher_one_far_away() -> None:
    result = (200.0, 100.0, 50.0, 20.0)
    assert lost(3).after(candidate(result, REDETECT_SCORE - 0.01), SIZE).frames_lost == 4
    assert lost(3).after(candidate(result, REDETECT_SCORE), SIZE) == Target(result)
    assert lost(30).after(candidate(result, REDETECT_SCORE_REMOTE - 0.01, remote=True), SIZE).lost
    assert lost(30).after(candidate(result, REDETECT_SCORE_REMOTE, remote=True), SIZE) == Target(result)


def test_a_window_grows_while_the_target_is_lost_and_not_without_end() -> None:
    sides = [lost(frames).search_regions(4.0, SIZE)[0].side for frames in range(40)]
    assert sides == sorted(sides) and sides[PATIENCE] == pytest.approx(2 * sides[0])
    assert sides[-1] == sides[-2] == pytest.approx(2 * sides[0])
    assert {region.side for region in Target(BOX, frames_lost=10**6).search_regions(4.0, SIZE)} == {sides[-1]}


def test_a_size_changes_by_a_third_a_frame_at_most_and_a_window_keeps_a_quarter_of_the_first() -> None:
    target = Target(BOX)
    for _ in range(4):
        before = target
        target = target.after(candidate((110.0, 90.0, 2.0, 2.0), 0.9), SIZE)
        ratios = [now / old for now, old in zip(target.box[2:], before.box[2:], strict=True)]
        assert ratios == pytest.approx([0.75, 0.75])
    assert target.box[2:] == pytest.approx((40 * 0.75**4, 30 * 0.75**4))
    for _ in range(20):
        target = target.after(candidate((110.0, 90.0, 2.0, 2.0), 0.9), SIZE)
    assert side(target) == pytest.approx(0.25 * side(Target(BOX)))
    grown = Target(BOX).after(candidate((0.0, 0.0, 200.0, 200.0), 0.9), SIZE)
    assert grown.box[2:] == pytest.approx((40 * 4 / 3, 30 * 4 / 3))


def test_a_lost_target_is_looked_for_at_its_usual_size() -> None:
    target = Target(BOX)
    for _ in range(3):  # as it vanishes behind something, a sliver is seen
        target = target.after(candidate((115.0, 90.0, 10.0, 10.0), 0.9), SIZE)
    assert target.box[2] < 0.45 * BOX[2]
    seen, gone = side(target), side(target.after(candidate(BOX, 0.0), SIZE))
    assert gone > 1.6 * seen and gone < 1.08 * side(Target(BOX))


@given(st.integers(20, 400), st.integers(20, 400), st.floats(4, 60))
def test_the_whole_frame_is_searched_in_time(height: int, width: int, side: float) -> None:
    target, covered = Target((1.0, 2.0, side, side), frames_lost=PATIENCE), set()
    points = {(row, column) for row in range(0, height, 10) for column in range(0, width, 10)}
    for _ in range(40 * 40):
        local, *remote = target.search_regions(4.0, (height, width))
        assert not local.remote and 1 <= len(remote) <= REMOTE_REGIONS and all(region.remote for region in remote)
        for region in remote:
            covered |= {
                (row, column)
                for row, column in points
                if max(abs(region.x - column), abs(region.y - row)) <= region.side / 2
            }
        if covered == points:
            return
        target = target.after(candidate((0.0, 0.0, 9.0, 9.0), 0.0), (height, width))
    raise AssertionError("some points were never searched")


def test_a_frame_of_480p_is_searched_within_a_second_for_a_target_of_30_pixels() -> None:
    centers = set()
    for frames_lost in range(30):
        centers |= {
            (region.x, region.y)
            for region in Target((0.0, 0.0, 30.0, 30.0), frames_lost=frames_lost).search_regions(4.0, (480, 854))
            if region.remote
        }
    assert len(centers) == 6 * 3


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ((-10.0, -5.0, 30.0, 30.0), (0, 0, 20, 25)),
        ((310.0, 230.0, 30.0, 30.0), (310, 230, 10, 10)),
        ((330.0, 50.0, 20.0, 20.0), None),
        ((-30.0, 50.0, 29.0, 20.0), None),
        ((50.0, 50.0, -5.0, 20.0), None),
        ((float("nan"), 50.0, 5.0, 20.0), None),
    ],
)
def test_a_box_is_cut_to_the_frame_and_one_that_left_it_is_lost(
    result: tuple[float, ...], expected: tuple[float, ...] | None
) -> None:
    target = lost(1).after(candidate(result, 0.9), SIZE)
    assert target.lost if expected is None else target.box == expected
