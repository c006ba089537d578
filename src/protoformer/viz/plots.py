"""Line plots as SVG, and the summary image of a training run."""

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
ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Steps between ticks, times a power of ten."""
MAX_TICKS = 12
"""Maximum number of integers that are all marked on the horizontal axis."""
COLORS = ("#1f6fb2", "#c8553d", "#3a7d44", "#8367c7", "#b8860b")
MAX_POWERS = 7
"""Maximum number of powers of ten on an axis."""
CHAR_WIDTH, ROW_HEIGHT = 6.5, 16
"""Approximate width of a character, and height of a row of the legend, in pixels."""


@dataclass(frozen=True)
class Curve:
    """A curve of a plot.

    Attributes:
        name: The name in the legend.
        points: Points (x, y).
        breaks: Increasing indices, from 1, of points that are not connected with the previous point.
    """

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
    """Plot curves as SVG, with a legend if there are several.

    Args:
        curves: The curves. Points that are not finite are left out; at least one must be finite.
        x_name: Label of the horizontal axis.
        y_name: Label of the vertical axis.
        log_y: Whether the vertical axis is logarithmic (positive values only).
        y_span: Lowest and highest value of a linear vertical axis; None: those of the curves.

    Returns:
        The text of the SVG.
    """
    all_points = [point for curve in curves for point in _finite_points(curve.points, log_y)]
    xs, ys = [x for x, _ in all_points], [y for _, y in all_points]
    (x_low, x_high), (y_low, y_high) = _span(xs), y_span or _span(ys)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        px = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        py = HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return px, py

    legend, legend_height = _draw_legend(curves) if len(curves) > 1 else ([], 0)
    label = f'role="img" aria-label="{escape(y_name)} over {escape(x_name)}"'
    parts = [f'<svg viewBox="0 {-legend_height} {WIDTH} {HEIGHT + legend_height}" {label}>']
    for value in _log_ticks(y_low, y_high) if log_y else _linear_ticks(y_low, y_high, 4):
        _, py = to_pixels(x_low, value)
        tick = 10**value if log_y else value
        parts.append(f'<line x1="{LEFT}" y1="{py:.1f}" x2="{WIDTH - RIGHT}" y2="{py:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{tick:.{3 if log_y else 6}g}</text>')
    for value in _integer_ticks(xs) or _linear_ticks(x_low, x_high, 4):
        px, _ = to_pixels(value, y_low)
        parts.append(f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    for index, curve in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        for first, last in pairwise((0, *curve.breaks, len(curve.points))):
            piece = _finite_points(curve.points[first:last], log_y)
            points = " ".join("{:.1f},{:.1f}".format(*to_pixels(x, y)) for x, y in piece)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    parts += legend
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(y_name)}</text>'
    )
    return "".join((*parts, "</svg>"))


def _draw_legend(curves: list[Curve]) -> tuple[list[str], int]:
    """Draw the names of curves in rows above the plot; returns the SVG elements and their height in pixels."""
    positions: list[tuple[float, int]] = []
    px, row = float(LEFT), 0
    for curve in curves:
        width = CHAR_WIDTH * len(curve.name)
        if px > LEFT and px + width > WIDTH - RIGHT:
            px, row = float(LEFT), row + 1
        positions.append((px, row))
        px += width + 2 * CHAR_WIDTH
    height = ROW_HEIGHT * (row + 1)
    texts = [
        f'<text x="{px:.0f}" y="{ROW_HEIGHT * row - height + 12}" style="fill: {COLORS[index % len(COLORS)]}">'
        f"{escape(curve.name)}</text>"
        for index, (curve, (px, row)) in enumerate(zip(curves, positions, strict=True))
    ]
    return texts, height


def _finite_points(points: tuple[tuple[float, float], ...], log_y: bool) -> Iterator[tuple[float, float]]:
    """Yield the finite points, with the logarithm of y if requested."""
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            yield x, math.log10(max(y, 1e-12)) if log_y else y


def _integer_ticks(xs: list[float]) -> list[float]:
    """Return all x values as ticks if they are few integers; else none."""
    positions = sorted(set(xs))
    return positions if len(positions) <= MAX_TICKS and all(float(x).is_integer() for x in positions) else []


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return the logarithms of round values: powers of ten, or 1, 2 and 5 times them in a short span."""
    powers = range(math.floor(low + 1e-9), math.floor(high + 1e-9) + 1)
    whole = [float(power) for power in powers if low - 1e-9 <= power <= high + 1e-9]
    if len(whole) > 1:
        return whole[:: -(-len(whole) // MAX_POWERS)]
    within = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    return [value for value in within if low - 1e-9 <= value <= high + 1e-9] or [low, high]


def _linear_ticks(low: float, high: float, steps: int) -> list[float]:
    """Return at most `steps` + 1 round, evenly spaced values from `low` to `high`."""
    min_step = (high - low) / steps
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(power * factor for factor in ROUND_STEPS if power * factor >= min_step * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.9g}") for number in range(first, last + 1)]


SUMMARY_WIDTH = 1600

_MARGIN, _GAP = 24, 16
_TITLE, _HEAD, _LABEL = 30, 18, 14
"""Font sizes, pixels."""
_PANEL, _MAX_IMAGE_HEIGHT = 320, 640
"""Height of a panel, and maximum height of the row of images, in pixels."""
_PAPER, _INK, _SOFT, _LINE = (250, 250, 248), (29, 39, 51), (92, 107, 122), (217, 224, 231)
_METRICS = {
    "epe": "end-point error, pixels",
    "iou": "IoU with the true box",
    "abs_rel": "absolute relative depth error",
}
"""Titles of the metrics."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 44, 30
"""Margins of a panel, in pixels."""


def training_summary(records: Sequence[dict[str, Any]], pictures: Sequence[Pixels], title: str, caption: str) -> Pixels:
    """Draw the loss, the first metric with its validations, and the learning rate of a run over the steps.

    Args:
        records: Records of the training log.
        pictures: Images of any sizes, uint8 HxWx3, shown side by side below the plots.
        title: The text at the top.
        caption: The text above the images, if there are any.

    Returns:
        uint8 H x 1600 x 3 RGB.
    """
    steps = [record for record in records if record.get("event") == "step"]
    loss = Curve("loss", _points(steps, lambda record: record.get("loss")))
    metric = next((name for record in steps for name in record.get("metrics", {})), "epe")
    trained = Curve("training", _points(steps, lambda record: record.get("metrics", {}).get(metric)))
    rate = Curve("rate", _points(steps, lambda record: record.get("rate")))
    validation: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for key, value in record.items() if record.get("event") == "validation" else ():
            if key.split()[-1:] == [metric] and value is not None:  # "epe", or of a part of the dataset, "clean epe"
                name = f"{record['on']} {key.removesuffix(metric)}".strip()
                validation.setdefault(name, []).append((float(record["step"]), float(value)))
    curves = [trained, *(Curve(name, tuple(points)) for name, points in validation.items())]
    panels = (("loss", [loss], True), (_METRICS.get(metric, metric), curves, True), ("learning rate", [rate], False))
    panel_width = (SUMMARY_WIDTH - 2 * _MARGIN - (len(panels) - 1) * _GAP) // len(panels)
    row = _join_images(pictures)
    height = _PANEL + (2 * _GAP + _HEAD + row.shape[0] if row is not None else 0)
    sheet = Image.new("RGB", (SUMMARY_WIDTH, 2 * _MARGIN + _TITLE + _GAP + height), _PAPER)
    ImageDraw.Draw(sheet).text((_MARGIN, _MARGIN - 8), title, fill=_INK, font=ImageFont.load_default(_TITLE))
    top = _MARGIN + _TITLE + _GAP
    for column, (name, lines, log_y) in enumerate(panels):
        sheet.paste(_draw_panel(lines, name, panel_width, log_y), (_MARGIN + column * (panel_width + _GAP), top))
    if row is not None:
        position = (_MARGIN, top + _PANEL + _GAP)
        ImageDraw.Draw(sheet).text(position, caption, fill=_INK, font=ImageFont.load_default(_HEAD))
        sheet.paste(Image.fromarray(row), (_MARGIN, position[1] + _HEAD + _GAP))
    return np.asarray(sheet)


def _points(records: Sequence[dict[str, Any]], value: Any) -> tuple[tuple[float, float], ...]:
    values = ((float(record["step"]), value(record)) for record in records)
    return tuple((step, float(number)) for step, number in values if number is not None)


def _join_images(images: Sequence[Pixels]) -> Pixels | None:
    """Join images side by side at the largest common height that fits the width; None if there are none."""
    if not images:
        return None
    available = SUMMARY_WIDTH - 2 * _MARGIN - (len(images) - 1) * _GAP
    height = min(_MAX_IMAGE_HEIGHT, max(1, int(available / sum(image.shape[1] / image.shape[0] for image in images))))
    row = np.full((height, SUMMARY_WIDTH - 2 * _MARGIN, 3), _PAPER, dtype=np.uint8)
    left = 0
    for image in images:
        width = max(1, int(height * image.shape[1] / image.shape[0]))
        row[:, left : left + width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        left += width + _GAP
    return row


def _draw_panel(curves: Sequence[Curve], name: str, width: int, log_y: bool) -> Image.Image:
    """Plot curves over common axes, with markers if a curve has few points."""
    panel = Image.new("RGB", (width, _PANEL), _PAPER)
    draw, font = ImageDraw.Draw(panel), ImageFont.load_default(_LABEL)
    draw.text((0, 0), name, fill=_INK, font=ImageFont.load_default(_HEAD))
    scaled = [[(x, math.log10(max(y, 1e-12)) if log_y else y) for x, y in curve.points] for curve in curves]
    points = [point for curve in scaled for point in curve]
    if not points:
        draw.text((_LEFT, _PANEL // 2), "no data", fill=_SOFT, font=font)
        return panel
    (x_low, x_high), (y_low, y_high) = (_summary_span([point[axis] for point in points]) for axis in (0, 1))

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        px = _LEFT + (x - x_low) / (x_high - x_low) * (width - _LEFT - _RIGHT)
        return px, _PANEL - _BOTTOM - (y - y_low) / (y_high - y_low) * (_PANEL - _TOP - _BOTTOM)

    for value in (y_low + (y_high - y_low) * index / 4 for index in range(5)):
        _, py = to_pixels(x_low, value)
        draw.line((_LEFT, py, width - _RIGHT, py), fill=_LINE)
        text = f"{10**value if log_y else value:.3g}"
        draw.text((_LEFT - 6, py), text, fill=_SOFT, font=font, anchor="rm")
    for value, anchor in ((x_low, "la"), (x_high, "ra")):
        draw.text(
            (to_pixels(value, y_low)[0], _PANEL - _BOTTOM + 8), f"{value:g}", fill=_SOFT, font=font, anchor=anchor
        )
    for index, (curve, line) in enumerate(zip(curves, scaled, strict=True)):
        color = COLORS[index % len(COLORS)]
        draw.line([to_pixels(*point) for point in line], fill=color, width=2, joint="curve")
        for x, y in (to_pixels(*point) for point in line) if len(line) <= 20 else ():
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=color)
        if len(curves) > 1:
            corner = (width - _RIGHT, 2 + (_LABEL + 4) * index)
            draw.text(corner, curve.name, fill=color, font=font, anchor="ra")
    return panel


def _summary_span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
