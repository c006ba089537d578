"""A table of an ablation beside the paper's: on a terminal, in markdown, as csv, and in words."""

import csv
import io
import math

from rich.table import Table
from rich.text import Text

from protoformer.training.ablation_summary import FIRST, PUBLISHED, Agreement, Contrary, Spread, Summary, SummaryRow

METRICS = {"epe": ("EPE", 3), "fl": ("Fl %", 2), "abs_rel": ("AbsRel", 4), "rmse": ("RMSE", 3)}
"""What a figure is called, and how many of its decimals are shown."""
NOT_COMPARABLE = (
    "The paper's figures come from other data and far longer training: what compares is the order of the rows, "
    "not their figures."
)


def column_name(column: str) -> str:
    """A column of scores, for people: "sintel clean epe" is sintel clean EPE."""
    *place, metric = column.split()
    return " ".join((*place, METRICS[metric][0]))


def decimals_of(column: str) -> int:
    """How many are shown of the figures of a column of scores."""
    return METRICS[column.split()[-1]][1]


def ablation_title(summary: Summary) -> str:
    """The task, and what its table is about."""
    return f"{summary.task.capitalize()}: {summary.what}"


def ablation_table(summary: Summary) -> Table:
    """The rows with what was measured, on a terminal; the full system is bold."""
    title, caption = Text(ablation_title(summary)), Text(_caption(summary))
    table = Table(title=title, box=None, caption=caption, caption_justify="left")
    head = _head(summary)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in summary.rows:
        table.add_row(*(Text(cell) for cell in _cells(summary, row)), style="bold" if row.is_default else "")
    return table


def ablation_markdown(summary: Summary, picture: str) -> str:
    """A section of a page: the table, its picture by this name, and how our order agrees with the paper's."""
    head = _head(summary)
    lines = [f"## {ablation_title(summary)}", "", f"| {' | '.join(head)} |", f"| --- {'| ---: ' * (len(head) - 1)}|"]
    for row in summary.rows:
        cells = _cells(summary, row)
        lines.append(f"| {' | '.join(f'**{cell}**' if row.is_default else cell for cell in cells)} |")
    lines += ["", f"![{ablation_title(summary)}: ours and the paper's]({picture})", "", _caption(summary), ""]
    return "\n".join([*lines, *(f"- {sentence}" for sentence in verdict(summary)), ""])


def ablation_csv(summary: Summary) -> str:
    """A row a variant, every figure in full; the deviation is over seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = [f"{column} {part}" for column in summary.columns for part in ("mean", "deviation")]
    figures = ("parameters", "gflops", "milliseconds", "steps", "seconds")
    writer.writerow(["variant", *(f"paper {name}" for name in PUBLISHED[summary.task]), "seeds", *scores, *figures])
    for row in summary.rows:
        found = [row.scores.get(column) for column in summary.columns]
        spreads = [part for each in found for part in ((None, None) if each is None else (each.mean, each.deviation))]
        writer.writerow([row.label, *row.published, row.seeds, *spreads, *(getattr(row, figure) for figure in figures)])
    return text.getvalue()


def verdict(summary: Summary) -> list[str]:
    """Whether the order of the rows is the paper's: sentences on the column to read, and one on all others."""
    by_column = {each.column: each for each in summary.agreements}
    first = by_column.pop(FIRST[summary.task], None)
    if first is None or not first.pairs:
        return ["Fewer than two rows are finished, so there is no order to compare."]
    sentences = [_order(summary, first), _doubt(first)]
    if first.contrary:
        sentences.append(f"Against the paper: {'; '.join(_against(first, each) for each in first.contrary)}.")
    if by_column:
        others = (f"{column_name(each.column)} {each.agreeing} of {each.pairs}" for each in by_column.values())
        sentences.append(f"Pairs ordered as in the paper by the other columns: {', '.join(others)}.")
    return sentences


def _caption(summary: Summary) -> str:
    height, width = summary.size
    several = " ± is the standard deviation over seeds." if len(summary.seeds) > 1 else ""
    if several and any(row.seeds == 1 for row in summary.rows):
        several += " Rows without it were trained with one seed."
    return (
        f"{summary.setting}; ms and GFLOPs: a forward pass at {height}x{width}, timed on {summary.device or 'nothing'}."
        f"{several} {NOT_COMPARABLE}"
    )


def _head(summary: Summary) -> list[str]:
    published = (f"paper: {name}" for name in PUBLISHED[summary.task])
    scores = (column_name(column) for column in summary.columns)
    return ["variant", *published, *scores, "parameters", "GFLOPs", "ms", "steps", "seconds"]


def _cells(summary: Summary, row: SummaryRow) -> list[str]:
    published = [f"{value:.2f}" if summary.task == "flow" else f"{value:.3f}" for value in row.published]
    scores = [_score(column, row.scores.get(column)) for column in summary.columns]
    millions = "-" if row.parameters is None else f"{row.parameters / 1e6:.2f} M"
    rest = (_number(row.gflops, 1), _number(row.milliseconds, 1), _number(row.steps, 0), _number(row.seconds, 0))
    return [row.label, *published, *scores, millions, *rest]


def _score(column: str, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    decimals = decimals_of(column)
    shown = f"{spread.mean:.{decimals}f}"
    return shown if spread.deviation is None else f"{shown} ± {spread.deviation:.{decimals}f}"


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _order(summary: Summary, agreement: Agreement) -> str:
    correlation = "" if math.isnan(agreement.correlation) else f" (Spearman {agreement.correlation:.2f})"
    return (
        f"By {column_name(agreement.column)}, {agreement.agreeing} of {agreement.pairs} pairs of rows are in the order "
        f"of the paper's {PUBLISHED[summary.task][1]}{correlation}."
    )


def _doubt(agreement: Agreement) -> str:
    if agreement.sure is None or agreement.sure_agreeing is None:
        return "One seed tells no spread, so none of these differences is known to be more than chance."
    return (
        f"{agreement.sure} of the {agreement.pairs} differences are more than the seeds' spread explains "
        f"(Student's t, 95 %), and {agreement.sure_agreeing} of these {agreement.sure} agree with the paper."
    )


def _against(agreement: Agreement, contrary: Contrary) -> str:
    decimals = decimals_of(agreement.column)
    known = {None: "", True: ", more than the spread", False: ", within the spread"}[contrary.sure]
    return f"{contrary.better} is worse than {contrary.worse} by {contrary.difference:.{decimals}f}{known}"
