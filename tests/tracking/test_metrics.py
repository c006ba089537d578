"""Tracking metrics of boxes that match, lag behind or lose an object."""

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.tracking.evaluation import TrackMetric
from protoformer.tracking.metrics import TrackScores, track_scores


def still(frames: int = 10) -> torch.Tensor:
    """A box of 40 x 20 that stays where it is: T x 4."""
    return torch.tensor([100.0, 50.0, 40.0, 20.0]).expand(frames, 4).clone()


def seen(frames: int = 10) -> torch.Tensor:
    return torch.ones(frames, dtype=torch.bool)


def moved(boxes: torch.Tensor, right: float, down: float) -> torch.Tensor:
    return boxes + torch.tensor([right, down, 0.0, 0.0])


def flat(scores: TrackScores) -> dict[str, float]:
    fields = asdict(scores)
    numbers = {name: value for name, value in fields.items() if not isinstance(value, tuple)}
    for name in ("success_curve", "precision_curve"):
        numbers |= {f"{name} {place}": value for place, value in enumerate(fields[name])}
    return numbers


def same(scores: TrackScores, expected: TrackScores) -> bool:
    return flat(scores) == pytest.approx(flat(expected), abs=1e-12, nan_ok=True)


def test_a_perfect_track_overlaps_beyond_every_threshold_but_the_last() -> None:
    scores = track_scores(still(), still(), seen())
    assert scores.success_curve == (1.0,) * 20 + (0.0,)
    assert scores.precision_curve == (1.0,) * 51
    assert scores.success == pytest.approx(20 / 21)
    assert (scores.precision, scores.normalized_precision, scores.normalized_precision_auc) == (1.0, 1.0, 1.0)
    assert (scores.sequences, scores.frames) == (1, 10)


def test_a_box_that_lags_by_a_constant_gives_steps_at_its_errors() -> None:
    # Shifted by (8, 6): 10 px; (0.2, 0.3) of the box, 0.3606; overlap 32 * 14 / (2 * 800 - 448) = 0.3889.
    scores = track_scores(moved(still(), 8, 6), still(), seen())
    # Of the ten frames nine lag; the first is given.
    assert scores.success_curve == pytest.approx([1.0] * 8 + [0.1] * 12 + [0.0])
    assert scores.success == pytest.approx((8 + 1.2) / 21)
    assert scores.precision_curve == pytest.approx([0.1] * 10 + [1.0] * 41)
    assert scores.precision == 1.0
    assert scores.normalized_precision == pytest.approx(0.1)
    assert scores.normalized_precision_auc == pytest.approx((37 * 0.1 + 14) / 51)


def test_an_error_of_just_the_threshold_is_precise() -> None:
    assert track_scores(moved(still(), 12, 16), still(), seen()).precision == 1.0
    assert track_scores(moved(still(), 12, 16.01), still(), seen()).precision == pytest.approx(0.1)
    assert track_scores(moved(still(), 8, 0), still(), seen()).normalized_precision == 1.0
    assert track_scores(moved(still(), 8.01, 0), still(), seen()).normalized_precision == pytest.approx(0.1)


def test_an_overlap_of_just_the_threshold_is_no_success() -> None:
    # A quarter of the true box: overlap 0.25, the sixth threshold.
    quarter = still() * torch.tensor([1.0, 1.0, 0.5, 0.5])
    assert track_scores(quarter, still(), seen()).success_curve == pytest.approx([1.0] * 5 + [0.1] * 15 + [0.0])


def test_a_tracker_that_loses_the_object_half_way_has_half_of_everything() -> None:
    predicted = still()
    predicted[5:] = moved(predicted[5:], 300, 0)
    scores = track_scores(predicted, still(), seen())
    assert scores.success_curve == (0.5,) * 20 + (0.0,)
    assert scores.success == pytest.approx(10 / 21)
    assert scores.precision_curve == (0.5,) * 51
    assert (scores.normalized_precision, scores.normalized_precision_auc) == (0.5, 0.5)


def test_frames_without_the_object_are_left_out() -> None:
    predicted, truth, present = still(), still(), seen()
    predicted[6:] = moved(predicted[6:], 300, 0)
    present[6] = False
    truth[7] = math.nan
    truth[8, 2:] = 0
    predicted[6] = math.nan
    scores = track_scores(predicted, truth, present)
    assert scores.frames == 7
    assert scores.precision == pytest.approx(6 / 7)
    assert scores.success == pytest.approx(6 / 7 * 20 / 21)


