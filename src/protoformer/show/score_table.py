"""How scores are laid out on a terminal."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def score_table(title: str, caption: str, words: Iterable[str], figures: Iterable[str]) -> Table:
    """A table without rows: columns of words, which break where there is no room, then of figures, which never do."""
    table = Table(
        title=Text(title), caption=caption, caption_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for column in words:
        table.add_column(column)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table
