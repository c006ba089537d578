"""`protoformer models`."""

from rich.console import Console
from rich.table import Table

from protoformer.cli.options import JsonOption
from protoformer.cli.terminal import print_json, progress_bar
from protoformer.loading import SIZE, ModelEntry, list_models
from protoformer.models.config import PRESETS

MIN_WIDTH = 80
"""Minimum width of the table in characters, so that it is never truncated."""


def models(
    as_json: JsonOption = False,
) -> None:
    """List the models: tasks, size, cost, weights and license.

    Example: `protoformer models --json`
    """
    with progress_bar("counting", len(PRESETS)) as progress:
        entries = list_models(progress)
    if as_json:
        print_json(entries, indent=1)
        return
    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    console.print(_table(entries))
    defaults = (f"{entry.name} ({', '.join(entry.default_for)})" for entry in entries if entry.default_for)
    console.print(f"Loaded by a task's name: {', '.join(defaults)}. License: {entries[0].license}.")
    trained = {task: license for entry in entries for task, license in entry.weights.items()}
    if trained:
        console.print(f"Trained: {', '.join(trained)}. All other names, including presets, load random weights.")
        for task, license in trained.items():
            if license != entries[0].license:
                console.print(f"Weights of {task}: {license}.")
    else:
        console.print("This version of the package has no trained weights, so results are meaningless.")


def _table(entries: list[ModelEntry]) -> Table:
    """Make a table with one row per preset."""
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
        table.add_row(entry.name, *sizes, f"{entry.gflops:.0f}", str(entry.num_updates), _weights(entry))
    return table


def _weights(entry: ModelEntry) -> str:
    """Format the tasks for which a preset has trained weights."""
    return "all" if len(entry.weights) == len(entry.tasks) else ", ".join(entry.weights) or "none"
