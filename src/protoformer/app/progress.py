"""The one progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

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


class RateColumn(ProgressColumn):
    """Frames a second."""

    def render(self, task: Task) -> Text:
        """As it was of late."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.2f} frames/s")


class FramesShown(Protocol):
    """What to call when frames are done."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show how many are done, and of how many if that is known better by now."""


@contextmanager
def frames_bar(what: str, total: int | None = None) -> Iterator[FramesShown]:
    """As `progress_bar`, with frames, frames a second and the time left; yields what to call with how many are done.

    total: how many there will be, as far as one can tell.
    """
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(RateColumn(), TimeRemainingColumn()),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=60
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


class VideosShown(Protocol):
    """What to call when something happens to a video."""

    def __call__(self, line: str, over: int | None = None, total: int | None = None) -> None:
        """Print a line, unless it is empty, and show how many of how many videos are over."""


@contextmanager
def videos_bar(what: str) -> Iterator[VideosShown]:
    """As `progress_bar`, over videos, with lines above it that stay; the lines are printed without a terminal too."""
    columns = (SpinnerColumn(), TextColumn(f"{what}, videos"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)
    clock = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *clock, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def shown(line: str, over: int | None = None, total: int | None = None) -> None:
            if line:
                console.print(line, style="yellow")
            bar.update(task, completed=over, total=total)

        yield shown
