"""`protoformer datasets`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from protoformer.cli.options import parse_key_values
from protoformer.cli.terminal import progress_bar
from protoformer.datasets.registry import DATASETS, check_dataset, open_splits

datasets = typer.Typer(help="List and check public datasets on disk.", no_args_is_help=True, add_completion=False)


@datasets.command("list")
def list_datasets() -> None:
    """The datasets that can be read.

    Example: `protoformer datasets list`
    """
    table = Table(box=None)
    for column in ("name", "task", "splits", "what"):
        table.add_column(column)
    for entry in DATASETS.values():
        table.add_row(entry.name, entry.task, ", ".join(entry.splits), entry.description)
    Console().print(table)


@datasets.command()
def check(
    name: Annotated[str, typer.Argument(help="The dataset's name; `protoformer datasets list` shows them.")],
    root: Annotated[Path, typer.Option(help="The folder that holds it, in its official layout.")],
    split: Annotated[str | None, typer.Option(help="train, val, test, ...; by default all that are there.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the dataset, as key=value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report for programs.")] = False,
) -> None:
    """Read every sample of a dataset, and say what is there, missing and broken.

    Example: `protoformer datasets check sintel --root Sintel`
    """
    splits = open_splits(name, root, split, **parse_key_values(option))
    reports = {}
    for each, dataset in splits.opened.items():
        with progress_bar(f"reading {name}, {each}", len(dataset)) as told:
            reports[each] = check_dataset(dataset, told)
    if as_json:
        there = {each: dataclasses.asdict(report) for each, report in reports.items()}
        print(json.dumps({"splits": there, "missing": splits.missing}, indent=1))
    else:
        for each, report in reports.items():
            print(f"{name}, {each}: {report.found} samples found, {report.read} read, {len(report.broken)} broken")
            for broken, why in report.broken:
                print(f"  {broken}: {why}")
        for each, why in splits.missing.items():
            print(f"{name}, {each}: not there ({why.rstrip('.')})")
    if any(report.broken for report in reports.values()):
        raise typer.Exit(2)
