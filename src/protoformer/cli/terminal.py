"""Progress bars, interruption by Ctrl-C, and output of summaries and tables."""

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import typer
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
from rich.table import Table
from rich.text import Text

from protoformer.io.files import json_value, write_atomically
from protoformer.models.runtime import ProgressCallback
from protoformer.viz.report import format_count


def make_console() -> Console:
    """Return a console on standard error that prints text as it is."""
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)


LOG_INTERVAL = 60.0
"""Seconds between the lines that are printed instead of a bar without a terminal."""


class _LineLog:
    """Prints the progress as a line on standard error every `LOG_INTERVAL` seconds, if there is no terminal."""

    def __init__(self, label: str, unit: str = "") -> None:
        self._console = make_console()
        self._label, self._unit = label, unit
        self._start = self._latest = time.monotonic()

    def update(self, done: int | None, total: int | None) -> None:
        """Print a line if it is time."""
        now = time.monotonic()
        if self._console.is_terminal or not done or now - self._latest < LOG_INTERVAL:
            return
        self._latest, rate = now, done / (now - self._start)
        count = f"{done} of {total}" if total and total > done else str(done)
        text = f"{self._label}: {count}"
        if self._unit:
            text += f" {self._unit}{'' if count == '1' else 's'}, {rate:.2f} {self._unit}s/s"
        if total and total > done:
            text += f", {math.ceil((total - done) / rate / 60)} min left"
        self._console.print(text)


def _make_bar(*columns: ProgressColumn, console: Console | None = None, **options: Any) -> Progress:
    """Create a progress bar on standard error, which disappears at the end, if there is a terminal."""
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *columns)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal, **options)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[ProgressCallback]:
    """Show a progress bar, or without a terminal a line every minute.

    Yields:
        The callback that updates the bar.
    """
    log = _LineLog(label)
    with _make_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task(label, total=total)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            log.update(done, total)

        yield update


class RateColumn(ProgressColumn):
    """Frames per second."""

    def render(self, task: Task) -> Text:
        """Format the recent rate."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.2f} frames/s")


class FrameProgress(Protocol):
    """Callback that updates a bar of frames."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show the number of frames done and, if given, a better estimate of the total."""


@contextmanager
def frames_bar(label: str, total: int | None = None) -> Iterator[FrameProgress]:
    """Show a progress bar with the number of frames, frames per second and the time left; see `progress_bar`.

    Args:
        label: Text of the bar.
        total: Estimated number of frames.

    Yields:
        The callback that updates the bar.
    """
    columns = (MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
    log, estimate = _LineLog(label, "frame"), total
    with _make_bar(*columns, speed_estimate_period=60) as bar:
        task = bar.add_task(label, total=total)

        def update(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total)
            log.update(done, estimate if total is None else total)

        yield update


class VideosProgress(Protocol):
    """Callback that updates a bar of videos."""

    def __call__(self, line: str, done: int | None = None, total: int | None = None) -> None:
        """Print a line, unless it is empty, and show the number of processed videos."""


@contextmanager
def videos_bar(label: str) -> Iterator[VideosProgress]:
    """Show a progress bar of videos, with permanent lines above it, which are printed without a terminal as well.

    Yields:
        The callback that prints a line and updates the bar.
    """
    console, log = make_console(), _LineLog(f"{label}, videos")
    with _make_bar(MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(f"{label}, videos", total=None)

        def update(line: str, done: int | None = None, total: int | None = None) -> None:
            if line:
                console.print(line, style="yellow")
            bar.update(task, completed=done, total=total)
            log.update(done, total)

        yield update


INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@contextmanager
def interruptible(
    report: Callable[[KeyboardInterrupt], object], end: Callable[[], object] | None = None
) -> Iterator[None]:
    """Turn Ctrl-C and a request to terminate (SIGTERM) into a KeyboardInterrupt and then into an exit code.

    After a request, a further SIGTERM is ignored, and a further Ctrl-C interrupts the cleanup.

    Args:
        report: Called after the cleanup, with the exception; the exit code is 130 or 143.
        end: Called at the first request instead, for what ends in good order by itself.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if end is not None and len(received) == 1:
            end()
            return
        if len(received) == (1 if end is None else 2) or number == signal.SIGINT:
            raise KeyboardInterrupt

    handled = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # the parent process has disabled Ctrl-C
        handled.remove(signal.SIGINT)
    previous = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    except KeyboardInterrupt as error:
        report(error)
        raise typer.Exit(128 + received[0] if received else INTERRUPTED) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a dataclass, a dict or a list as JSON; see `json_value`."""
    print(json.dumps(json_value(value), indent=indent))


MIN_WIDTH = 100
"""Minimum width of a table in characters."""


def write_scores(folder: Path, table: str, text: str, result: Any) -> list[Path]:
    """Write a csv file named `table`, and all results as scores.json; return both paths."""
    rows, scores = folder / table, folder / "scores.json"
    write_atomically(rows, text.encode())
    write_atomically(scores, json.dumps(json_value(result), indent=1).encode())
    return [rows, scores]


def print_scores(*tables: Table) -> None:
    """Print tables below each other."""
    console = Console(width=max(MIN_WIDTH, Console().width))
    for index, table in enumerate(tables):
        if index:
            console.print()
        console.print(table)


def print_written(files: list[Path], worst_images: list[Path] | None = None) -> None:
    """Print which files were written, if any; `worst_images` are those of the worst samples."""
    names = [str(path) for path in files]
    if worst_images:
        count = format_count(len(worst_images), "image")
        names.append(f"{count} of the worst samples, {worst_images[0].parent / 'worst-*.png'}")
    if names:
        print(f"wrote {', '.join(names)}")
