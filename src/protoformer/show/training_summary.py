"""A training run in one picture: its curves, and what the network makes of scenes it has not seen."""

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from protoformer.show.plots import COLOURS, Curve
from protoformer.show.prototypes import Pixels

WIDTH = 1600

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
    across = (WIDTH - 2 * _MARGIN - (len(panels) - 1) * _GAP) // len(panels)
    shown = _fitted(pictures)
    below = _PANEL + (2 * _GAP + _HEAD + shown.shape[0] if shown is not None else 0)
    sheet = Image.new("RGB", (WIDTH, 2 * _MARGIN + _TITLE + _GAP + below), _PAPER)
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
    room = WIDTH - 2 * _MARGIN - (len(pictures) - 1) * _GAP
    height = min(_HIGHEST, max(1, int(room / sum(each.shape[1] / each.shape[0] for each in pictures))))
    row = np.full((height, WIDTH - 2 * _MARGIN, 3), _PAPER, dtype=np.uint8)
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
    (x_low, x_high), (y_low, y_high) = (_span([point[axis] for point in points]) for axis in (0, 1))

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
        colour = COLOURS[index % len(COLOURS)]
        pen.line([place(*point) for point in line], fill=colour, width=2, joint="curve")
        for x, y in (place(*point) for point in line) if len(line) <= 20 else ():
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour)
        if len(curves) > 1:
            corner = (width - _RIGHT, 2 + (_LABEL + 4) * index)
            pen.text(corner, curve.name, fill=colour, font=small, anchor="ra")
    return panel


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
