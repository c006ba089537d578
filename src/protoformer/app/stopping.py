"""Commands that may be stopped on their way, and say what they leave."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""


@contextmanager
def stoppable(tell: Callable[[], None]) -> Iterator[None]:
    """Within it, Ctrl-C and a request to terminate (SIGTERM) end the command the same way: by a KeyboardInterrupt.

    When that has come out, and all that it passed is tidied up, `tell` says what is left; the exit code is 130 or 143.
    A second request to terminate changes nothing.
    """
    code = INTERRUPTED

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal code
        if code == INTERRUPTED:
            code = 128 + number
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        tell()
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)
