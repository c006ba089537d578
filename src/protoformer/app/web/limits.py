"""What the page lets one person ask for, and the sentence that says so when it is too much."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protoformer.app.web.clients import abandonment
from protoformer.errors import InputError
from protoformer.files import Movie, checked_input, image_size

_HEADS = (
    *((4, mark) for mark in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # mp4, mov
    *((0, b"\x1aE\xdf\xa3"), (0, b"RIFF"), (0, b"GIF8"), (0, b"FLV"), (0, b"OggS")),  # mkv and webm, avi, gif, flv, ogv
    *((0, b"\x00\x00\x01\xba"), (0, b"\x00\x00\x01\xb3"), (0, b"G"), (4, b"G")),  # mpg, ts, m2ts
    (0, b"\x30\x26\xb2\x75"),  # wmv
)
"""What a video begins with, and where. A playlist, which could name other files of this machine, begins with text."""

Told = Callable[[float, str], None]
"""Called with the share that is done, 0 to 1, and what is being done."""


@dataclass(frozen=True)
class Limits:
    """Of one upload or computation: megabytes of a file, pixels of an image, frames of a clip, seconds of computing.

    jobs: computations at a time; the others wait in a queue.
    """

    megabytes: float
    pixels: int
    frames: int
    seconds: float
    jobs: int

    @property
    def file_bytes(self) -> int:
        """Bytes of one file."""
        return int(1e6 * self.megabytes)

    @property
    def client_bytes(self) -> int:
        """Bytes that one client may upload in the time that uploads are kept."""
        return 10 * self.file_bytes

    @property
    def client_files(self) -> int:
        """Uploads that one client may make in the time that they are kept."""
        return 200

    @property
    def total_bytes(self) -> int:
        """Bytes of all uploads and results of the page together."""
        return 2 * 10**9 + 20 * self.file_bytes

    def check_file(self, path: Path) -> None:
        """Refuse a file that is too long."""
        size = checked_input(path).stat().st_size / 1e6
        if size > self.megabytes:
            raise InputError(f"{path} has {size:.1f} MB and the limit is {self.megabytes:g} MB; make it smaller.")

    def check_image(self, path: Path) -> None:
        """Refuse an image that is too large, before any of its pixels is decoded."""
        self.check_file(path)
        self.check_pixels(path, *image_size(path))

    def check_clip_file(self, path: Path) -> None:
        """Refuse a file that is too long, or that is no video in itself."""
        self.check_file(path)
        with path.open("rb") as file:
            head = file.read(8)
        if not any(head[place : place + len(mark)] == mark for place, mark in _HEADS):
            raise InputError(f"{path} is not a video of a known kind; give an mp4, mov, mkv, webm, avi or gif file.")

    def check_clip(self, movie: Movie, path: Path) -> None:
        """Refuse a clip whose frames are too large, or too many by what its head says."""
        self.check_pixels(path, *movie.info.size)
        if movie.info.frames is not None:
            self.check_frames(movie.info.frames, path)

    def check_frames(self, count: int, path: Path) -> None:
        """Refuse a clip of too many frames."""
        if count > self.frames:
            raise InputError(f"{path} has more than {self.frames} frames, the limit of this page; cut it shorter.")

    def check_pixels(self, path: Path, height: int, width: int) -> None:
        """Refuse an image, or frames, of too many pixels."""
        if height * width > self.pixels:
            raise InputError(
                f"{path} is {width}x{height}, {height * width} pixels, and the limit is {self.pixels}; scale it down."
            )

    def describe(self) -> str:
        """All of them in a sentence."""
        return (
            f"A file may have {self.megabytes:g} MB, an image {self.pixels / 1e6:.2g} million pixels, a clip "
            f"{self.frames} frames, and a computation may take {self.seconds:g} seconds."
        )


class Deadline:
    """The end of a computation, counted from now; `check` it between two steps, as often as there are any."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._is_abandoned = abandonment()

    @property
    def remaining(self) -> float:
        """Seconds until the end, 0 or more."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Stop what takes too long, and what was cancelled or lost its client.

        Raises:
            InputError: The time is over, or nobody waits for the result any more.
        """
        if self._is_abandoned():
            raise InputError("the computation was cancelled; start it again.")
        if time.monotonic() > self._end:
            raise InputError(
                f"the computation was stopped after {self._seconds:g} seconds, the limit of this page; "
                "give smaller images or a shorter clip."
            )
