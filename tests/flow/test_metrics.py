"""Errors of flows, against sums done by hand."""

import math
import pickle
from dataclasses import asdict, astuple

import pytest
import torch

from protoformer.flow.evaluation import FlowMetric
from protoformer.flow.metrics import FlowScores, flow_scores


def row_of(*vectors: tuple[float, float]) -> torch.Tensor:
    """A flow one pixel high: 1 x 2 x 1 x W."""
    return torch.tensor(vectors, dtype=torch.float32).T.reshape(1, 2, 1, -1)


def mask_of(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool).reshape(1, 1, 1, -1)


# Errors 5, 2, 4, 0 over true speeds 0, 10, 100, 40; the fifth pixel is not known.
FIRST = row_of((3, 4), (12, 0), (100, 4), (40, 0), (7, 7))
FIRST_TRUTH = row_of((0, 0), (10, 0), (100, 0), (40, 0), (math.nan, math.inf))
FIRST_VALID = mask_of(1, 1, 1, 1, 0)
FIRST_HIDDEN = mask_of(0, 1, 1, 0, 1)
# Error 8 over a true speed of 6 at the one pixel that is known.
SECOND = row_of((0, 0), (0, 14), (0, 0), (0, 0), (0, 0))
SECOND_TRUTH = row_of((0, 0), (0, 6), (0, 0), (0, 0), (0, 0))
SECOND_VALID = mask_of(0, 1, 0, 0, 0)
SECOND_HIDDEN = mask_of(1, 0, 0, 0, 0)

BOTH = FlowScores(
    epe=19 / 5,
    epe_per_image=(11 / 4 + 8) / 2,
    fl=40.0,  # errors 5 and 8; the 4 px are less than 5 % of 100 px
    fl_per_image=(25.0 + 100.0) / 2,
    px1=80.0,
    px3=60.0,
    px5=20.0,  # 5 px are not more than 5 px
    s0_10=(5 + 8) / 2,
    s10_40=(2 + 0) / 2,
    s40_plus=4.0,
    matched=(5 + 0 + 8) / 3,
    unmatched=(2 + 4) / 2,
    samples=2,
    pixels=5,
)


def batch() -> tuple[torch.Tensor, ...]:
    pairs = ((FIRST, SECOND), (FIRST_TRUTH, SECOND_TRUTH), (FIRST_VALID, SECOND_VALID), (FIRST_HIDDEN, SECOND_HIDDEN))
    return tuple(torch.cat(pair) for pair in pairs)


def same(scores: FlowScores, expected: FlowScores) -> bool:
    return asdict(scores) == pytest.approx(asdict(expected), abs=1e-12, nan_ok=True)


def test_every_figure_is_the_one_done_by_hand() -> None:
    metric = FlowMetric()
    metric.update(*batch())
    assert same(metric.compute(), BOTH)
    assert same(flow_scores(*batch()), BOTH)


def test_the_scores_are_plain_numbers() -> None:
    assert [type(value) for value in astuple(flow_scores(*batch()))] == [float] * 12 + [int] * 2


def test_batches_of_any_size_give_the_same() -> None:
    metric = FlowMetric()
    metric.update(FIRST, FIRST_TRUTH, FIRST_VALID, FIRST_HIDDEN)
    metric.update(SECOND, SECOND_TRUTH, SECOND_VALID, SECOND_HIDDEN)
    assert same(metric.compute(), BOTH)


def test_samples_may_differ_in_size() -> None:
    metric = FlowMetric()
    metric.update(FIRST, FIRST_TRUTH, FIRST_VALID, FIRST_HIDDEN)
    only = (slice(None), slice(None), slice(None), slice(1, 2))
    metric.update(SECOND[only], SECOND_TRUTH[only], SECOND_VALID[only], SECOND_HIDDEN[only])
    assert same(metric.compute(), BOTH)


def test_two_metrics_merge_into_one_even_after_a_result() -> None:
    first, second = FlowMetric(), FlowMetric()
    first.update(FIRST, FIRST_TRUTH, FIRST_VALID, FIRST_HIDDEN)
    second.update(SECOND, SECOND_TRUTH, SECOND_VALID, SECOND_HIDDEN)
    assert first.compute().samples == 1
    first.merge_state(second)
    assert same(first.compute(), BOTH)


def test_two_processes_that_saw_the_same_agree_on_its_scores() -> None:
    metric = FlowMetric()
    metric.update(*batch())
    metric.distributed_available_fn = lambda: True
    metric.dist_sync_fn = lambda state, group: [state, state]
    scores = asdict(metric.compute())
    assert (scores.pop("samples"), scores.pop("pixels")) == (4, 10)
    assert scores == pytest.approx({name: getattr(BOTH, name) for name in scores}, abs=1e-12)


def test_a_call_of_the_metric_returns_the_scores_of_that_batch_alone() -> None:
    metric = FlowMetric()
    metric(FIRST, FIRST_TRUTH, FIRST_VALID, FIRST_HIDDEN)
    alone = metric(SECOND, SECOND_TRUTH, SECOND_VALID, SECOND_HIDDEN)
    assert same(alone, flow_scores(SECOND, SECOND_TRUTH, SECOND_VALID, SECOND_HIDDEN))
    assert same(metric.compute(), BOTH)


