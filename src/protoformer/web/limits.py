"""Limits of the web page: upload sizes, upload quota per client, image and clip sizes, computation time."""

import asyncio
import re
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.io.files import check_input
from protoformer.io.image import image_size
from protoformer.web.access import client_network
from protoformer.web.results import KEEP_SECONDS, cancellation_check, folder_bytes

_VIDEO_SIGNATURES = (
    *((4, mark) for mark in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # mp4, mov
    *((0, b"\x1aE\xdf\xa3"), (0, b"RIFF"), (0, b"GIF8"), (0, b"FLV"), (0, b"OggS")),  # mkv and webm, avi, gif, flv, ogv
    *((0, b"\x00\x00\x01\xba"), (0, b"\x00\x00\x01\xb3"), (0, b"G"), (4, b"G")),  # mpg, ts, m2ts
    (0, b"\x30\x26\xb2\x75"),  # wmv
)
"""Offset and first bytes of the accepted video formats. Playlists, which could name other files, begin with text."""


@dataclass(frozen=True)
class Limits:
    """Limits on one upload or computation.

    Attributes:
        max_megabytes: Size of a file.
        max_pixels: Pixels of an image or frame.
        max_frames: Frames of a clip, or of the part that is selected; None: no limit.
        max_seconds: Duration of a computation; None: no limit.
        max_jobs: Simultaneous computations; others wait in a queue.
    """

    max_megabytes: float
    max_pixels: int
    max_frames: int | None
    max_seconds: float | None
    max_jobs: int

    @property
    def file_bytes(self) -> int:
        """Maximum size of a file, bytes."""
        return int(1e6 * self.max_megabytes)

    @property
    def client_bytes(self) -> int:
        """Maximum total size of the uploads of one client within `KEEP_SECONDS`, bytes."""
        return 10 * self.file_bytes

    @property
    def client_files(self) -> int:
        """Maximum number of uploads of one client within `KEEP_SECONDS`."""
        return 200

    @property
    def total_bytes(self) -> int:
        """Maximum total size of all uploads and results, bytes."""
        return 2 * 10**9 + 20 * self.file_bytes

    def check_file(self, path: Path) -> None:
        """Refuse a file that is too large."""
        size = check_input(path).stat().st_size / 1e6
        if size > self.max_megabytes:
            raise InputError(f"{path} has {size:.1f} MB and the limit is {self.max_megabytes:g} MB; make it smaller.")

    def check_image(self, path: Path) -> None:
        """Refuse an image that is too large, before any pixel is decoded."""
        self.check_file(path)
        self.check_pixels(path, *image_size(path))

    def check_clip_file(self, path: Path) -> None:
        """Refuse a file that is too large or has no accepted video format."""
        self.check_file(path)
        with path.open("rb") as file:
            head = file.read(8)
        if not any(head.startswith(mark, offset) for offset, mark in _VIDEO_SIGNATURES):
            raise InputError(f"{path} is not a video of a known kind; give an mp4, mov, mkv, webm, avi or gif file.")

    def check_frames(self, count: int, path: Path) -> None:
        """Refuse a clip with too many frames."""
        if self.max_frames is not None and count > self.max_frames:
            raise InputError(
                f"{path} has more than {self.max_frames} frames, the limit of this page; select a shorter part."
            )

    def check_pixels(self, path: Path, height: int, width: int) -> None:
        """Refuse an image or a frame with too many pixels."""
        if height * width > self.max_pixels:
            raise InputError(
                f"{path} is {width}x{height}, {height * width} pixels, and the limit is {self.max_pixels}; "
                "scale it down."
            )

    @property
    def keep_seconds(self) -> int:
        """Time after which unused uploads and results are deleted; longer where a computation may take hours."""
        return 24 * 3600 if self.max_seconds is None else KEEP_SECONDS

    def override(
        self,
        max_megabytes: float | None,
        max_pixels: int | None,
        max_frames: int | None,
        max_seconds: float | None,
        max_jobs: int | None,
    ) -> "Limits":
        """Return these limits with those that are not None replaced."""
        given = (max_megabytes, max_pixels, max_frames, max_seconds, max_jobs)
        names = [each.name for each in fields(self)]
        changes: dict[str, Any] = {key: value for key, value in zip(names, given, strict=True) if value is not None}
        return replace(self, **changes)

    def describe(self) -> str:
        """Return the limits as a phrase."""
        limits = [f"{self.max_megabytes:g} MB per file", f"{self.max_pixels / 1e6:.2g} megapixels"]
        if self.max_frames is not None:
            limits.append(f"{self.max_frames} frames per clip")
        if self.max_seconds is not None:
            limits.append(f"{self.max_seconds:g} s per computation")
        return ", ".join(limits)


LOCAL_LIMITS = Limits(max_megabytes=2000, max_pixels=2**24, max_frames=None, max_seconds=None, max_jobs=1)
"""Default limits of a page that only this machine reaches: clips of any length, up to 4K."""
PUBLIC_LIMITS = Limits(max_megabytes=200, max_pixels=2**21, max_frames=120, max_seconds=120, max_jobs=1)
"""Default limits of a page that other machines reach."""


class Deadline:
    """End of a computation that starts now. `check` must be called between its steps.

    Args:
        seconds: Longest duration; None: no limit.
        is_canceled: Tells whether the computation must end at once; None: whether the client of the current thread's
            computation canceled it or disconnected.
    """

    def __init__(self, seconds: float | None, is_canceled: Callable[[], bool] | None = None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds
        self._is_canceled = is_canceled or cancellation_check()

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0 or more; None without a deadline."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Stop a computation that takes too long, was canceled, or whose client disconnected.

        Raises:
            InputError: If the computation must stop.
        """
        if self._is_canceled():
            raise InputError("the computation was canceled; start it again.")
        if self._end is not None and time.monotonic() > self._end:
            raise InputError(
                f"the computation was stopped after {self._seconds:g} seconds, the limit of this page; "
                "give smaller images or a shorter clip."
            )


_UPLOAD_PATH = re.compile(r"/upload/?$")
FORM_BYTES = 2**16
"""Maximum size of an upload request besides its file, bytes."""
_MAX_PARTS = 4
"""Maximum number of parts of a form; the page sends one file per request."""
_BOUNDARY = re.compile(rb'(?:^|;)\s*boundary="?([^";,\s]+)', re.IGNORECASE)


class UploadQuota:
    """Counts the bytes and files that each client uploads within a period.

    A client is an IP address (of IPv6, a /64 network), because a client can choose its session freely. Clients behind a
    proxy that does not forward their addresses share one quota.

    Args:
        limits: Limits per client and in total.
        folder: Folder of all uploads and results.
        keep_seconds: Period after which an upload no longer counts.
        clock: Returns seconds since any fixed time.
    """

    def __init__(
        self, limits: Limits, folder: Path, keep_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._folder, self._keep_seconds, self._clock = limits, folder, keep_seconds, clock
        self._uploads: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._in_flight = 0
        self._lock = threading.Lock()

    def refusal(self, address: str, length: int) -> str:
        """Count an upload, or return why it is refused.

        Args:
            address: Address of the client.
            length: Size of the request, bytes.

        Returns:
            An error message, or "" if the upload is accepted; `finish` must follow.
        """
        limits = self._limits
        if length > limits.file_bytes + FORM_BYTES:
            return f"The file is too large: the limit is {limits.max_megabytes:g} MB; make it smaller."
        client, now = client_network(address), self._clock()
        with self._lock:
            if folder_bytes(self._folder) + self._in_flight + length > limits.total_bytes:
                return "The storage of this page is full; try again in half an hour."
            self._drop_old_uploads(now)
            uploads = self._uploads[client]
            if len(uploads) >= limits.client_files:
                return f"The limit is {limits.client_files} uploads per client; try again in half an hour."
            if sum(size for _, size in uploads) + length > limits.client_bytes:
                return (
                    f"The limit is {limits.client_bytes / 1e6:g} MB of uploads per client; try again in half an hour."
                )
            uploads.append((now, length))
            self._in_flight += length
        return ""

    def finish(self, length: int) -> None:
        """End an accepted upload, whose file is now in the folder, or which failed."""
        with self._lock:
            self._in_flight -= length

    def _drop_old_uploads(self, now: float) -> None:
        for client in list(self._uploads):
            recent = [(start, size) for start, size in self._uploads[client] if now - start < self._keep_seconds]
            if recent:
                self._uploads[client] = recent
            else:
                del self._uploads[client]


class UploadLimit:
    """ASGI middleware: refuses uploads over the quota (413), without a length (411) or with an ambiguous form (400)."""

    def __init__(self, app: Any, quota: UploadQuota) -> None:
        self.app, self.quota = app, quota

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] != "http" or scope["method"] != "POST" or not _UPLOAD_PATH.search(scope["path"]):
            await self.app(scope, receive, send)
            return
        length, boundary = _content_length(scope["headers"]), _form_boundary(scope["headers"])
        if length is None:
            await send_text(send, 411, "An upload needs a Content-Length header.")
            return
        if boundary is None:
            await send_text(send, 400, "An upload must be a form with exactly one boundary.")
            return
        client = scope.get("client")
        refusal = await asyncio.to_thread(self.quota.refusal, client[0] if client else "", length)
        if refusal:
            await send_text(send, 413, refusal)
            return
        try:
            await self.app(scope, _count_parts(boundary, receive), send)
        except _TooManyPartsError:  # raised while the request is read, so that no response has begun
            await send_text(send, 413, "Too many files at once; upload one at a time.")
        finally:
            self.quota.finish(length)


class _TooManyPartsError(Exception):
    """A form has too many parts."""


def upload_limit(limits: Limits, folder: Path, keep_seconds: float) -> Any:
    """Return the middleware for gradio's application; arguments as in `UploadQuota`."""
    quota = UploadQuota(limits, folder, keep_seconds)
    return import_module("starlette.middleware").Middleware(UploadLimit, quota=quota)  # starlette comes with gradio


def _content_length(headers: Any) -> int | None:
    """Return the declared length of a request, if any."""
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return None


def _form_boundary(headers: Any) -> bytes | None:
    """Return the boundary of a form; None unless exactly one is declared."""
    values = [value for name, value in headers if name.lower() == b"content-type"]
    boundaries = [boundary for value in values for boundary in _BOUNDARY.findall(value)]
    return b"--" + boundaries[0] if len(values) == len(boundaries) == 1 else None


def _count_parts(boundary: bytes, receive: Any) -> Any:
    """Wrap a receiver so that it fails if the form has too many parts."""
    num_boundaries, tail = 0, b""

    async def counting_receive() -> Any:
        nonlocal num_boundaries, tail
        message = await receive()
        if message["type"] == "http.request":
            body = tail + message.get("body", b"")  # a boundary may be split between two messages
            num_boundaries += body.count(boundary)
            tail = body[-len(boundary) + 1 :]
            if num_boundaries > _MAX_PARTS + 1:  # the last boundary ends the form
                raise _TooManyPartsError
        return message

    return counting_receive


async def send_text(send: Callable[[Any], Awaitable[None]], status: int, text: str, **headers: str) -> None:
    """Answer a request with plain text."""
    body = text.encode()
    named = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **headers}
    if status in (400, 411, 413):
        named["connection"] = "close"  # the rest of the request is not read: it may be endless
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
