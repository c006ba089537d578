"""Tables of ablations as people read them."""

import csv
import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from protoformer.ablation.report import (
    BEGIN,
    END,
    ablation_csv,
    ablation_markdown,
    ablation_table,
    describe_agreement,
    insert_tables,
    plot_ablation,
)
from protoformer.ablation.summary import Agreement, Difference, Disagreement, Spread, Summary, SummaryRow
from protoformer.errors import InputError


def row(label: str, published: tuple[float, float] | None, *errors: float, full: bool = False) -> SummaryRow:
    if not errors:
        return SummaryRow(label, full, published, 0, None, None, None, None, None, {})
    deviation = max(errors) - min(errors) if len(errors) > 1 else None
    scores = {
        "synthetic epe": Spread(sum(errors) / len(errors), deviation, errors),
        "sintel clean epe": Spread(9.0, None, (9.0,)),
    }
    return SummaryRow(label, full, published, len(errors), 4_210_000, 307.11, 12.34, 1500.0, 61.2, scores)


def summary(*rows: SummaryRow, agreement: Agreement | None = None) -> Summary:
    first = agreement or Agreement(
        "synthetic epe",
        3,
        2,
        0.5,
        significant=2,
        significant_agreeing=1,
        disagreements=(Disagreement("LS", "FC", 0.25, True),),
    )
    other = Agreement("sintel clean epe", 3, 1, float("nan"), None, None, ())
    columns = ("synthetic epe", "sintel clean epe")
    return Summary(
        *("flow", "synchronization", "how it is done", (0, 1), columns, rows, (first, other)),
        **{"device": "CPU", "size": (440, 1024), "setting": "fast network, 10 steps each"},
    )


ROWS = (
    row("none", (0.51, 0.74), 4.0, 4.2),
    row("FC", (0.50, 0.73)),
    row("LS", (0.48, 0.69), 3.0, 3.1, full=True),
)


def test_a_row_of_fewer_seeds_is_explained() -> None:
    short = "Rows without it were trained with one seed."
    assert short not in ablation_markdown(summary(*ROWS), "picture.png")
    assert short in ablation_markdown(summary(*ROWS, row("FC with similarity", (0.49, 0.71), 3.3)), "picture.png")


def test_a_section_has_scores_costs_and_agreement() -> None:
    text = ablation_markdown(summary(*ROWS), "picture.png")
    lines = text.splitlines()
    assert lines[0] == "## Flow: how it is done"
    assert lines[2] == (
        "| variant | paper: Sintel clean EPE | paper: Sintel final EPE | synthetic EPE | sintel clean EPE | parameters "
        "| GFLOPs | ms | steps | seconds |"
    )
    assert lines[4] == "| none | 0.51 | 0.74 | 4.100 ± 0.200 | 9.000 | 4.21 M | 307.1 | 12.3 | 1500 | 61 |"
    assert lines[5] == "| FC | 0.50 | 0.73 | - | - | - | - | - | - | - |"
    assert lines[6].startswith("| **LS** | **0.48** |")
    assert "](picture.png)" in text and "a forward pass at 440x1024, timed on CPU" in text
    assert "so only the order of the rows can be compared" in text


def test_the_agreement_is_described_with_its_significance() -> None:
    assert describe_agreement(summary(*ROWS)) == [
        "By synthetic EPE, 2 of 3 pairs of rows are in the order of the paper's Sintel final EPE (Spearman 0.50).",
        "2 of the 3 differences are significant (Student's t over seeds, 95 %), and 1 of these 2 agree with the paper.",
        "Against the paper: LS is worse than FC by 0.250, significant.",
        "Pairs ordered as in the paper by the other columns: sintel clean EPE 1 of 3.",
    ]
    alone = Agreement("synthetic epe", 1, 1, 1.0, None, None, ())
    assert describe_agreement(summary(*ROWS, agreement=alone))[1].startswith("One seed gives no spread")
    nothing = Agreement("synthetic epe", 0, 0, float("nan"), None, None, ())
    assert describe_agreement(summary(*ROWS, agreement=nothing)) == [
        "Fewer than two rows are finished, so there is no order to compare."
    ]


def test_a_csv_has_every_figure_in_full() -> None:
    first, second, _ = csv.DictReader(io.StringIO(ablation_csv(summary(*ROWS))))
    assert float(first["synthetic epe mean"]) == pytest.approx(4.1) and float(first["synthetic epe deviation"]) > 0
    assert (first["paper Sintel final EPE"], first["parameters"], first["seeds"]) == ("0.74", "4210000", "2")
    assert (second["synthetic epe mean"], second["milliseconds"], second["seeds"]) == ("", "", "0")


def test_a_table_fits_a_terminal() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(ablation_table(summary(*ROWS)))
    assert "4.100 ± 0.200" in console.export_text()


def test_bars_are_as_high_as_the_figures_and_marks_agree_on_the_full_system() -> None:
    pixels = plot_ablation(summary(*ROWS))
    assert pixels.shape[1] == 1600 and pixels.dtype == np.uint8
    bar, full, mark = ((0x9D, 0xB8, 0xD2), (0x1F, 0x6F, 0xB2), (0xC8, 0x55, 0x3D))
    panel = pixels[:, :776]

    def height(color: tuple[int, int, int], left: int, right: int) -> int:
        rows = np.flatnonzero((panel[:, left:right] == color).all(axis=2).sum(axis=1) > 40)
        return int(np.ptp(rows)) + 1

    assert height(bar, 0, 300) / height(full, 500, 776) == pytest.approx(4.1 / 3.05, rel=0.02)
    assert not (panel[:, 260:500] == bar).all(axis=2).any()  # what is not finished has no bar
    top = np.flatnonzero((panel[:, 500:776] == full).all(axis=2).sum(axis=1) > 40)[0]
    diamond = np.flatnonzero((panel[:, 500:776] == mark).all(axis=2).sum(axis=1) >= 14)
    assert abs(float(diamond.mean()) - top) < 3


def test_tables_are_inserted_between_the_markers_of_a_page() -> None:
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    once = insert_tables(page, ["## A\n\nrow\n", "## B\n"], "page.md")
    assert once == f"# Title\n\n{BEGIN}\n\n## A\n\nrow\n\n## B\n\n{END}\n\nmore\n"
    assert insert_tables(once, [], "page.md") == f"# Title\n\n{BEGIN}\n\n{END}\n\nmore\n"
    with pytest.raises(InputError, match=r"page\.md has no markers for tables"):
        insert_tables("# Title\n", [], "page.md")


def test_rows_that_are_not_in_the_paper_have_no_published_scores() -> None:
    table = dataclasses.replace(
        summary(row("none", None, 4.0, 4.2), row("prototypes", None, 3.0, 3.1, full=True)),
        differences=(Difference("none", 1.05, True),),
    )
    text = ablation_markdown(table, "picture.png")
    assert "| none | - | - | 4.100" in text
    assert describe_agreement(table) == [
        "Not in the paper; synthetic EPE minus that of prototypes: none +1.050, significant."
    ]
    assert ablation_csv(table).splitlines()[1].startswith("none,,,2,")
    assert plot_ablation(table).shape[1] == 1600
