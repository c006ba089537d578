"""Curves as svg."""

import re
from xml.etree import ElementTree

import pytest

from protoformer.viz.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Curve, line_plot


def drawn(*curves: Curve, log_y: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(line_plot(list(curves), "step", "pixels", log_y))


def lines(plot: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """Each curve's points, in pixels of the picture."""
    return [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in plot.iter("polyline")
    ]


def texts(plot: ElementTree.Element) -> list[str]:
    return [text.text for text in plot.iter("text")]


def test_the_corners_of_the_data_are_those_of_the_plot() -> None:
    plot = drawn(Curve("rising", ((2.0, 10.0), (3.0, 15.0), (4.0, 20.0))))
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    assert lines(plot) == [[(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]]


def test_points_that_are_not_finite_are_left_out() -> None:
    curve = Curve("broken", ((0.0, 1.0), (1.0, float("nan")), (2.0, float("inf")), (3.0, 2.0)))
    assert len(lines(drawn(curve))[0]) == len(lines(drawn(curve, log_y=True))[0]) == 2


def test_curves_share_their_axes() -> None:
    low, high = lines(drawn(Curve("low", ((0.0, 0.0), (1.0, 1.0))), Curve("high", ((0.0, 2.0), (2.0, 4.0)))))
    assert low[0][1] == HEIGHT - BOTTOM and high[1][1] == TOP
    assert low[1][0] < high[1][0] == WIDTH - RIGHT


def test_equal_factors_are_equal_distances_on_a_logarithmic_axis() -> None:
    (points,) = lines(drawn(Curve("falling", ((0.0, 1.0), (1.0, 0.1), (2.0, 0.01))), log_y=True))
    heights = [y for _, y in points]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.11)


def test_a_logarithmic_axis_is_labelled_by_values() -> None:
    labels = texts(drawn(Curve("falling", ((0.0, 1.0), (2.0, 0.0001))), log_y=True))
    assert labels[:5] == ["0.0001", "0.001", "0.01", "0.1", "1"]


def test_a_logarithmic_axis_has_round_marks_whatever_the_data() -> None:
    assert texts(drawn(Curve("far", ((0.0, 1.0), (2.0, 0.00328))), log_y=True))[:3] == ["0.01", "0.1", "1"]
    assert texts(drawn(Curve("near", ((0.0, 1.0), (2.0, 0.17))), log_y=True))[:3] == ["0.2", "0.5", "1"]


def test_names_of_curves_and_axes_are_written() -> None:
    labels = texts(drawn(Curve("one", ((0.0, 0.0), (1.0, 1.0))), Curve("two", ((0.0, 1.0), (1.0, 0.0)))))
    assert {"one", "two", "step", "pixels"} <= set(labels)


def test_a_single_curve_needs_no_name() -> None:
    assert "one" not in texts(drawn(Curve("one", ((0.0, 0.0), (1.0, 1.0)))))


def test_names_are_never_markup() -> None:
    hostile = "<b>\"a\" & 'b'</b>"
    curve = Curve(hostile, ((0.0, 1.0), (1.0, 2.0)))
    plot = ElementTree.fromstring(line_plot([curve, curve], hostile, hostile))
    assert texts(plot).count(hostile) == 4
    assert plot.attrib["aria-label"] == f"{hostile} over {hostile}"


@pytest.mark.parametrize("points", [((1.0, 5.0),), ((0.0, 3.0), (9.0, 3.0)), ((4.0, 0.0), (4.0, 7.0))])
def test_a_curve_without_extent_is_still_drawn_inside(points: tuple[tuple[float, float], ...]) -> None:
    for x, y in lines(drawn(Curve("flat", points)))[0]:
        assert LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM


def test_few_positions_are_all_labelled_and_many_are_not() -> None:
    few = texts(drawn(Curve("few", tuple((float(n), float(n)) for n in range(5)))))
    many = texts(drawn(Curve("many", tuple((float(n), 1000.0 + n) for n in range(101)))))
    assert few[5:10] == ["0", "1", "2", "3", "4"]
    assert many[5:10] == ["0", "25", "50", "75", "100"]


def test_marks_stand_at_round_values_whatever_the_data() -> None:
    plot = drawn(Curve("odd", tuple((0.0131 * n, -23.47 + 0.61 * n) for n in range(40))))
    assert texts(plot)[:-2] == ["-20", "-10", "0", "0", "0.2", "0.4"]


def test_zero_has_a_place_on_a_logarithmic_axis() -> None:
    plot = line_plot([Curve("gone", ((0.0, 1.0), (1.0, 0.0)))], "step", "share", log_y=True)
    assert not re.search("nan|inf", plot)


def test_curves_differ_in_color() -> None:
    plot = drawn(*(Curve(str(n), ((0.0, float(n)), (1.0, float(n)))) for n in range(5)))
    assert len({line.attrib["stroke"] for line in plot.iter("polyline")}) == 5


def test_a_break_is_where_one_line_ends_and_the_next_begins() -> None:
    points = tuple((float(place), float(place % 3)) for place in range(6))
    plot = drawn(Curve("one", points, breaks=(2, 5)), Curve("two", points))
    assert [len(line) for line in lines(plot)] == [2, 3, 1, 6]


def test_shares_stand_between_nothing_and_all() -> None:
    curves = [Curve(name, ((0.0, 0.25), (1.0, 0.75))) for name in ("one", "two")]
    plot = ElementTree.fromstring(line_plot(curves, "pixels", "share", y_span=(0.0, 1.0)))
    (_, low), (_, high) = lines(plot)[0]
    assert low == pytest.approx(TOP + (HEIGHT - TOP - BOTTOM) * 0.75) and high == pytest.approx(
        TOP + (HEIGHT - TOP - BOTTOM) * 0.25
    )
    assert texts(plot)[:5] == ["0", "0.25", "0.5", "0.75", "1"]


@pytest.mark.parametrize(("name", "rows"), [("one", 1), ("a name that fills more than half of the width", 3)])
def test_names_stand_above_the_curves_and_within_the_picture(name: str, rows: int) -> None:
    plot = drawn(*(Curve(name, ((0.0, 0.0), (1.0, 1.0))) for _ in range(3)))
    _, top, _, height = map(float, plot.attrib["viewBox"].split())
    names = [(float(text.attrib["x"]), float(text.attrib["y"])) for text in plot.iter("text") if text.text == name]
    assert len(set(names)) == 3 and len({y for _, y in names}) == rows
    assert all(top < y < TOP and x >= LEFT for x, y in names) and top + height == HEIGHT
