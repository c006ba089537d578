"""A window that shows frames as they come, where there is a screen and an OpenCV that can draw on it."""

import os
import sys
from types import TracebackType
from typing import Self

import cv2

from protoformer.errors import InputError
from protoformer.show import Pixels

_ESCAPE = 27


class LiveWindow:
    """Use it in a `with`; q, Esc or its own button close it, and `open` says whether that was done."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.open = False
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise InputError("there is no screen to open a window on; leave out --window.")

    def __enter__(self) -> Self:
        try:
            cv2.namedWindow(self.title, cv2.WINDOW_NORMAL)
        except cv2.error:
            raise InputError(
                "the OpenCV that is installed opens no windows; leave out --window, or pip install "
                "opencv-contrib-python in its place."
            ) from None
        self.open = True
        return self

    def show(self, frame: Pixels) -> None:
        """Show a frame, uint8 H x W x 3 RGB, unless the window was closed."""
        if not self.open:
            return
        cv2.imshow(self.title, frame[..., ::-1])
        pressed = cv2.waitKey(1) & 0xFF
        if pressed in (ord("q"), _ESCAPE) or cv2.getWindowProperty(self.title, cv2.WND_PROP_VISIBLE) < 1:
            self._close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.open:
            self._close()

    def _close(self) -> None:
        self.open = False
        cv2.destroyWindow(self.title)
