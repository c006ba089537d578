"""Depth is scored by the benchmarks' rules, exact to the pixel."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import protoformer as pf
from protoformer.datasets.base import Dataset
from protoformer.depth.evaluation import (
    RULES,
    DepthEvaluation,
    DepthRules,
    constant_method,
    depth_csv,
    depth_method,
    evaluate_depth,
)
from protoformer.errors import InputError
from protoformer.synthetic.samples import DepthSample

SIZE = (20, 30)


class InMemory(Dataset[DepthSample]):
    """Samples that were made before."""

    name = "in memory"
    without_truth = 2

    def __init__(self, samples: Sequence[DepthSample]) -> None:
        super().__init__("nowhere", "all")
        self.samples = samples
        self.names = tuple(sample.names[0] for sample in samples)

    def _read(self, index: int) -> DepthSample:
        return self.samples[index]


def sample(name: str = "a", meters: float = 4.0, size: tuple[int, int] = SIZE) -> DepthSample:
    depth = torch.full((1, 1, *size), meters)
    return DepthSample(image=torch.rand(1, 3, *size), depth=depth, valid=depth > 0, names=(name,))


def evaluated(samples: list[DepthSample], scale: float = 1.0, dataset: str = "own-depth") -> DepthEvaluation:
    return evaluate_depth(InMemory(samples), lambda each: scale * each.depth[0], names=(dataset, "ours"))


def test_the_truth_itself_has_no_error_and_a_factor_is_one_of_the_metric_row_alone() -> None:
    result = evaluated([sample(), sample("b", 8.0)], 1.5)
    assert result.table.metric.abs_rel == pytest.approx(0.5)
    assert result.table.metric.rmse == pytest.approx((2 + 4) / 2)
    assert result.table.median_scaled.abs_rel == result.table.aligned.abs_rel == pytest.approx(0)
    assert [each.name for each in result.samples] == ["a", "b"]
    assert result.without_truth == 2 and result.table.samples == 2
    assert evaluated([sample()]).table.metric.abs_rel == 0


def only(pixel: tuple[int, int], size: tuple[int, int]) -> DepthSample:
    """A sample whose depth is known at one pixel alone."""
    whole = sample(size=size)
    known = torch.zeros_like(whole.valid)
    known[0, 0, pixel[0], pixel[1]] = True
    return replace(whole, valid=known)


@pytest.mark.parametrize(
    ("dataset", "size", "inside", "outside"),
    [
        ("kitti-eigen", (375, 1242), [(153, 44), (370, 1196)], [(152, 44), (153, 43), (371, 1196), (370, 1197)]),
        ("nyuv2", (480, 640), [(45, 41), (470, 600)], [(44, 41), (45, 40), (471, 600), (470, 601)]),
        ("sintel-depth", (436, 1024), [(0, 0), (435, 1023)], []),
    ],
)
def test_the_crop_of_a_benchmark_ends_at_its_pixel(
    dataset: str, size: tuple[int, int], inside: list[tuple[int, int]], outside: list[tuple[int, int]]
) -> None:
    for pixel in inside:
        assert len(evaluated([only(pixel, size)], dataset=dataset).samples) == 1
    for pixel in outside:
        with pytest.raises(InputError, match="has no true depth to evaluate"):
            evaluated([only(pixel, size)], dataset=dataset)


@pytest.mark.parametrize(("dataset", "cap"), [("kitti-eigen", 80.0), ("nyuv2", 10.0), ("own-depth", 80.0)])
def test_truth_beyond_the_cap_does_not_count(dataset: str, cap: float) -> None:
    size = (480, 640)
    result = evaluated([sample("near", 0.99 * cap, size), sample("far", cap, size)], 2.0, dataset)
    assert [each.name for each in result.samples] == ["near"] and result.without_truth == 3
    assert result.table.metric.abs_rel == pytest.approx(0.01 / 0.99, abs=1e-6)  # the prediction is clamped to the cap


def test_every_published_figure_stands_beside_its_dataset() -> None:
    (row,) = evaluated([sample(size=(375, 1242))], dataset="kitti-eigen").others
    assert (row.abs_rel, row.rmse, row.delta1, row.row) == (0.062, 2.716, 0.949, "metric")
    (row,) = evaluated([sample()], dataset="sintel-depth").others
    assert (row.abs_rel, row.sq_rel, row.rmse, row.row) == (0.594, 0.538, 0.486, "not stated")
    labels = [each.label for each in evaluated([sample(size=(480, 640))], dataset="nyuv2").others]
    assert labels == [f"{name}, published" for name in ("Eigen 2014", "FastDepth", "P3Depth", "AdaBins")]
    assert evaluated([sample()]).others == ()


def test_a_predictor_gets_the_camera_and_computes_in_full_precision(tiny_depth: pf.DepthPredictor) -> None:
    camera = torch.tensor([[[50.0, 0, 14.5], [0, 50.0, 9.5], [0, 0, 1]]])
    plain, calls = sample(), replace(sample(), intrinsics=camera)
    calls = replace(calls, image=plain.image)
    method = depth_method(tiny_depth)
    assert torch.equal(method(calls), tiny_depth.depth(calls.image[0], focal=50.0, precision="full").depth)
    assert torch.equal(method(plain), tiny_depth.depth(plain.image[0], precision="full").depth)


def test_the_mean_is_that_of_what_counts() -> None:
    data = InMemory([sample("a", 2.0), sample("b", 6.0), sample("sky", 500.0)])
    assert float(constant_method(data, DepthRules())(data[0]).mean()) == pytest.approx(4.0)


def test_a_table_of_samples_has_three_rows_each() -> None:
    rows = list(csv.DictReader(io.StringIO(depth_csv(evaluated([sample()], 1.25)))))
    assert [(row["name"], row["row"]) for row in rows] == [
        ("a", "metric"),
        ("a", "median-scaled"),
        ("a", "aligned"),
    ]
    assert float(rows[0]["abs_rel"]) == pytest.approx(0.25) and float(rows[1]["abs_rel"]) == pytest.approx(0)


def test_what_cannot_be_scored_is_one_sentence() -> None:
    with pytest.raises(InputError, match="a is 30x20 pixels, but Eigen's crop is defined for 640x480; give images"):
        evaluated([sample()], dataset="nyuv2")
    with pytest.raises(InputError, match=r"the depth of a cannot be scored .*; try another method\.$"):
        evaluated([sample()], math.nan)
    assert str(RULES["nyuv2"]) == "Eigen's crop, true depth from 0.001 to 10 m"
