"""`protoformer datasets`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from protoformer.cli.options import JsonOption, RootOption, parse_key_values
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.datasets.registry import DATASETS, check_dataset, open_splits

datasets = typer.Typer(
    help="List and check public datasets on disk.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


@datasets.command("list")
def list_datasets() -> None:
    """List the datasets that can be read.

    Example: `protoformer datasets list`
    """
    table = Table(box=None)
    for column in ("name", "task", "splits", "description"):
        table.add_column(column)
    for entry in DATASETS.values():
        table.add_row(entry.name, entry.task, ", ".join(entry.splits), entry.description)
    Console().print(table)


@datasets.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the dataset; see `protoformer datasets list`.")],
    root: RootOption,
    split: Annotated[str | None, typer.Option(help="train, val, test, ... [default: all that exist]")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the dataset, as key=value. Repeat for several.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read every sample of a dataset, and report missing splits and damaged samples.

    Example: `protoformer datasets check sintel --root Sintel`
    """
    splits = open_splits(name, root, split, **parse_key_values(option))
    reports = {}
    for each, dataset in splits.opened.items():
        with progress_bar(f"reading {name}, {each}", len(dataset)) as progress:
            reports[each] = check_dataset(dataset, progress)
    if as_json:
        print_json({"splits": {each: asdict(report) for each, report in reports.items()}, "missing": splits.missing}, 1)
    else:
        for each, report in reports.items():
            print(
                f"{name}, {each}: {report.num_samples} samples found, {report.read} read, {len(report.broken)} broken"
            )
            for broken, why in report.broken:
                print(f"  {broken}: {why}")
        for each, why in splits.missing.items():
            print(f"{name}, {each}: missing ({why.rstrip('.')})")
    if any(report.broken for report in reports.values()):
        raise typer.Exit(2)
