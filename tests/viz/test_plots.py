"""Line plots as SVG."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from protoformer.viz.plots import COLORS, Curve, line_plot


def draw(*curves: Curve, log_y: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(line_plot(curves, "step", "pixels", log_y))


def groups(plot: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [group for group in plot.iter("g") if group.get("class") == f"plot-{name}"]


def path_points(path: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.attrib["d"])]


def lines(plot: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The points of each line, in units of the SVG."""
    return [path_points(next(group.iter("path"))) for group in groups(plot, "curve")]


def area(plot: ElementTree.Element) -> tuple[float, float, float, float]:
    """The left, right, top and bottom of the plot area."""
    (axes,) = groups(plot, "axes")
    xs, ys = zip(*path_points(next(axes.iter("path"))), strict=True)
    return min(xs), max(xs), min(ys), max(ys)


def texts(plot: ElementTree.Element) -> list[str]:
    return [text.text for text in plot.iter("text")]


def markers(plot: ElementTree.Element) -> list[ElementTree.Element]:
    """The markers of the first line."""
    return [path for path in groups(plot, "curve")[0].iter("path") if path.get("class") == "marker"]


def ticks(plot: ElementTree.Element, axis: str) -> list[str]:
    """The tick labels of the x or the y axis, from the lowest value."""
    return [text for group in groups(plot, f"{axis}tick") for text in texts(group)]


def test_the_data_fills_the_plot_area() -> None:
    plot = draw(Curve("rising", ((2.0, 10.0), (3.0, 15.0), (4.0, 20.0))))
    left, right, top, bottom = area(plot)
    expected = [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]
    assert np.allclose(lines(plot), [expected], atol=1e-3)


def test_points_that_are_not_finite_are_left_out() -> None:
    curve = Curve("broken", ((0.0, 1.0), (1.0, float("nan")), (2.0, float("inf")), (3.0, 2.0)))
    assert len(lines(draw(curve))[0]) == len(lines(draw(curve, log_y=True))[0]) == 2


def test_curves_share_their_axes() -> None:
    plot = draw(Curve("low", ((0.0, 0.0), (1.0, 1.0))), Curve("high", ((0.0, 2.0), (2.0, 4.0))))
    (low, high), (_, right, top, bottom) = lines(plot), area(plot)
    assert low[0][1] == pytest.approx(bottom) and high[1][1] == pytest.approx(top)
    assert low[1][0] < high[1][0] == pytest.approx(right)


def test_equal_factors_are_equal_distances_on_a_logarithmic_axis() -> None:
    (points,) = lines(draw(Curve("falling", ((0.0, 1.0), (1.0, 0.1), (2.0, 0.01))), log_y=True))
    heights = [y for _, y in points]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.11)


def test_a_logarithmic_axis_is_labelled_by_values() -> None:
    labels = ticks(draw(Curve("falling", ((0.0, 1.0), (2.0, 0.0001))), log_y=True), "y")
    assert labels == ["0.0001", "0.001", "0.01", "0.1", "1"]


def test_a_logarithmic_axis_has_round_marks_whatever_the_data() -> None:
    assert ticks(draw(Curve("far", ((0.0, 1.0), (2.0, 0.00328))), log_y=True), "y") == ["0.01", "0.1", "1"]
    assert ticks(draw(Curve("near", ((0.0, 1.0), (2.0, 0.17))), log_y=True), "y") == ["0.2", "0.5", "1"]


def test_names_of_curves_and_axes_are_written() -> None:
    labels = texts(draw(Curve("one", ((0.0, 0.0), (1.0, 1.0))), Curve("two", ((0.0, 1.0), (1.0, 0.0)))))
    assert {"one", "two", "step", "pixels"} <= set(labels)


def test_a_single_curve_needs_no_name() -> None:
    assert "one" not in texts(draw(Curve("one", ((0.0, 0.0), (1.0, 1.0)))))


