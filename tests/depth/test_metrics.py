"""Errors of depths, against sums done by hand."""

import math
from dataclasses import asdict, astuple

import pytest
import torch

from protoformer.depth.evaluation import DepthMetric
from protoformer.depth.metrics import DepthScores, DepthTable, crop_region, depth_scores


def depths(*meters: float) -> torch.Tensor:
    return torch.tensor(meters, dtype=torch.float64).reshape(1, 1, 1, -1)


def everywhere(truth: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(truth, dtype=torch.bool)


def close(scores: DepthScores | DepthTable, expected: DepthScores | DepthTable, abs: float = 1e-9) -> bool:
    def flat(values: tuple) -> list[float]:
        return [number for value in values for number in (value if isinstance(value, tuple) else (value,))]

    return flat(astuple(scores)) == pytest.approx(flat(astuple(expected)), abs=abs, nan_ok=True)


PERFECT = DepthScores(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
RANDOM = torch.Generator().manual_seed(0)


def test_every_figure_is_the_one_done_by_hand() -> None:
    # Ratios 1.2, 1.5, 1.9 and 2, one on each side of every limit: 1.25, 1.5625, 1.953125.
    scores = depth_scores(depths(12, 15, 10, 5), depths(10, 10, 19, 10), everywhere(depths(1, 1, 1, 1))).metric
    logs = [math.log(1.2), math.log(1.5), math.log(10 / 19), math.log(0.5)]
    mean, mean_square = sum(logs) / 4, sum(d * d for d in logs) / 4
    expected = DepthScores(
        abs_rel=(0.2 + 0.5 + 9 / 19 + 0.5) / 4,
        sq_rel=(0.4 + 2.5 + 81 / 19 + 2.5) / 4,
        rmse=math.sqrt((4 + 25 + 81 + 25) / 4),
        rmse_log=math.sqrt(mean_square),
        silog=100 * math.sqrt(mean_square - mean**2),
        delta1=0.25,
        delta2=0.5,
        delta3=0.75,
    )
    assert close(scores, expected)


def test_a_ratio_of_just_a_limit_is_beyond_it() -> None:
    scores = depth_scores(depths(1.25, 1.5625), depths(1, 1), everywhere(depths(1, 1))).metric
    assert (scores.delta1, scores.delta2, scores.delta3) == (0.0, 0.5, 1.0)


def test_images_weigh_alike_however_many_pixels_they_have() -> None:
    depth = torch.cat((depths(11, 11, 11), depths(15, 1, 1)))
    truth = torch.cat((depths(10, 10, 10), depths(10, 0, 0)))
    scores = depth_scores(depth, truth, truth > 0)
    assert scores.metric.abs_rel == pytest.approx((0.1 + 0.5) / 2)
    assert scores.metric.rmse == pytest.approx((1 + 5) / 2)
    assert scores.samples == 2


def test_the_true_depth_itself_is_perfect_in_every_row() -> None:
    truth = 1 + 70 * torch.rand(2, 1, 6, 8, generator=RANDOM)
    table = depth_scores(truth, truth, everywhere(truth))
    assert close(table, DepthTable(PERFECT, PERFECT, PERFECT, samples=2), abs=1e-6)


def test_the_median_row_undoes_a_scale_and_leaves_the_metric_row_as_it_is() -> None:
    truth = 1 + 30 * torch.rand(1, 1, 6, 8, generator=RANDOM, dtype=torch.float64)
    table = depth_scores(2 * truth, truth, everywhere(truth))
    assert close(table.median_scaled, PERFECT)
    assert close(table.aligned, PERFECT)
    assert table.metric.abs_rel == pytest.approx(1)
    assert table.metric.rmse_log == pytest.approx(math.log(2))
    assert table.metric.silog == pytest.approx(0, abs=1e-9)


def test_the_aligned_row_undoes_a_scale_and_a_shift() -> None:
    truth = 5 + 30 * torch.rand(1, 1, 6, 8, generator=RANDOM, dtype=torch.float64)
    table = depth_scores(0.25 * truth + 3, truth, everywhere(truth))
    assert close(table.aligned, PERFECT)
    assert table.median_scaled.abs_rel > 0.05


def test_each_image_has_a_scale_and_a_shift_of_its_own() -> None:
    truth = 5 + 30 * torch.rand(3, 1, 6, 8, generator=RANDOM, dtype=torch.float64)
    scale, shift = (torch.tensor(values).view(3, 1, 1, 1) for values in ((0.5, 2.0, 1.0), (1.0, 4.0, 0.0)))
    assert close(depth_scores(scale * truth + shift, truth, everywhere(truth)).aligned, PERFECT)
    assert close(depth_scores(scale * truth, truth, everywhere(truth)).median_scaled, PERFECT)


def test_the_alignment_is_the_best_in_least_squares() -> None:
    # Through (1, 1), (2, 3), (3, 2): slope 1/2 about the means (2, 2), so 1.5, 2, 2.5.
    table = depth_scores(depths(1, 2, 3), depths(1, 3, 2), everywhere(depths(1, 1, 1)))
    assert table.aligned.rmse == pytest.approx(math.sqrt((0.25 + 1 + 0.25) / 3))
    assert table.aligned.abs_rel == pytest.approx((0.5 + 1 / 3 + 0.25) / 3)


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    # Medians 3 of 1, 2, 4, 8 and 6 of 2, 4, 8, 9: a factor of 2, which leaves 16 against 9 in the last pixel.
    table = depth_scores(depths(1, 2, 4, 8), depths(2, 4, 8, 9), everywhere(depths(1, 1, 1, 1)))
    assert table.median_scaled.abs_rel == pytest.approx(7 / 9 / 4)


def test_a_constant_depth_aligns_to_the_mean() -> None:
    table = depth_scores(depths(7, 7), depths(10, 20), everywhere(depths(1, 1)))
    assert table.aligned.abs_rel == pytest.approx((0.5 + 0.25) / 2)


def test_predictions_are_clamped_to_the_range_after_alignment() -> None:
    table = depth_scores(depths(0.5, 100, 4), depths(1.5, 19, 4), everywhere(depths(1, 1, 1)), minimum=1, maximum=20)
    assert table.metric.rmse == pytest.approx(math.sqrt((0.25 + 1 + 0) / 3))
    # Best line of (1, 2), (2, 2), (3, 10): s = 4, t = -10/3, which takes the first to 2/3, below the minimum.
    aligned = depth_scores(depths(1, 2, 3), depths(2, 2, 10), everywhere(depths(1, 1, 1)), minimum=1, maximum=20)
    squares = (2 - 1) ** 2 + (14 / 3 - 2) ** 2 + (10 - 26 / 3) ** 2
    assert aligned.aligned.rmse == pytest.approx(math.sqrt(squares / 3))


def test_only_truth_within_the_range_counts_neither_end_included() -> None:
    truth = depths(1, 2, 80, 90, 0, math.nan)
    table = depth_scores(depths(5, 3, 5, 5, 5, 5), truth, everywhere(truth), minimum=1, maximum=80)
    assert table.metric.abs_rel == pytest.approx(0.5)


def test_what_is_predicted_or_true_at_invalid_pixels_does_not_matter() -> None:
    depth, truth = depths(3, math.nan, 5), depths(2, 2, math.nan)
    assert depth_scores(depth, truth, torch.tensor([True, False, False]).view(1, 1, 1, 3)).metric.abs_rel == 0.5


@pytest.mark.parametrize(
    ("crop", "size", "rows", "columns"),
    [
        (None, (5, 7), (0, 5), (0, 7)),
        ("garg", (375, 1242), (153, 371), (44, 1197)),
        ("garg", (370, 1224), (151, 366), (43, 1180)),  # 366.9999993 and 43.999997, rounded down
        ("eigen", (480, 640), (45, 471), (41, 601)),
    ],
)
def test_a_crop_counts_its_pixels_and_no_other(crop, size, rows, columns) -> None:
    window = crop_region(crop, *size)
    assert [(part.start, part.stop) for part in window] == [rows, columns]
    inside = torch.zeros(1, 1, *size, dtype=torch.bool)
    inside[..., rows[0] : rows[1], columns[0] : columns[1]] = True
    truth = torch.full((1, 1, *size), 10.0)
    # All is right within the crop and wrong without: a pixel too many would show.
    assert depth_scores(torch.where(inside, 10.0, 40.0), truth, everywhere(truth), crop=crop).metric.rmse == 0
    # Only the corners of the crop are known: a pixel too few would show.
    corners = torch.zeros_like(inside)
    for row in (rows[0], rows[1] - 1):
        for column in (columns[0], columns[1] - 1):
            corners[..., row, column] = True
    depth = truth.clone()
    depth[..., rows[0], columns[0]] = 12.0
    depth[..., rows[1] - 1, columns[1] - 1] = 14.0
    assert depth_scores(depth, truth, corners, crop=crop).metric.abs_rel == pytest.approx((0.2 + 0.4) / 4)


def test_the_eigen_crop_has_one_size() -> None:
    truth = torch.ones(1, 1, 240, 320)
    with pytest.raises(ValueError, match="480 x 640 images, not for 240 x 320"):
        depth_scores(truth, truth, everywhere(truth), crop="eigen")


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    depth, truth = (1 + 30 * torch.rand(4, 1, 6, 8, generator=generator) for _ in range(2))
    return (
        depth,
        truth,
        torch.rand(4, 1, 6, 8, generator=generator) < torch.tensor([0.9, 0.5, 0.2, 0.0])[:, None, None, None],
    )


def test_batches_of_any_size_give_the_same() -> None:
    whole, parts = DepthMetric(), DepthMetric()
    whole.update(*batch())
    for index in range(4):
        parts.update(*(field[index : index + 1] for field in batch()))
    assert close(parts.compute(), whole.compute())
    assert close(depth_scores(*batch()), whole.compute())
    assert whole.compute().samples == 3  # the fourth has no valid pixel


def test_two_metrics_merge_into_one() -> None:
    whole, first, second = DepthMetric(), DepthMetric(), DepthMetric()
    whole.update(*batch())
    first.update(*(field[:1] for field in batch()))
    second.update(*(field[1:] for field in batch()))
    first.merge_state(second)
    assert close(first.compute(), whole.compute())


def test_the_metric_obeys_its_options() -> None:
    metric = DepthMetric(minimum=2, maximum=20, crop="garg")
    metric.update(*batch())
    assert close(metric.compute(), depth_scores(*batch(), minimum=2, maximum=20, crop="garg"))
    assert not close(metric.compute(), depth_scores(*batch()))


def test_without_a_pixel_there_is_no_error() -> None:
    table = depth_scores(depths(1), depths(1), ~everywhere(depths(1)))
    assert all(
        math.isnan(value) for row in (table.metric, table.median_scaled, table.aligned) for value in astuple(row)
    )
    assert table.samples == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_depth_that_is_not_finite_is_an_error(value: float) -> None:
    depth, truth = torch.cat((depths(1, 1), depths(1, value))), depths(1, 1).expand(2, 1, 1, 2)
    with pytest.raises(ValueError, match="sample 1 is not finite at 1 evaluated pixels"):
        depth_scores(depth, truth, everywhere(truth))


def test_a_depth_without_a_scale_is_an_error() -> None:
    with pytest.raises(ValueError, match="median depth of sample 0 is -2 m"):
        depth_scores(depths(-2, -2), depths(1, 1), everywhere(depths(1, 1)))


def test_wrong_options_and_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"not 0 \.\. 80"):
        DepthMetric(minimum=0.0)
    with pytest.raises(ValueError, match=r"not 90 \.\. 80"):
        DepthMetric(minimum=90.0)
    with pytest.raises(ValueError, match="'garg' or 'eigen', not 'grag'"):
        DepthMetric(crop="grag")
    with pytest.raises(ValueError, match=r"N x 1 x H x W, not \[1, 1, 1, 2\] and \[1, 1, 1, 3\]"):
        depth_scores(depths(1, 1), depths(1, 1, 1), everywhere(depths(1, 1, 1)))
    with pytest.raises(ValueError, match=r"valid must be bool .*float64"):
        depth_scores(depths(1, 1), depths(1, 1), depths(1, 1))


def test_the_scores_are_plain_numbers() -> None:
    table = asdict(depth_scores(*batch()))
    assert {type(value) for row in ("metric", "median_scaled", "aligned") for value in table[row].values()} == {float}
