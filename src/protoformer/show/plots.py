"""Line plots as svg, drawn without a plotting library so that a page needs none."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 14, 44
ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Steps between values that are easy to read, times a power of ten."""
MOST_MARKS = 12
"""Whole numbers that are all marked on the horizontal axis."""
COLOURS = ("#1f6fb2", "#c8553d", "#3a7d44", "#8367c7", "#b8860b")
MOST_POWERS = 7
"""Powers of ten on an axis."""
LETTER, ROW = 6.5, 16
"""Pixels of a letter, about, and of a row of names."""


@dataclass(frozen=True)
class Curve:
    """A named line through points (x, y). breaks: places, from 1 on and rising, of those that no line leads to."""

    name: str
    points: tuple[tuple[float, float], ...]
    breaks: tuple[int, ...] = ()


def line_plot(
    curves: list[Curve],
    x_name: str,
    y_name: str,
    log_y: bool = False,
    y_span: tuple[float, float] | None = None,
) -> str:
    """An svg picture of curves over common axes; their names stand above them if there are several.

    Points that are not finite are left out; some must be.
    log_y: the vertical axis is logarithmic (positive values only). y_span: lowest and highest value of a linear one,
    as of shares, which end at 1; by default those of the curves.
    """
    all_points = [point for curve in curves for point in _drawn(curve.points, log_y)]
    xs, ys = [x for x, _ in all_points], [y for _, y in all_points]
    (x_low, x_high), (y_low, y_high) = _span(xs), y_span or _span(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return across, down

    names, above = _names(curves) if len(curves) > 1 else ([], 0)
    about = f'role="img" aria-label="{escape(y_name)} over {escape(x_name)}"'
    parts = [f'<svg viewBox="0 {-above} {WIDTH} {HEIGHT + above}" {about}>']
    for value in _round_logarithms(y_low, y_high) if log_y else _round_values(y_low, y_high, 4):
        _, down = place(x_low, value)
        shown = 10**value if log_y else value
        parts.append(f'<line x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{shown:.{3 if log_y else 6}g}</text>')
    for value in _marked(xs) or _round_values(x_low, x_high, 4):
        across, _ = place(value, y_low)
        parts.append(f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        for first, last in pairwise((0, *curve.breaks, len(curve.points))):
            piece = _drawn(curve.points[first:last], log_y)
            points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in piece)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts += names
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(y_name)}</text>'
    )
    return "".join((*parts, "</svg>"))


def _names(curves: list[Curve]) -> tuple[list[str], int]:
    """The names of curves, each in its colour, in rows above the plot, and how many pixels these take."""
    places: list[tuple[float, int]] = []
    across, row = float(LEFT), 0
    for curve in curves:
        wide = LETTER * len(curve.name)
        if across > LEFT and across + wide > WIDTH - RIGHT:
            across, row = float(LEFT), row + 1
        places.append((across, row))
        across += wide + 2 * LETTER
    above = ROW * (row + 1)
    texts = [
        f'<text x="{across:.0f}" y="{ROW * row - above + 12}" style="fill: {COLOURS[index % len(COLOURS)]}">'
        f"{escape(curve.name)}</text>"
        for index, (curve, (across, row)) in enumerate(zip(curves, places, strict=True))
    ]
    return texts, above


def _drawn(points: tuple[tuple[float, float], ...], log_y: bool) -> Iterator[tuple[float, float]]:
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            yield x, math.log10(max(y, 1e-12)) if log_y else y


def _marked(xs: list[float]) -> list[float]:
    """Positions that are all marked, since they are few and easy to read, such as those of steps; else none."""
    positions = sorted(set(xs))
    return positions if len(positions) <= MOST_MARKS and all(float(x).is_integer() for x in positions) else []


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _round_logarithms(low: float, high: float) -> list[float]:
    """Logarithms of values that are easy to read: of powers of ten, or of 1, 2 and 5 times them in a short span."""
    powers = range(math.floor(low + 1e-9), math.floor(high + 1e-9) + 1)
    whole = [float(power) for power in powers if low - 1e-9 <= power <= high + 1e-9]
    if len(whole) > 1:
        return whole[:: -(-len(whole) // MOST_POWERS)]
    within = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    return [value for value in within if low - 1e-9 <= value <= high + 1e-9] or [low, high]


def _round_values(low: float, high: float, steps: int) -> list[float]:
    """Values that are easy to read, evenly spaced, from `low` to `high`; there are `steps` + 1 of them at most."""
    least = (high - low) / steps
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in ROUND if power * factor >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.9g}") for number in range(first, last + 1)]
