"""Line plots as svg, drawn without a plotting library so that a page needs none."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from protoformer.viz.images import Pixels

WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 14, 44
ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Steps between values that are easy to read, times a power of ten."""
MOST_MARKS = 12
"""Whole numbers that are all marked on the horizontal axis."""
COLORS = ("#1f6fb2", "#c8553d", "#3a7d44", "#8367c7", "#b8860b")
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
        color = COLORS[index % len(COLORS)]
        for first, last in pairwise((0, *curve.breaks, len(curve.points))):
            piece = _drawn(curve.points[first:last], log_y)
            points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in piece)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    parts += names
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(y_name)}</text>'
    )
    return "".join((*parts, "</svg>"))


def _names(curves: list[Curve]) -> tuple[list[str], int]:
    """The names of curves, each in its color, in rows above the plot, and how many pixels these take."""
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
        f'<text x="{across:.0f}" y="{ROW * row - above + 12}" style="fill: {COLORS[index % len(COLORS)]}">'
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


SUMMARY_WIDTH = 1600

_MARGIN, _GAP = 24, 16
_TITLE, _HEAD, _LABEL = 30, 18, 14
"""Heights of letters, pixels."""
_PANEL, _HIGHEST = 320, 640
"""Height of a panel, and the most that a row of pictures may have."""
_PAPER, _INK, _SOFT, _LINE = (250, 250, 248), (29, 39, 51), (92, 107, 122), (217, 224, 231)
_METRICS = {
    "epe": "end-point error, pixels",
    "iou": "overlap with the true box",
    "abs_rel": "error of depth, as a share of it",
}
"""What stands over the panel of a metric."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 44, 30
"""What is around the lines of a panel, pixels."""


def training_summary(records: Sequence[dict[str, Any]], pictures: Sequence[Pixels], title: str, caption: str) -> Pixels:
    """Loss, the task's first metric with its validations, and rate over the steps, pictures below: uint8 H x 1600 x 3.

    records: of the run's log. pictures: of any sizes, shown side by side, with a caption if there are any.
    """
    steps = [record for record in records if record.get("event") == "step"]
    loss = Curve("loss", _points(steps, lambda record: record.get("loss")))
    metric = next((name for record in steps for name in record.get("metrics", {})), "epe")
    trained = Curve("training", _points(steps, lambda record: record.get("metrics", {}).get(metric)))
    rate = Curve("rate", _points(steps, lambda record: record.get("rate")))
    judged: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for key, value in record.items() if record.get("event") == "validation" else ():
            if key.split()[-1:] == [metric] and value is not None:  # "epe", or of a part of the dataset, "clean epe"
                name = f"{record['on']} {key.removesuffix(metric)}".strip()
                judged.setdefault(name, []).append((float(record["step"]), float(value)))
    curves = [trained, *(Curve(name, tuple(points)) for name, points in judged.items())]
    panels = (("loss", [loss], True), (_METRICS.get(metric, metric), curves, True), ("learning rate", [rate], False))
    across = (SUMMARY_WIDTH - 2 * _MARGIN - (len(panels) - 1) * _GAP) // len(panels)
    shown = _fitted(pictures)
    below = _PANEL + (2 * _GAP + _HEAD + shown.shape[0] if shown is not None else 0)
    sheet = Image.new("RGB", (SUMMARY_WIDTH, 2 * _MARGIN + _TITLE + _GAP + below), _PAPER)
    ImageDraw.Draw(sheet).text((_MARGIN, _MARGIN - 8), title, fill=_INK, font=ImageFont.load_default(_TITLE))
    top = _MARGIN + _TITLE + _GAP
    for column, (name, lines, log_y) in enumerate(panels):
        sheet.paste(_panel(lines, name, across, log_y), (_MARGIN + column * (across + _GAP), top))
    if shown is not None:
        place = (_MARGIN, top + _PANEL + _GAP)
        ImageDraw.Draw(sheet).text(place, caption, fill=_INK, font=ImageFont.load_default(_HEAD))
        sheet.paste(Image.fromarray(shown), (_MARGIN, place[1] + _HEAD + _GAP))
    return np.asarray(sheet)


def _points(records: Sequence[dict[str, Any]], value: Any) -> tuple[tuple[float, float], ...]:
    found = ((float(record["step"]), value(record)) for record in records)
    return tuple((step, float(each)) for step, each in found if each is not None)


def _fitted(pictures: Sequence[Pixels]) -> Pixels | None:
    """Pictures side by side, as high as the width allows; None if there are none."""
    if not pictures:
        return None
    room = SUMMARY_WIDTH - 2 * _MARGIN - (len(pictures) - 1) * _GAP
    height = min(_HIGHEST, max(1, int(room / sum(each.shape[1] / each.shape[0] for each in pictures))))
    row = np.full((height, SUMMARY_WIDTH - 2 * _MARGIN, 3), _PAPER, dtype=np.uint8)
    left = 0
    for each in pictures:
        width = max(1, int(height * each.shape[1] / each.shape[0]))
        row[:, left : left + width] = cv2.resize(each, (width, height), interpolation=cv2.INTER_AREA)
        left += width + _GAP
    return row


def _panel(curves: Sequence[Curve], name: str, width: int, log_y: bool) -> Image.Image:
    """Curves over common axes, with marks where a curve has few points."""
    panel = Image.new("RGB", (width, _PANEL), _PAPER)
    pen, small = ImageDraw.Draw(panel), ImageFont.load_default(_LABEL)
    pen.text((0, 0), name, fill=_INK, font=ImageFont.load_default(_HEAD))
    scaled = [[(x, math.log10(max(y, 1e-12)) if log_y else y) for x, y in curve.points] for curve in curves]
    points = [point for curve in scaled for point in curve]
    if not points:
        pen.text((_LEFT, _PANEL // 2), "nothing was measured", fill=_SOFT, font=small)
        return panel
    (x_low, x_high), (y_low, y_high) = (_summary_span([point[axis] for point in points]) for axis in (0, 1))

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x_low) / (x_high - x_low) * (width - _LEFT - _RIGHT)
        return across, _PANEL - _BOTTOM - (y - y_low) / (y_high - y_low) * (_PANEL - _TOP - _BOTTOM)

    for value in (y_low + (y_high - y_low) * part / 4 for part in range(5)):
        _, down = place(x_low, value)
        pen.line((_LEFT, down, width - _RIGHT, down), fill=_LINE)
        text = f"{10**value if log_y else value:.3g}"
        pen.text((_LEFT - 6, down), text, fill=_SOFT, font=small, anchor="rm")
    for value, anchor in ((x_low, "la"), (x_high, "ra")):
        pen.text((place(value, y_low)[0], _PANEL - _BOTTOM + 8), f"{value:g}", fill=_SOFT, font=small, anchor=anchor)
    for index, (curve, line) in enumerate(zip(curves, scaled, strict=True)):
        color = COLORS[index % len(COLORS)]
        pen.line([place(*point) for point in line], fill=color, width=2, joint="curve")
        for x, y in (place(*point) for point in line) if len(line) <= 20 else ():
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=color)
        if len(curves) > 1:
            corner = (width - _RIGHT, 2 + (_LABEL + 4) * index)
            pen.text(corner, curve.name, fill=color, font=small, anchor="ra")
    return panel


def _summary_span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