def test_names_are_never_markup() -> None:
    hostile = "_<b>\"a\" & 'b' $x_$</b>"  # neither HTML nor a formula of matplotlib
    curve = Curve(hostile, ((0.0, 1.0), (1.0, 2.0)))
    plot = ElementTree.fromstring(line_plot([curve, curve], hostile, hostile))
    assert texts(plot).count(hostile) == 4
    assert plot.attrib["aria-label"] == f"{hostile} over {hostile}"


@pytest.mark.parametrize("points", [((1.0, 5.0),), ((0.0, 3.0), (9.0, 3.0)), ((4.0, 0.0), (4.0, 7.0))])
def test_a_curve_without_extent_is_still_drawn_inside(points: tuple[tuple[float, float], ...]) -> None:
    plot = draw(Curve("flat", points))
    left, right, top, bottom = area(plot)
    assert len(lines(plot)[0]) == len(points) and len(markers(plot)) == len(points)
    for x, y in lines(plot)[0]:
        assert left - 1e-3 <= x <= right + 1e-3 and top - 1e-3 <= y <= bottom + 1e-3


def test_few_positions_are_all_labelled_and_many_are_not() -> None:
    few = draw(Curve("few", tuple((float(n), float(n)) for n in range(5))))
    many = draw(Curve("many", tuple((float(n), 1000.0 + n) for n in range(101))))
    assert ticks(few, "x") == ["0", "1", "2", "3", "4"]
    assert ticks(many, "x") == ["0", "25", "50", "75", "100"]


def test_marks_stand_at_round_values_whatever_the_data() -> None:
    plot = draw(Curve("odd", tuple((0.0131 * n, -23.47 + 0.61 * n) for n in range(40))))
    assert ticks(plot, "y") == ["-20", "-10", "0"]
    assert ticks(plot, "x") == ["0", "0.2", "0.4"]


def test_zero_has_a_place_on_a_logarithmic_axis() -> None:
    plot = line_plot([Curve("gone", ((0.0, 1.0), (1.0, 0.0)))], "step", "share", log_y=True)
    assert not re.search("nan|inf", plot)


def test_curves_differ_in_color() -> None:
    plot = draw(*(Curve(str(n), ((0.0, float(n)), (1.0, float(n)))) for n in range(5)))
    styles = [next(group.iter("path")).attrib["style"] for group in groups(plot, "curve")]
    assert [color for style in styles for color in re.findall(r"stroke: (#\w+)", style)] == list(COLORS)


def test_a_break_is_where_one_line_ends_and_the_next_begins() -> None:
    points = tuple((float(index), float(index % 3)) for index in range(6))
    plot = draw(Curve("one", points, breaks=(2, 5)), Curve("two", points))
    assert [len(line) for line in lines(plot)] == [2, 3, 1, 6]


def test_shares_stand_between_nothing_and_all() -> None:
    curves = [Curve(name, ((0.0, 0.25), (1.0, 0.75))) for name in ("one", "two")]
    plot = ElementTree.fromstring(line_plot(curves, "pixels", "share", y_range=(0.0, 1.0)))
    (_, low), (_, high) = lines(plot)[0]
    _, _, top, bottom = area(plot)
    assert low == pytest.approx(top + (bottom - top) * 0.75) and high == pytest.approx(top + (bottom - top) * 0.25)
    assert ticks(plot, "y") == ["0", "0.25", "0.5", "0.75", "1"]


@pytest.mark.parametrize(("name", "rows"), [("one", 1), ("a name that fills more than half of the width", 3)])
def test_names_are_above_the_curves_and_within_the_image(name: str, rows: int) -> None:
    plot = draw(*(Curve(name, ((0.0, 0.0), (1.0, 1.0))) for _ in range(3)))
    _, _, width, _ = map(float, plot.attrib["viewBox"].split())
    _, _, top, _ = area(plot)
    names = [(float(text.attrib["x"]), float(text.attrib["y"])) for text in plot.iter("text") if text.text == name]
    assert len(set(names)) == 3 and len({y for _, y in names}) == rows
    assert all(0 < y < top and 0 <= x < width for x, y in names)