def test_a_copy_and_a_pickle_go_on_from_where_the_metric_was() -> None:
    metric = FlowMetric()
    metric.update(FIRST, FIRST_TRUTH, FIRST_VALID, FIRST_HIDDEN)
    for twin in (metric.clone(), pickle.loads(pickle.dumps(metric))):
        twin.update(SECOND, SECOND_TRUTH, SECOND_VALID, SECOND_HIDDEN)
        assert same(twin.compute(), BOTH)
    assert metric.compute().samples == 1


def test_a_reset_forgets() -> None:
    metric = FlowMetric()
    metric.update(FIRST, FIRST_TRUTH, FIRST_VALID)
    metric.reset()
    metric.update(*batch())
    assert same(metric.compute(), BOTH)


@pytest.mark.parametrize(
    ("error", "speed", "outlier"),
    [(3.0, 10, False), (3.25, 10, True), (4.0, 80, False), (4.25, 80, True), (2.0, 1, False), (50.0, 2000, False)],
)
def test_an_outlier_is_off_by_3_px_and_by_5_percent(error: float, speed: float, outlier: bool) -> None:
    scores = flow_scores(row_of((speed, error)), row_of((speed, 0)), mask_of(1))
    assert scores.fl == 100.0 * outlier


@pytest.mark.parametrize(
    ("speed", "name"), [(0, "s0_10"), (9.5, "s0_10"), (10, "s10_40"), (40, "s10_40"), (40.5, "s40_plus")]
)
def test_a_pixel_counts_in_the_range_of_its_true_speed(speed: float, name: str) -> None:
    scores = flow_scores(row_of((500, 0)), row_of((0, speed)), mask_of(1))
    known = [field for field in ("s0_10", "s10_40", "s40_plus") if not math.isnan(getattr(scores, field))]
    assert known == [name]


def test_without_an_occlusion_nothing_is_said_of_it() -> None:
    scores = flow_scores(FIRST, FIRST_TRUTH, FIRST_VALID)
    assert math.isnan(scores.matched) and math.isnan(scores.unmatched)
    assert scores.epe == pytest.approx(11 / 4)


def test_matched_pixels_are_those_of_samples_whose_occlusion_is_known() -> None:
    metric = FlowMetric()
    metric.update(FIRST, FIRST_TRUTH, FIRST_VALID)
    metric.update(SECOND, SECOND_TRUTH, SECOND_VALID, SECOND_HIDDEN)
    assert metric.compute().matched == pytest.approx(8)
    assert math.isnan(metric.compute().unmatched)


def test_a_sample_without_a_valid_pixel_adds_nothing() -> None:
    metric = FlowMetric()
    metric.update(*batch())
    metric.update(FIRST, FIRST_TRUTH, ~FIRST_VALID & False, FIRST_HIDDEN)
    assert same(metric.compute(), BOTH)


def test_without_any_valid_pixel_there_is_no_error() -> None:
    scores = flow_scores(FIRST, FIRST_TRUTH, torch.zeros_like(FIRST_VALID))
    assert all(math.isnan(value) for value in astuple(scores)[:12])
    assert (scores.samples, scores.pixels) == (0, 0)


def test_an_estimate_may_be_anything_where_the_truth_is_unknown() -> None:
    flow = FIRST.clone()
    flow[..., 4] = math.nan
    assert same(flow_scores(flow, FIRST_TRUTH, FIRST_VALID), flow_scores(FIRST, FIRST_TRUTH, FIRST_VALID))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_estimate_that_is_not_finite_is_an_error(value: float) -> None:
    flow, truth, valid, _ = batch()
    flow = flow.clone()
    flow[1, 1, 0, 1] = value
    with pytest.raises(ValueError, match="the flow of sample 1 is not finite at 1 valid pixels"):
        FlowMetric().update(flow, truth, valid)


def test_a_truth_that_is_not_finite_where_it_is_called_valid_is_an_error() -> None:
    with pytest.raises(ValueError, match="the true flow of sample 0"):
        flow_scores(FIRST, FIRST_TRUTH, torch.ones_like(FIRST_VALID))


def test_wrong_shapes_and_masks_are_named() -> None:
    with pytest.raises(ValueError, match=r"N x 2 x H x W, not \[1, 2, 1, 4\] and \[1, 2, 1, 5\]"):
        flow_scores(FIRST[..., :4], FIRST_TRUTH, FIRST_VALID)
    with pytest.raises(ValueError, match=r"valid must be a bool tensor .*float32"):
        flow_scores(FIRST, FIRST_TRUTH, FIRST_VALID.float())
    with pytest.raises(ValueError, match=r"occlusion must be .* of \[1, 1, 1, 3\]"):
        flow_scores(FIRST, FIRST_TRUTH, FIRST_VALID, FIRST_HIDDEN[..., :3])


def test_many_small_errors_are_added_in_double_precision() -> None:
    # In float32, 2^24 + 1 is 2^24: a running sum would stop there.
    metric = FlowMetric()
    truth, valid = torch.zeros(1, 2, 1, 2), mask_of(1, 1)
    metric.update(row_of((2.0**25, 0), (0, 0)), truth, valid)
    metric.update(row_of((1, 0), (0, 0)), truth, valid)
    assert metric.compute().epe == (2.0**25 + 1) / 4
