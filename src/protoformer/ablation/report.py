"""Ablation tables with the paper's scores: for the terminal, as markdown, CSV and plots."""

import csv
import io
import math

from rich.table import Table
from rich.text import Text

from protoformer.ablation.summary import (
    MAIN_COLUMN,
    METRICS,
    PUBLISHED,
    Agreement,
    Disagreement,
    Spread,
    Summary,
    SummaryRow,
)
from protoformer.errors import InputError
from protoformer.viz.colormaps import Pixels
from protoformer.viz.plots import Bar, bar_plot

METRIC_LABELS = {"epe": ("EPE", 3), "fl": ("Fl %", 2), "abs_rel": ("AbsRel", 4), "rmse": ("RMSE", 3)}
"""Display name and number of decimals of each metric."""
SIGNIFICANCE = {None: "", True: ", significant", False: ", not significant"}
"""Note on a difference by its significance, None if that is unknown."""
NOT_COMPARABLE = (
    "The paper's scores come from other data and far longer training, so only the order of the rows can be compared."
)


def column_name(column: str) -> str:
    """Return the display name of a score column, such as "sintel clean EPE" for "sintel clean epe"."""
    *dataset, metric = column.split()
    return " ".join((*dataset, METRIC_LABELS[metric][0]))


def column_decimals(column: str) -> int:
    """Return the number of decimals of a score column."""
    return METRIC_LABELS[column.split()[-1]][1]


def ablation_title(summary: Summary) -> str:
    """Return the title of a table."""
    return f"{summary.task.capitalize()}: {summary.description}"


def ablation_table(summary: Summary) -> Table:
    """Build a table for the terminal; the full system is bold."""
    title, caption = Text(ablation_title(summary)), Text(_caption(summary))
    table = Table(title=title, box=None, caption=caption, caption_justify="left")
    head = _head(summary)
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in summary.rows:
        table.add_row(*(Text(cell) for cell in _cells(summary, row)), style="bold" if row.is_default else "")
    return table


def ablation_markdown(summary: Summary, picture: str) -> str:
    """Build a markdown section: the table, its plot by file name, and the agreement with the paper's ranking."""
    head = _head(summary)
    lines = [f"## {ablation_title(summary)}", "", f"| {' | '.join(head)} |", f"| --- {'| ---: ' * (len(head) - 1)}|"]
    for row in summary.rows:
        cells = _cells(summary, row)
        lines.append(f"| {' | '.join(f'**{cell}**' if row.is_default else cell for cell in cells)} |")
    lines += ["", f"![{ablation_title(summary)}: this run and the paper]({picture})", "", _caption(summary), ""]
    return "\n".join([*lines, *(f"- {sentence}" for sentence in describe_agreement(summary)), ""])


