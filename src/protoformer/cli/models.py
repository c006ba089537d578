"""`protoformer models`."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from protoformer.cli.terminal import progress_bar
from protoformer.loading import SIZE, ModelEntry, list_models
from protoformer.models.config import PRESETS

NARROWEST = 80
"""Columns that are taken where there are fewer, or none to count: what is printed is never cut."""


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print it for programs, part by part.")] = False,
) -> None:
    """List the models: tasks, size, cost, weights and license.

    Example: `protoformer models --json`
    """
    with progress_bar("counting", len(PRESETS)) as told:
        entries = list_models(told)
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=1))
        return
    console = Console()
    console.width = max(console.width, NARROWEST)
    console.print(_table(entries))
    served = (f"{entry.name} ({', '.join(entry.default_for)})" for entry in entries if entry.default_for)
    console.print(f"Loaded by a task's name: {', '.join(served)}. License: {entries[0].license}.")
    trained = {task: license for entry in entries for task, license in entry.weights.items()}
    if trained:
        console.print(f"Trained: {', '.join(trained)}. Every other name, a preset's too, loads random weights.")
        for task, license in trained.items():
            if license != entries[0].license:
                console.print(f"Weights of {task}: {license}.")
    else:
        console.print("No trained weights are in this version of the package: results mean nothing until they are.")


def _table(entries: list[ModelEntry]) -> Table:
    """A row a preset."""
    caption = (
        "Parameters of each task's network, in millions; GFLOPs and updates of the flow of a pair of "
        f"{SIZE[0]}x{SIZE[1]} images."
    )
    table = Table(caption=caption, caption_justify="left", box=None)
    table.add_column("name", no_wrap=True)
    for column in (*entries[0].networks, "GFLOPs", "updates"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("weights")
    for entry in entries:
        sizes = (f"{count / 1e6:.2f}" for count in entry.networks.values())
        table.add_row(entry.name, *sizes, f"{entry.gflops:.0f}", str(entry.updates), _weights(entry))
    return table


def _weights(entry: ModelEntry) -> str:
    """The tasks that a preset has trained weights for, short enough for a row."""
    return "all" if len(entry.weights) == len(entry.tasks) else ", ".join(entry.weights) or "none"
