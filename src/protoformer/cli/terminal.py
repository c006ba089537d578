"""The one progress bar."""

import dataclasses
import json
import math
import signal
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

from protoformer.io.files import write_atomically
from protoformer.models.runtime import ProgressCallback as Told
from protoformer.viz.text import format_count


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


INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""


@contextmanager
def stoppable(tell: Callable[[], None]) -> Iterator[None]:
    """Within it, Ctrl-C and a request to terminate (SIGTERM) end the command the same way: by a KeyboardInterrupt.

    When that has come out, and all that it passed is tidied up, `tell` says what is left; the exit code is 130 or 143.
    A request to terminate changes nothing once either has come; who presses Ctrl-C again will not wait for the tidying.
    """
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1 or number == signal.SIGINT:
            raise KeyboardInterrupt

    heard = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # whoever started the command wants it so
        heard.remove(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    except KeyboardInterrupt:
        tell()
        raise typer.Exit(128 + asked[0] if asked else INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def to_json(record: Any) -> dict[str, Any]:
    """A dataclass, or a dict, as json holds it: what was not measured is null."""
    result: dict[str, Any] = _plain(record if isinstance(record, dict) else dataclasses.asdict(record))
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


LEAST_WIDTH = 100
"""Characters that a line of a table may have where nobody says how wide the terminal is."""


def write_scores(folder: Path, table: str, text: str, found: Any) -> list[Path]:
    """Write a csv by the name `table`, and everything that was found as scores.json; the paths of both."""
    rows, scores = folder / table, folder / "scores.json"
    write_atomically(rows, text.encode())
    write_atomically(scores, json.dumps(to_json(found), indent=1).encode())
    return [rows, scores]


def print_scores(*tables: Table) -> None:
    """Print tables below each other."""
    console = Console(width=max(LEAST_WIDTH, Console().width))
    for place, table in enumerate(tables):
        if place:
            console.print()
        console.print(table)


def report_written(files: list[Path], pictures: list[Path] | None = None) -> None:
    """Say what was written, if anything was; pictures: of the worst samples."""
    named = [str(path) for path in files]
    if pictures:
        many = format_count(len(pictures), "picture")
        named.append(f"{many} of the worst, {pictures[0].parent / 'worst-*.png'}")
    if named:
        print(f"wrote {', '.join(named)}")
