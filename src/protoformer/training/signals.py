"""A polite stop: the first request is remembered, so that the step can be finished and saved."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

REQUESTS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Within it, SIGTERM and Ctrl-C set `asked` to the name of the signal; a second Ctrl-C stops at once.

    Within another one, what is asked of it is asked of the other, too. Outside the main thread, where Python hands out
    no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.asked = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._take) for each in REQUESTS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
            around = getattr(handler, "__self__", None)
            if isinstance(around, StopRequest):
                around.asked = self.asked or around.asked

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
