"""`protoformer models`."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from protoformer.app.progress import progress_bar
from protoformer.inference.catalogue import SIZE, catalogue
from protoformer.model import PRESETS


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print it for programs, part by part.")] = False,
) -> None:
    """The models there are: tasks, size, cost, weights and licence.

    Example: `protoformer models --json`
    """
    with progress_bar("counting", len(PRESETS)) as told:
        entries = catalogue(told)
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=1))
        return
    table = Table(caption=f"GFLOPs: one pair of {SIZE[0]}x{SIZE[1]} images at the updates shown", box=None)
    for column in ("name", "tasks", "default for", "parameters", "GFLOPs", "updates", "weights", "licence"):
        table.add_column(column, justify="right" if column in ("parameters", "GFLOPs", "updates") else "left")
    for entry in entries:
        table.add_row(
            entry.name,
            ", ".join(entry.tasks),
            ", ".join(entry.default_for) or "-",
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.gflops:.0f}",
            str(entry.updates),
            entry.weights,
            entry.licence,
        )
    console = Console()
    console.print(table)
    if all(entry.weights == "none" for entry in entries):
        console.print("No trained weights are in this version of the package: results mean nothing until they are.")
