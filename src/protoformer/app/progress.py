"""The one progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from protoformer.model.flow_decoder import Progress as Told


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Told]:
    """A bar on standard error that goes when it is done; yields what to call with (done, total).

    Where standard error is no terminal there is no bar, and nothing is printed.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)
