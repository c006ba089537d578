"""An evaluation as a table, and its worst samples as images."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table

from protoformer.datasets.registry import PublishedFlow
from protoformer.flow.evaluation import (
    OWN_TABLE_COLUMNS,
    TABLE_COLUMNS,
    FlowEvaluation,
    WorstFlows,
    draw_flow_comparison,
    flow_tables,
)
from protoformer.flow.metrics import FlowScores, flow_scores
from protoformer.io.image import read_image
from protoformer.synthetic.samples import FlowSample
from protoformer.viz.colormaps import flow_to_color, to_uint8

NAN = math.nan
SIZE = (6, 8)


def scores(first: float, samples: int = 2) -> FlowScores:
    """Twelve scores that count up from the first by one, of which the last two are not known."""
    return FlowScores(*(first + step for step in range(10)), NAN, NAN, samples=samples, pixels=96)


def evaluation(
    clean: tuple[PublishedFlow, ...] = (), final: tuple[PublishedFlow, ...] = (), method: str = "ours"
) -> FlowEvaluation:
    groups = {"clean": scores(0.25), "final": scores(100.125, samples=3)}
    return FlowEvaluation("sintel", method, groups, (), {"clean": clean, "final": final}, without_truth=0)


def rows_of(result: FlowEvaluation) -> list[dict[str, str]]:
    """The table's rows by the names of its columns, without cells that are empty."""
    return cells_of(flow_tables(result)[0])


def cells_of(table: Table) -> list[dict[str, str]]:
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    return [{name: cells[row] for name, cells in columns.items() if cells[row]} for row in range(len(table.rows))]


def test_the_columns_are_those_of_the_benchmarks() -> None:
    beside, alone = ([str(column.header) for column in table.columns] for table in flow_tables(evaluation()))
    assert beside == ["group", "method", "measured on", *TABLE_COLUMNS] and alone == ["group", *OWN_TABLE_COLUMNS]
    known = set(FlowScores.__dataclass_fields__) - {"samples", "pixels"}
    assert {*TABLE_COLUMNS.values(), *OWN_TABLE_COLUMNS.values()} == known and len(TABLE_COLUMNS) + len(
        OWN_TABLE_COLUMNS
    ) == 12


def test_every_group_has_our_row_with_two_decimals_and_nothing_where_nothing_is_known() -> None:
    clean, final = rows_of(evaluation())
    assert clean == {
        "group": "clean",
        "method": "ours",
        "measured on": "2 samples",
        "EPE": "0.25",
        "EPE/image": "1.25",
        "Fl %": "2.25",
        "Fl/image %": "3.25",
    }
    assert cells_of(flow_tables(evaluation())[1])[0] == {
        "group": "clean",
        ">1px %": "4.25",
        ">3px %": "5.25",
        ">5px %": "6.25",
        "s0-10": "7.25",
        "s10-40": "8.25",
        "s40+": "9.25",
    }
    assert (final["group"], final["method"], final["measured on"]) == ("final", "ours", "3 samples")
    assert final["EPE"] == "100.12"


def test_others_stand_below_their_group_in_the_columns_of_their_mean() -> None:
    rows = rows_of(
        evaluation(
            clean=(
                PublishedFlow("DIS", "4 of these", epe_per_image=5.754, fl_per_image=14.936),
                PublishedFlow("RAFT", "whole set", epe=1.43),
                PublishedFlow("FlowFormer", "whole set", epe_per_image=4.09, fl=14.7),
            ),
            final=(PublishedFlow("RAFT", "whole set", epe=2.71),),
        )
    )
    assert [row.get("group", "") for row in rows] == ["clean", "", "", "", "final", ""]
    assert rows[1] == {"method": "DIS", "measured on": "4 of these", "EPE/image": "5.75", "Fl/image %": "14.94"}
    assert rows[2] == {"method": "RAFT", "measured on": "whole set", "EPE": "1.43"}
    assert rows[3] == {"method": "FlowFormer", "measured on": "whole set", "EPE/image": "4.09", "Fl %": "14.70"}
    assert rows[5] == {"method": "RAFT", "measured on": "whole set", "EPE": "2.71"}


def printed(result: FlowEvaluation) -> list[str]:
    console = Console(width=100, file=io.StringIO(), record=True)
    for table in flow_tables(result):
        console.print(table)
    return console.export_text().splitlines()


