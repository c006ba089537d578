"""Limits on uploads and computations of the web page."""

import asyncio
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.io.files import check_input
from protoformer.io.image import image_size
from protoformer.video.types import Video
from protoformer.web.access import client_network
from protoformer.web.results import abandonment, folder_bytes

_HEADS = (
    *((4, mark) for mark in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # mp4, mov
    *((0, b"\x1aE\xdf\xa3"), (0, b"RIFF"), (0, b"GIF8"), (0, b"FLV"), (0, b"OggS")),  # mkv and webm, avi, gif, flv, ogv
    *((0, b"\x00\x00\x01\xba"), (0, b"\x00\x00\x01\xb3"), (0, b"G"), (4, b"G")),  # mpg, ts, m2ts
    (0, b"\x30\x26\xb2\x75"),  # wmv
)
"""What a video begins with, and where. A playlist, which could name other files of this machine, begins with text."""

ProgressCallback = Callable[[float, str], None]
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
        size = check_input(path).stat().st_size / 1e6
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

    def check_clip(self, video: Video, path: Path) -> None:
        """Refuse a clip whose frames are too large, or too many by what its head says."""
        self.check_pixels(path, *video.info.size)
        if video.info.num_frames is not None:
            self.check_frames(video.info.num_frames, path)

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


_UPLOAD = re.compile(r"/upload/?$")
"""The path of the request that uploads files."""
_FORM_BYTES = 2**16
"""Bytes of a request beside the file in it."""
_PARTS = 4
"""Parts that a request may have; the page sends one file at a time."""
_BOUNDARY = re.compile(rb'(?:^|;)\s*boundary="?([^";,\s]+)', re.IGNORECASE)


class UploadQuota:
    """Counts the bytes and files of every client over a time.

    A client is an address: a session is whatever a client says it is. Of an address of version 6 its network of 64 bits
    counts, which is what one customer has. Clients behind one proxy that does not tell them apart share a quota.
    """

    def __init__(
        self, limits: Limits, folder: Path, keep_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is counted yet.

        Args:
            limits: Of one client and of all.
            folder: What all clients fill together.
            keep_seconds: After which an upload does not count any more.
            clock: Seconds since any time.
        """
        self._limits, self._folder, self._keep_seconds, self._clock = limits, folder, keep_seconds, clock
        self._uploads: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._in_flight = 0
        self._lock = threading.Lock()

    def refusal(self, address: str, length: int) -> str:
        """Count an upload of a client, or say in a sentence why it cannot be taken.

        Args:
            address: Of the client.
            length: Bytes of the upload.

        Returns:
            The sentence, or "" where the upload is taken.
        """
        if length > self._limits.file_bytes + _FORM_BYTES:
            return f"The file is too large: the limit is {self._limits.megabytes:g} MB; make it smaller."
        client, now = client_network(address), self._clock()
        with self._lock:
            if folder_bytes(self._folder) + self._in_flight + length > self._limits.total_bytes:
                return "This page holds as many files as it may; try again in half an hour."
            self._forget(now)
            taken = self._uploads[client]
            if len(taken) >= self._limits.client_files:
                return f"You uploaded {len(taken)} files, the limit of this page; try again in half an hour."
            if sum(size for _, size in taken) + length > self._limits.client_bytes:
                return (
                    f"You uploaded as much as this page takes from one client, {self._limits.client_bytes / 1e6:g} MB; "
                    "try again in half an hour."
                )
            taken.append((now, length))
            self._in_flight += length
        return ""

    def finish(self, length: int) -> None:
        """End an upload that was counted: from now on its file is in the folder, or it failed."""
        with self._lock:
            self._in_flight -= length

    def _forget(self, now: float) -> None:
        for client in list(self._uploads):
            recent = [(at, size) for at, size in self._uploads[client] if now - at < self._keep_seconds]
            if recent:
                self._uploads[client] = recent
            else:
                del self._uploads[client]


class UploadLimit:
    """ASGI middleware: 413 and a sentence for uploads over a quota, 411 for those that do not say how long they are."""

    def __init__(self, app: Any, quota: UploadQuota) -> None:
        self.app, self.quota = app, quota

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http" or scope["method"] != "POST" or not _UPLOAD.search(scope["path"]):
            await self.app(scope, receive, send)
            return
        length = _length(scope["headers"])
        if length is None:
            await _answer(411, "An upload has to say how long it is; send a Content-Length.", send)
            return
        mark = _boundary(scope["headers"])
        if mark is None:
            await _answer(400, "An upload has to be a form with one boundary.", send)
            return
        client = scope.get("client")
        refusal = await asyncio.to_thread(self.quota.refusal, client[0] if client else "", length)
        if refusal:
            await _answer(413, refusal, send)
            return
        try:
            await self.app(scope, _counting(mark, receive), send)
        except _TooManyPartsError:  # while the request is read, so that no answer has begun
            await _answer(413, "Too many files at once; upload one at a time.", send)
        finally:
            self.quota.finish(length)


class _TooManyPartsError(Exception):
    """A request holds more files than it may."""


def _boundary(headers: Any) -> bytes | None:
    """Return what separates the parts of a form; None unless exactly one is declared."""
    values = [value for name, value in headers if name.lower() == b"content-type"]
    marks = [mark for value in values for mark in _BOUNDARY.findall(value)]
    return b"--" + marks[0] if len(values) == len(marks) == 1 else None


def _counting(mark: bytes, receive: Any) -> Any:
    """Wrap a receiver so that it fails if the request has too many parts."""
    parts, tail = 0, b""

    async def received() -> Any:
        nonlocal parts, tail
        message = await receive()
        if message["type"] == "http.request":
            # A mark may be cut in two where one message ends.
            body = tail + message.get("body", b"")
            parts += body.count(mark)
            tail = body[-len(mark) + 1 :]
            if parts > _PARTS + 1:  # one more ends the request
                raise _TooManyPartsError
        return message

    return received


def upload_limit(limits: Limits, folder: Path, keep_seconds: float) -> Any:
    """The middleware for gradio's app; arguments as in `UploadQuota`."""
    quota = UploadQuota(limits, folder, keep_seconds)
    return import_module("starlette.middleware").Middleware(UploadLimit, quota=quota)  # starlette comes with gradio


def _length(headers: Any) -> int | None:
    """The length that a request declares; None where it declares none."""
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return None


async def _answer(code: int, text: str, send: Any) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    # What is still being sent is not read: it may be endless.
    await send({"type": "http.response.start", "status": code, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