def ablation_csv(summary: Summary) -> str:
    """Build a CSV with one row per variant and unrounded values; the deviation is over seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = [f"{column} {part}" for column in summary.columns for part in ("mean", "deviation")]
    figures = ("parameters", "gflops", "milliseconds", "steps", "seconds")
    writer.writerow(["variant", *(f"paper {name}" for name in PUBLISHED[summary.task]), "seeds", *scores, *figures])
    for row in summary.rows:
        spreads = [row.scores.get(column) for column in summary.columns]
        values = [part for each in spreads for part in ((None, None) if each is None else (each.mean, each.deviation))]
        published = row.published or (None, None)
        writer.writerow([row.label, *published, row.seeds, *values, *(getattr(row, figure) for figure in figures)])
    return text.getvalue()


def describe_agreement(summary: Summary) -> list[str]:
    """Describe the agreement of the rows' order with the paper's, for the main column and then for all others."""
    by_column = {each.column: each for each in summary.agreements}
    first = by_column.pop(MAIN_COLUMN[summary.task], None)
    additional = _describe_differences(summary)
    if all(row.published is None for row in summary.rows):
        return additional or ["Fewer than two rows are finished, so there is nothing to compare."]
    if first is None or not first.pairs:
        return ["Fewer than two rows are finished, so there is no order to compare.", *additional]
    sentences = [_describe_order(summary, first), _describe_significance(first)]
    if first.disagreements:
        sentences.append(
            f"Against the paper: {'; '.join(_describe_disagreement(first, each) for each in first.disagreements)}."
        )
    if by_column:
        others = (f"{column_name(each.column)} {each.agreeing} of {each.pairs}" for each in by_column.values())
        sentences.append(f"Pairs ordered as in the paper by the other columns: {', '.join(others)}.")
    return [*sentences, *additional]


def _describe_differences(summary: Summary) -> list[str]:
    """Compare the rows that are not in the paper with the full system, in one sentence or none."""
    if not summary.differences:
        return []
    column = MAIN_COLUMN[summary.task]
    default = next(row.label for row in summary.rows if row.is_default)
    parts = (
        f"{each.label} {each.difference:+.{column_decimals(column)}f}{SIGNIFICANCE[each.significant]}"
        for each in summary.differences
    )
    return [f"Not in the paper; {column_name(column)} minus that of {default}: {'; '.join(parts)}."]


def _caption(summary: Summary) -> str:
    height, width = summary.size
    spread = " ± is the standard deviation over seeds." if len(summary.seeds) > 1 else ""
    if spread and any(row.seeds == 1 for row in summary.rows):
        spread += " Rows without it were trained with one seed."
    return (
        f"{summary.setting}; ms and GFLOPs: a forward pass at {height}x{width}, timed on {summary.device or 'nothing'}."
        f"{spread} {NOT_COMPARABLE}"
    )


def _head(summary: Summary) -> list[str]:
    published = (f"paper: {name}" for name in PUBLISHED[summary.task])
    scores = (column_name(column) for column in summary.columns)
    return ["variant", *published, *scores, "parameters", "GFLOPs", "ms", "steps", "seconds"]


def _cells(summary: Summary, row: SummaryRow) -> list[str]:
    decimals = 2 if summary.task == "flow" else 3
    published = [_number(value, decimals) for value in row.published or (None, None)]
    scores = [_score(column, row.scores.get(column)) for column in summary.columns]
    millions = "-" if row.parameters is None else f"{row.parameters / 1e6:.2f} M"
    rest = (_number(row.gflops, 1), _number(row.milliseconds, 1), _number(row.steps, 0), _number(row.seconds, 0))
    return [row.label, *published, *scores, millions, *rest]


def _score(column: str, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    decimals = column_decimals(column)
    mean = f"{spread.mean:.{decimals}f}"
    return mean if spread.deviation is None else f"{mean} ± {spread.deviation:.{decimals}f}"


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _describe_order(summary: Summary, agreement: Agreement) -> str:
    correlation = "" if math.isnan(agreement.correlation) else f" (Spearman {agreement.correlation:.2f})"
    return (
        f"By {column_name(agreement.column)}, {agreement.agreeing} of {agreement.pairs} pairs of rows are in the order "
        f"of the paper's {PUBLISHED[summary.task][1]}{correlation}."
    )


def _describe_significance(agreement: Agreement) -> str:
    if agreement.significant is None or agreement.significant_agreeing is None:
        return "One seed gives no spread, so the significance of these differences is unknown."
    return (
        f"{agreement.significant} of the {agreement.pairs} differences are significant (Student's t over seeds, 95 %), "
        f"and {agreement.significant_agreeing} of these {agreement.significant} agree with the paper."
    )


def _describe_disagreement(agreement: Agreement, pair: Disagreement) -> str:
    decimals = column_decimals(agreement.column)
    note = SIGNIFICANCE[pair.significant]
    return f"{pair.better} is worse than {pair.worse} by {pair.difference:.{decimals}f}{note}"


BEGIN, END = "<!-- tables: written by protoformer ablate -->", "<!-- end of tables -->"


def insert_tables(page: str, tables: list[str], name: str) -> str:
    """Replace the sections between the markers of a page.

    Args:
        page: Text of the page.
        tables: Markdown sections.
        name: Name of the page, for messages.

    Raises:
        InputError: If the page has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(
            f"{name} has no markers for tables; write the lines {BEGIN} and {END} where the tables belong."
        )
    return "".join((before, BEGIN, "\n\n", *(f"{table.strip()}\n\n" for table in tables), END, after))


def plot_ablation(summary: Summary) -> Pixels:
    """Plot the first metric of the task, one panel per dataset, with the published scores as markers.

    The axis of the published scores is scaled so that both agree for the full system: a marker above its bar means that
    the variant costs more in the paper than here.

    Returns:
        uint8 H x 1600 x 3 RGB.
    """
    panels = {
        column_name(column): _bars(summary, column)
        for column in summary.columns
        if column.split()[-1] == METRICS[summary.task][0]
    }
    caption = (
        f"{summary.setting}; lower is better.\n{NOT_COMPARABLE} The published scores are scaled so that both agree on "
        "the full system."
    )
    return bar_plot(panels, ablation_title(summary), caption, ("this run", "published"))


def _bars(summary: Summary, column: str) -> list[Bar]:
    published = 0 if "clean" in column.split() or summary.task == "depth" else 1
    scored = [row for row in summary.rows if column in row.scores]
    full = next((row for row in scored if row.is_default), scored[0])
    scale = None if full.published is None else full.scores[column].mean / full.published[published]
    bars = []
    for row in summary.rows:
        spread, reference = row.scores.get(column), None if row.published is None else row.published[published]
        text = "" if spread is None else f"{spread.mean:.{column_decimals(column)}f}"
        mean, deviation = (None, None) if spread is None else (spread.mean, spread.deviation)
        marker, label = (None, "") if reference is None or scale is None else (reference * scale, f"{reference:g}")
        bars.append(Bar(row.label, mean, deviation, text, marker, label, row.is_default))
    return bars
