"""What every evaluation prints, and leaves in its folder."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from protoformer.app.plain_json import plain_json
from protoformer.files import write_atomically
from protoformer.inference.brief import count_fact

LEAST_WIDTH = 100
"""Characters that a line of a table may have where nobody says how wide the terminal is."""


def write_scores(folder: Path, table: str, text: str, found: Any) -> list[Path]:
    """Write a csv by the name `table`, and everything that was found as scores.json; the paths of both."""
    rows, scores = folder / table, folder / "scores.json"
    write_atomically(rows, text.encode())
    write_atomically(scores, json.dumps(plain_json(found), indent=1).encode())
    return [rows, scores]


def print_scores(*tables: Table) -> None:
    """Print tables below each other."""
    console = Console(width=max(LEAST_WIDTH, Console().width))
    for place, table in enumerate(tables):
        if place:
            console.print()
        console.print(table)


def tell_written(files: list[Path], pictures: list[Path] | None = None) -> None:
    """Say what was written, if anything was; pictures: of the worst samples."""
    named = [str(path) for path in files]
    if pictures:
        many = count_fact(len(pictures), "picture")
        named.append(f"{many} of the worst, {pictures[0].parent / 'worst-*.png'}")
    if named:
        print(f"wrote {', '.join(named)}")