def test_the_first_frame_counts_as_given() -> None:
    predicted = still(2)
    predicted[0] = math.nan
    assert same(track_scores(predicted, still(2), seen(2)), track_scores(still(2), still(2), seen(2)))


def test_a_first_frame_without_the_object_does_not_count() -> None:
    assert track_scores(still(), still(), seen() & (torch.arange(10) > 0)).frames == 9


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.tuples(*[st.integers(-30, 30)] * 2, *[st.integers(1, 60)] * 2), min_size=1, max_size=12),
    right=st.integers(-500, 500),
    seed=st.integers(0, 99),
)
def test_neither_place_nor_order_of_frames_changes_a_score(
    steps: list[tuple[int, int, int, int]], right: int, seed: int
) -> None:
    predicted = torch.cat((still(1), torch.tensor(steps) + torch.tensor([100.0, 50.0, 0.0, 0.0])))
    truth, present = still(len(predicted)), seen(len(predicted))
    scores = track_scores(predicted, truth, present)
    assert track_scores(moved(predicted, right, 0), moved(truth, right, 0), present) == scores
    order = torch.cat((torch.zeros(1, dtype=torch.long), 1 + torch.randperm(len(steps), generator=_seeded(seed))))
    assert same(track_scores(predicted[order], truth, present), scores)
    assert 0 <= scores.success <= 20 / 21 + 1e-12
    assert list(scores.success_curve) == sorted(scores.success_curve, reverse=True)
    assert list(scores.precision_curve) == sorted(scores.precision_curve)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=20, deadline=None)
@given(lost_from=st.integers(1, 20), hidden=st.integers(0, 19))
def test_success_is_the_share_of_frames_before_the_loss(lost_from: int, hidden: int) -> None:
    predicted, present = still(20), seen(20)
    predicted[lost_from:] = moved(predicted[lost_from:], 300, 0)
    present[hidden] = False
    kept = lost_from - (hidden < lost_from)
    scores = track_scores(predicted, still(20), present)
    assert scores.success == pytest.approx(kept / 19 * 20 / 21)
    assert scores.precision == pytest.approx(kept / 19)


def sequences() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    return [
        (still(4), still(4), seen(4)),
        (moved(still(10), 300, 0), still(10), seen(10)),
        (still(3), still(3), ~seen(3)),
    ]


def test_sequences_weigh_alike_however_long_they_are() -> None:
    metric = TrackMetric()
    for sequence in sequences():
        metric.update(*sequence)
    scores = metric.compute()
    assert scores.success == pytest.approx((1 + 0.1) / 2 * 20 / 21)
    assert scores.precision == pytest.approx((1 + 0.1) / 2)
    assert (scores.sequences, scores.frames) == (2, 14)  # in the third nothing is seen


def test_one_sequence_scores_the_same_either_way() -> None:
    metric = TrackMetric()
    metric.update(*sequences()[1])
    assert same(metric.compute(), track_scores(*sequences()[1]))


def test_two_metrics_merge_into_one() -> None:
    whole, first, second = TrackMetric(), TrackMetric(), TrackMetric()
    for sequence in sequences():
        whole.update(*sequence)
    first.update(*sequences()[0])
    second.update(*sequences()[1])
    second.update(*sequences()[2])
    first.merge_state(second)
    assert same(first.compute(), whole.compute())


def test_a_sequence_in_which_nothing_is_seen_has_no_score() -> None:
    scores = track_scores(*sequences()[2])
    assert math.isnan(scores.success) and math.isnan(scores.precision) and math.isnan(scores.normalized_precision)
    assert (scores.sequences, scores.frames) == (0, 0)


def test_a_box_that_is_not_finite_is_an_error() -> None:
    predicted = still()
    predicted[3:5, 1] = math.inf
    with pytest.raises(ValueError, match="not finite in 2 frames that count, the first being 3"):
        TrackMetric().update(predicted, still(), seen())


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"T x 4 boxes, not \[9, 4\] and \[10, 4\]"):
        track_scores(still(9), still(10), seen(10))
    with pytest.raises(ValueError, match="present must be 10 bools"):
        track_scores(still(10), still(10), seen(9))
    with pytest.raises(ValueError, match=r"present must be 10 bools, not torch\.int64"):
        track_scores(still(10), still(10), seen(10).long())
