"""Depth evaluations as tables and images, and the data of the depth viewer."""

import base64
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.datasets.registry import PublishedDepth
from protoformer.depth.drawing import depth_viewer_data, draw_depth_frame
from protoformer.depth.evaluation import (
    OWN_TABLE_COLUMNS,
    TABLE_COLUMNS,
    DepthEvaluation,
    DepthRules,
    WorstDepths,
    depth_tables,
    draw_depth_comparison,
)
from protoformer.depth.metrics import DepthScores, DepthTable, depth_scores
from protoformer.io.image import read_image
from protoformer.synthetic.samples import DepthSample
from protoformer.viz.depth_colors import depth_to_color


def sample(name: str, meters: float = 2.0) -> DepthSample:
    depth = torch.full((1, 1, 6, 8), meters)
    depth[..., 4:] = 2 * meters
    depth[..., 0, 0] = 0
    return DepthSample(image=torch.rand(1, 3, 6, 8), depth=depth, valid=depth > 0, names=(name,))


def test_every_way_of_scoring_has_its_row_and_others_are_metric() -> None:
    ways = [DepthScores(*(first + step for step in range(7)), math.nan) for first in (0.5, 10.5, 20.5)]
    table = DepthTable(*ways, samples=3)
    other = PublishedDepth("theirs", "all", rmse=0.25)
    result = DepthEvaluation("nyuv2", "ours", DepthRules(), table, (), (other,), without_truth=0)
    columns, alone = (
        {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
        for table in depth_tables(result)
    )
    assert list(columns) == ["row", "method", "measured on", *TABLE_COLUMNS] and list(alone) == [
        "row",
        *OWN_TABLE_COLUMNS,
    ]
    assert columns["row"] == ["metric", "median-scaled", "aligned", "metric"]
    assert columns["AbsRel"] == ["0.500", "10.500", "20.500", ""]
    assert columns["RMSE"] == ["2.500", "12.500", "22.500", "0.250"]
    assert alone["row"] == columns["row"][:3] and alone["SILog"] == ["4.500", "14.500", "24.500"]
    assert alone["d<1.25^3"] == [""] * 3
    assert {*TABLE_COLUMNS.values(), *OWN_TABLE_COLUMNS.values()} == set(DepthScores.__dataclass_fields__)


def test_the_worst_are_drawn_the_worst_first(tmp_path: Path) -> None:
    worst = WorstDepths(2)
    for name, factor in (("good", 1.1), ("scene/bad", 3.0), ("fair", 1.5)):
        one = sample(name)
        depth = factor * one.depth[0].clamp_min(1)
        worst.keep(one, depth, depth_scores(depth[None], one.depth, one.valid))
    assert [path.name for path in worst.write(tmp_path)] == ["worst-01-scene-bad.png", "worst-02-fair.png"]
    assert read_image(tmp_path / "worst-02-fair.png").shape == (12, 16, 3)


def test_a_comparison_shows_truth_and_estimate_in_the_same_colors() -> None:
    one = sample("a")
    drawn = draw_depth_comparison(one, one.depth[0].clamp_min(2))
    assert np.array_equal(drawn[1:6, 8:], drawn[7:, :8])
    assert (drawn[6:, 8:] == 0).all()
    half_off = draw_depth_comparison(one, 1.5 * one.depth[0].clamp_min(1))
    assert (half_off[7:, 8:] == 255).all() and (half_off[6, 8] == 0).all()


def step() -> pf.DepthFrame:
    depth = torch.logspace(0, 1, 10 * 12).view(1, 10, 12)
    frame = torch.rand(3, 10, 12).permute(1, 2, 0).numpy()
    return pf.DepthFrame(depth, torch.full((1, 10, 12), 0.5), (0.1, 80.0), torch.eye(3), frame=frame)


def test_a_frame_is_its_colors_or_both_side_by_side() -> None:
    one = step()
    colors = draw_depth_frame(one, (1.0, 10.0))
    assert np.array_equal(colors, depth_to_color(one.numpy(), 1.0, 10.0))
    beside = draw_depth_frame(one, (1.0, 10.0), side_by_side=True)
    assert beside.shape == (10, 24, 3) and np.array_equal(beside[:, 12:], colors)


@pytest.mark.parametrize(("most", "every"), [(1000, 1), (30, 2)])
def test_a_page_reads_the_meters_to_a_thousandth(most: int, every: int) -> None:
    one = step()
    view = depth_viewer_data(one, np.zeros((10, 12, 3), np.uint8), (1.0, 10.0), most)
    assert (view["step"], view["rows"], view["columns"]) == (every, 10 // every, 12 // every)
    share = np.frombuffer(base64.b64decode(view["depths"]), "<u2").reshape(view["rows"], view["columns"]) / 65535
    meters = np.exp(view["low"] + share * (view["high"] - view["low"]))
    np.testing.assert_allclose(meters, one.depth[0, ::every, ::every], rtol=1e-3)
    assert base64.b64decode(view["confidence"])[0] == 128
