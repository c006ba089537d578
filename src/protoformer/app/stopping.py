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
