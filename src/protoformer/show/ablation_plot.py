"""A table of an ablation as a picture: our figures as bars, the paper's as marks on an axis of their own."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from protoformer.show.ablation import NOT_COMPARABLE, ablation_title, column_name, decimals_of
from protoformer.show.plots import COLOURS
from protoformer.show.prototypes import Pixels
from protoformer.training.ablation_summary import METRICS, PUBLISHED, Summary, SummaryRow

WIDTH = 1600

_MARGIN, _GAP = 24, 24
_TITLE, _HEAD, _LABEL = 28, 18, 15
"""Heights of letters, pixels."""
_ACROSS, _HEIGHT = 2, 300
"""Panels of a row, and the height of one."""
_TOP, _BOTTOM, _RIGHT = 52, 30, 8
"""What is around the bars of a panel, pixels."""
_PAPER, _INK, _SOFT, _LINE = (250, 250, 248), (29, 39, 51), (92, 107, 122), (217, 224, 231)
_BAR, _FULL, _MARK = "#9db8d2", COLOURS[0], COLOURS[1]
_MARK_SIZE, _WHISKER = 7, 8


def ablation_picture(summary: Summary) -> Pixels:
    """A panel for each column by the task's first metric: uint8 H x 1600 x 3.

    All axes begin at 0. The paper's is scaled so that both agree on the full system; so what a bar and its mark differ
    by is a difference in how much a variant costs.
    """
    columns = [column for column in summary.columns if column.split()[-1] == METRICS[summary.task][0]]
    deep = -(-len(columns) // _ACROSS)
    above = _MARGIN + _TITLE + 2 * (_HEAD + 8) + _GAP
    sheet = Image.new("RGB", (WIDTH, above + deep * (_HEIGHT + _GAP) + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN - 8), ablation_title(summary), fill=_INK, font=ImageFont.load_default(_TITLE))
    small = ImageFont.load_default(_LABEL)
    pen.text((_MARGIN, _MARGIN + _TITLE + 4), f"{summary.setting}; less is better.", fill=_SOFT, font=small)
    caption = f"{NOT_COMPARABLE} Their axis is scaled so that both agree on the full system."
    pen.text((_MARGIN, _MARGIN + _TITLE + 4 + _HEAD + 4), caption, fill=_SOFT, font=small)
    across = (WIDTH - 2 * _MARGIN - (_ACROSS - 1) * _GAP) // _ACROSS
    for number, column in enumerate(columns):
        row, place = divmod(number, _ACROSS)
        corner = (_MARGIN + place * (across + _GAP), above + row * (_HEIGHT + _GAP))
        sheet.paste(_panel(summary, column, across), corner)
    return np.asarray(sheet)


def _panel(summary: Summary, column: str, width: int) -> Image.Image:
    """Bars of a column's means with whiskers of their deviations, and the paper's marks."""
    panel = Image.new("RGB", (width, _HEIGHT), _PAPER)
    pen, small = ImageDraw.Draw(panel), ImageFont.load_default(_LABEL)
    published = 0 if "clean" in column.split() or summary.task == "depth" else 1
    pen.text((0, 0), column_name(column), fill=_INK, font=ImageFont.load_default(_HEAD))
    pen.text((0, _HEAD + 6), "ours: bars", fill=_FULL, font=small)
    pen.text((110, _HEAD + 6), f"the paper's {PUBLISHED[summary.task][published]}: marks", fill=_MARK, font=small)
    scale = _scale(summary.rows, column, published)
    tops = [row.published[published] * scale for row in summary.rows]
    tops += [spread.mean + (spread.deviation or 0) for row in summary.rows if (spread := row.scores.get(column))]
    per_pixel = (_HEIGHT - _TOP - _BOTTOM - _LABEL) / max(*tops, 1e-9)
    floor, step = _HEIGHT - _BOTTOM, (width - _RIGHT) / len(summary.rows)
    pen.line((0, floor, width - _RIGHT, floor), fill=_LINE)
    for number, row in enumerate(summary.rows):
        middle = (number + 0.5) * step
        pen.text((middle, floor + 8), row.label, fill=_INK, font=small, anchor="ma")
        _bar(pen, row, column, (middle, floor), step, per_pixel)
        down = floor - row.published[published] * scale * per_pixel
        aside = middle + 0.36 * step
        diamond = [(aside - _MARK_SIZE, down), (aside, down - _MARK_SIZE), (aside + _MARK_SIZE, down)]
        pen.polygon([*diamond, (aside, down + _MARK_SIZE)], fill=_MARK)
        shown = f"{row.published[published]:g}"
        pen.text((aside, down + _MARK_SIZE + 2), shown, fill=_MARK, font=small, anchor="ma")
    return panel


def _bar(
    pen: ImageDraw.ImageDraw,
    row: SummaryRow,
    column: str,
    foot: tuple[float, float],
    step: float,
    per_pixel: float,
) -> None:
    """One bar with its figure; nothing where the row is not finished. foot: the middle of its lower end."""
    (middle, floor), spread = foot, row.scores.get(column)
    if spread is None:
        return
    top, half = floor - spread.mean * per_pixel, 0.22 * step
    pen.rectangle((middle - half, top, middle + half, floor), fill=_FULL if row.is_default else _BAR)
    high = top
    if spread.deviation is not None:
        reach = spread.deviation * per_pixel
        high = top - reach
        pen.line((middle, high, middle, top + reach), fill=_INK, width=2)
        for end in (high, top + reach):
            pen.line((middle - _WHISKER, end, middle + _WHISKER, end), fill=_INK, width=2)
    figure = f"{spread.mean:.{decimals_of(column)}f}"
    pen.text((middle, high - 4), figure, fill=_INK, font=ImageFont.load_default(_LABEL), anchor="mb")


def _scale(rows: tuple[SummaryRow, ...], column: str, published: int) -> float:
    """What the paper's figures are multiplied by: both agree on the full system, or else on the first row there is."""
    there = [row for row in rows if column in row.scores]
    agreed = next((row for row in there if row.is_default), there[0])
    return agreed.scores[column].mean / agreed.published[published]