def test_the_tables_fit_on_100_characters_with_every_number_on_one_line() -> None:
    lines = printed(evaluation((PublishedFlow("DIS", "4 of these", epe_per_image=5.75, fl_per_image=14.94),)))
    assert lines[0].strip() == "ours on sintel" and max(map(len, lines)) <= 100
    squeezed = [" ".join(line.split()) for line in lines]
    assert squeezed[1] == f"group method measured on {' '.join(TABLE_COLUMNS)}"
    assert squeezed[2] == "clean ours 2 samples 0.25 1.25 2.25 3.25"
    assert squeezed[3] == "DIS 4 of these 5.75 14.94"
    ends = [lines[row].index(cell) + len(cell) for row, cell in ((1, "EPE/image"), (2, "1.25"), (3, "5.75"))]
    assert len(set(ends)) == 1
    assert f"group {' '.join(OWN_TABLE_COLUMNS)}" in squeezed and "clean 4.25 5.25 6.25 7.25 8.25 9.25" in squeezed
    assert "".join(lines).count("nan") == 0


def test_a_long_name_goes_on_in_the_next_line_and_takes_no_number_with_it() -> None:
    lines = printed(
        evaluation((PublishedFlow("a name that " * 8, "whole set", epe=1.0),), method="runs/" + "long/" * 12)
    )
    assert max(map(len, lines)) <= 100
    assert any(line.split()[-4:] == ["0.25", "1.25", "2.25", "3.25"] for line in lines)


@pytest.mark.parametrize("name", ["weights[a].safetensors", "[/b]"])
def test_brackets_in_a_name_are_printed(name: str) -> None:
    lines = printed(evaluation((PublishedFlow(name, "whole set", epe=1.0),), method=name))
    assert lines[0].strip() == f"{name} on sintel"
    assert f" {name} " in lines[2] and f" {name} " in lines[3]


def sample(name: str = "a", valid: torch.Tensor | None = None, motion: tuple[float, float] = (3.0, 4.0)) -> FlowSample:
    """A random image and a motion that is everywhere the same."""
    first, second = torch.rand(2, 1, 3, *SIZE, generator=torch.Generator().manual_seed(len(name)))
    known = torch.ones(1, 1, *SIZE, dtype=torch.bool) if valid is None else valid
    flow = torch.tensor(motion).view(1, 2, 1, 1).repeat(1, 1, *SIZE) * known
    return FlowSample(first=first, second=second, names=(name,), flow=flow, valid=known)


def half_known() -> torch.Tensor:
    valid = torch.ones(1, 1, *SIZE, dtype=torch.bool)
    valid[..., :3, :] = False
    return valid


