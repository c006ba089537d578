"""What an ablation leaves in its folder, and in a page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protoformer.app.plain_json import plain_json
from protoformer.files import write_atomically, write_image
from protoformer.show.ablation import ablation_csv, ablation_markdown
from protoformer.show.ablation_page import page_with_tables
from protoformer.show.ablation_plot import ablation_picture
from protoformer.training.ablation_summary import Summary
from protoformer.training.ablation_tables import TABLES, TASKS


@dataclass(frozen=True)
class TablePaths:
    """The files of a table."""

    markdown: Path
    csv: Path
    json: Path
    picture: Path


def table_paths(folder: Path, task: str, table: str) -> TablePaths:
    """Where the files of a table lie in a folder of ablations."""
    return TablePaths(*(folder / f"{task}-{table}.{suffix}" for suffix in ("md", "csv", "json", "png")))


def write_table(folder: Path, summary: Summary, recipe: dict[str, Any]) -> TablePaths:
    """Write a table as markdown, csv, json (with the recipe that variants are changed from) and a picture."""
    paths = table_paths(folder, summary.task, summary.table)
    write_atomically(paths.markdown, ablation_markdown(summary, paths.picture.name).encode())
    write_atomically(paths.csv, ablation_csv(summary).encode())
    write_atomically(paths.json, json.dumps({**plain_json(summary), "recipe": recipe}, indent=1).encode())
    write_image(paths.picture, ablation_picture(summary))
    return paths


def write_page(page: Path, folder: Path) -> None:
    """Put every table that lies in a folder of ablations into a page, and their pictures beside it."""
    sections = []
    for paths in (table_paths(folder, task, table) for task in TASKS for table in TABLES):
        if paths.markdown.is_file():
            picture = f"ablation-{paths.picture.name}"
            write_atomically(page.parent / picture, paths.picture.read_bytes())
            sections.append(
                paths.markdown.read_text(encoding="utf-8").replace(f"({paths.picture.name})", f"({picture})")
            )
    text = page_with_tables(page.read_text(encoding="utf-8"), sections, str(page))
    write_atomically(page, text.encode())