def quarters(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    assert pixels.shape == (2 * SIZE[0], 2 * SIZE[1], 3) and pixels.dtype == np.uint8
    rows, columns = (slice(SIZE[0]), slice(SIZE[0], None)), (slice(SIZE[1]), slice(SIZE[1], None))
    return (
        pixels[rows[0], columns[0]],
        pixels[rows[0], columns[1]],
        pixels[rows[1], columns[0]],
        pixels[rows[1], columns[1]],
    )


def test_a_comparison_shows_image_truth_estimate_and_error() -> None:
    one = sample()
    estimate = one.flow[0] + torch.tensor((0.0, 2.0)).view(2, 1, 1)
    image, truth, estimated, error = quarters(draw_flow_comparison(one, estimate))
    np.testing.assert_array_equal(image, to_uint8(one.first[0]))
    np.testing.assert_array_equal(truth, flow_to_color(np.full((*SIZE, 2), (3, 4)), 5.0))
    np.testing.assert_array_equal(estimated, flow_to_color(np.full((*SIZE, 2), (3, 6)), 5.0))
    np.testing.assert_array_equal(error, np.full((*SIZE, 3), 51))


def test_a_motion_that_is_right_has_the_color_of_the_truth_and_no_error() -> None:
    one = sample()
    _, truth, estimated, error = quarters(draw_flow_comparison(one, one.flow[0]))
    np.testing.assert_array_equal(truth, estimated)
    assert not error.any()


def test_errors_of_ten_pixels_and_more_are_white() -> None:
    one = sample()
    estimate = one.flow[0].clone()
    estimate[0, :3] += 10
    estimate[0, 3:] += 1000
    assert (quarters(draw_flow_comparison(one, estimate))[3] == 255).all()


def test_unknown_truth_and_its_error_are_black() -> None:
    one = sample(valid=half_known())
    _, truth, estimated, error = quarters(draw_flow_comparison(one, one.flow[0] + 20))
    assert not truth[:3].any() and not error[:3].any()
    np.testing.assert_array_equal(truth[3:], flow_to_color(np.full((3, SIZE[1], 2), (3, 4)), 5.0))
    assert (error[3:] == 255).all()
    assert (estimated.sum(axis=2) > 0).all()


def test_the_purest_color_is_that_of_the_fastest_but_for_a_hundredth() -> None:
    one = sample()
    one.flow[:] = torch.linspace(0, 94, SIZE[0] * SIZE[1]).view(*SIZE)
    truth = quarters(draw_flow_comparison(one, one.flow[0]))[1]
    fastest = 0.99 * 94 * math.sqrt(2)
    expected = flow_to_color(one.flow[0].permute(1, 2, 0).numpy(), fastest)
    assert np.abs(truth.astype(int) - expected).max() <= 1


def test_motion_of_less_than_a_pixel_is_not_painted_as_if_it_were_fast() -> None:
    one = sample(motion=(0.3, 0.4))
    truth = quarters(draw_flow_comparison(one, one.flow[0]))[1]
    np.testing.assert_array_equal(truth, flow_to_color(np.full((*SIZE, 2), (0.3, 0.4), np.float32), 1.0))


def test_a_sample_of_which_nothing_is_known_has_a_picture_too() -> None:
    one = sample(valid=torch.zeros(1, 1, *SIZE, dtype=torch.bool))
    image, truth, estimated, error = quarters(draw_flow_comparison(one, torch.ones(2, *SIZE)))
    np.testing.assert_array_equal(image, to_uint8(one.first[0]))
    np.testing.assert_array_equal(estimated, flow_to_color(np.ones((*SIZE, 2)), 1.0))
    assert not truth.any() and not error.any()


def kept_of(errors: list[float], count: int) -> WorstFlows:
    """What is kept of samples whose names are their places and whose errors are these."""
    worst = WorstFlows(count)
    for place, error in enumerate(errors):
        one = sample(f"{place}")
        flow = one.flow[0] + torch.tensor((error, 0.0)).view(2, 1, 1)
        worst.keep(one, flow, flow_scores(flow[None], one.flow, one.valid))
    return worst


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (0, []),
        (1, ["worst-01-3"]),
        (3, ["worst-01-3", "worst-02-1", "worst-03-4"]),
        (9, ["worst-01-3", "worst-02-1", "worst-03-4", "worst-04-2", "worst-05-0"]),
    ],
)
def test_the_worst_are_written_the_worst_first(tmp_path: Path, count: int, names: list[str]) -> None:
    written = kept_of([1.0, 7.0, 2.0, 9.0, 5.0], count).write(tmp_path)
    assert written == [tmp_path / f"{name}.png" for name in names]
    assert sorted(path.stem for path in tmp_path.iterdir()) == names


def test_a_picture_on_disk_is_the_comparison(tmp_path: Path) -> None:
    (path,) = kept_of([1.0, 7.0, 2.0], 1).write(tmp_path)
    one = sample("1")
    expected = draw_flow_comparison(one, one.flow[0] + torch.tensor((7.0, 0.0)).view(2, 1, 1))
    np.testing.assert_array_equal(np.rint(255 * read_image(path)), expected)


def test_samples_that_are_equally_bad_are_kept_alike(tmp_path: Path) -> None:
    assert len(kept_of([2.0, 2.0, 2.0, 2.0], 3).write(tmp_path)) == 3


def test_two_samples_may_have_one_name_and_one_error(tmp_path: Path) -> None:
    worst = WorstFlows(2)
    for _ in range(2):
        one = sample("twin")
        worst.keep(one, one.flow[0], flow_scores(one.flow, one.flow, one.valid))
    assert [path.name for path in worst.write(tmp_path)] == ["worst-01-twin.png", "worst-02-twin.png"]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_sample_without_score_is_not_among_the_worst(tmp_path: Path, place: int) -> None:
    worst = WorstFlows(2)
    errors = [1.0, 2.0, 3.0]
    errors.insert(place, NAN)
    for number, error in enumerate(errors):
        one = sample(f"{number}")
        worst.keep(one, one.flow[0], FlowScores(*[error] * 12, samples=1, pixels=1))
    expected = [f"worst-01-{errors.index(3.0)}.png", f"worst-02-{errors.index(2.0)}.png"]
    assert [path.name for path in worst.write(tmp_path)] == expected


def test_the_folders_of_a_name_become_strokes(tmp_path: Path) -> None:
    worst = WorstFlows(1)
    one = sample("clean/alley_1/frame_0001")
    worst.keep(one, one.flow[0], flow_scores(one.flow, one.flow, one.valid))
    assert worst.write(tmp_path) == [tmp_path / "worst-01-clean-alley_1-frame_0001.png"]
    assert [path.is_file() for path in tmp_path.iterdir()] == [True]
