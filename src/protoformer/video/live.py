"""Live sources: cameras, network streams and pipes, of which a thread keeps only the newest frames.

A program that is slower than the source skips frames and does not lag behind: it always gets one of the last
`BUFFERED_FRAMES` frames. A source that declares its length, such as a file that is piped, is read completely.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import cv2

from protoformer.errors import InputError
from protoformer.io.files import check_pixel_count, path_exists, pixel_limit, system_reason
from protoformer.video.color_conversion import FrameConverter, read_geometry
from protoformer.video.decoding import (
    CODED_BORDER,
    PacketDecoder,
    allowed_formats,
    declared_duration,
    stream_time_base,
    video_stream,
)
from protoformer.video.types import DEFAULT_FPS, ImageArray, Video, VideoFrame, VideoInfo, exact_fps, require_av

if TYPE_CHECKING:
    from av.container import InputContainer

LiveSource = str | int | cv2.VideoCapture
"""An address, "-" for standard input, the number of a camera as an integer or text, or an OpenCV capture."""

TIMEOUT = 10.0
"""Seconds to wait for a frame before a source is given up."""
BUFFERED_FRAMES = 3
"""Frames that are kept for the program; a source that delivers in bursts of as many loses none."""
PROTOCOLS = {
    "rtsp": "rtsp,rtp,udp,tcp",
    "http": "http,https,tls,tcp",
    "https": "http,https,tls,tcp",
    "udp": "udp",
    "tcp": "tcp",
}
"""Protocols that ffmpeg may use, by the scheme of an address; it may neither open files nor follow playlists."""
_PIPES = ("-", "pipe:", "pipe:0")
_STREAM_OPTIONS = {
    **{"probesize": "1000000", "analyzeduration": "1000000"},
    **{"rtsp_flags": "prefer_tcp", "overrun_nonfatal": "1", "buffer_size": str(2**22)},
}
"""Options of ffmpeg: how much it may read before it delivers, in bytes and microseconds, and against lost packets."""
_POLL = 0.1
"""Seconds after which a waiting thread checks for a request to stop."""
_FPS_RANGE = (1, 240)
"""Plausible frames per second; a stream that declares others has `DEFAULT_FPS`."""


def is_live_source(source: object) -> TypeGuard[LiveSource]:
    """Return whether a source of `open_video` is a camera, an address or a pipe; existing files are none."""
    if isinstance(source, cv2.VideoCapture):
        return True
    if isinstance(source, int):
        return not isinstance(source, bool)
    if not isinstance(source, str) or path_exists(source):
        return False
    return source in _PIPES or _is_number(source) or _scheme(source) in PROTOCOLS


def _is_number(source: str) -> bool:
    return re.fullmatch(r"[0-9]{1,3}", source) is not None


def _scheme(address: str) -> str:
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator else ""


class _Received(NamedTuple):
    """A frame that has arrived: its number, its time in seconds, and the frame as the source delivers it."""

    number: int
    time: Fraction
    raw: Any


class LiveVideo(Video):
    """A camera, a network stream or a pipe, which can be read once; the first frame that is read is at time 0.

    Attributes:
        dropped: Number of frames that were skipped since the first one that was read.
        drop: Whether frames are skipped if they are not read fast enough.
        timed_out: Whether the source ended because it sent no frame for `timeout` seconds.
        timeout: Seconds to wait for a frame.
    """

    live = True

    def __init__(
        self,
        source: LiveSource,
        max_pixels: int | None = None,
        drop: bool | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Connect to the source and wait for its first frame.

        Args:
            source: See `LiveSource`.
            max_pixels: Maximum number of pixels of a frame; None: `MAX_PIXELS`.
            drop: Whether to skip frames if they are not read fast enough; None: unless the source declares its length.
            timeout: Seconds to wait for a frame.

        Raises:
            InputError: The source cannot be opened, or sends no frame in time.
        """
        if not 0 < timeout < float("inf"):
            raise InputError(f"a timeout of {timeout:g} seconds is not possible; give a number over 0.")
        self.max_pixels, self.timeout = max_pixels, timeout
        self.drop = drop is not False
        self.dropped, self.timed_out = 0, False
        self._label = _describe(source)
        self._requested_drop, self._source = drop, source
        self._converter: FrameConverter | None = None
        self._frames: deque[_Received] = deque()
        self._condition = Condition()
        self._ended = self._stopped = self._taken = False
        self._error: Exception | None = None
        self._info: VideoInfo | None = None
        Thread(target=self._receive, name="live source", daemon=True).start()
        first = self._wait()
        if first is None or self._info is None:
            self.stop()
            if self._error is not None:
                raise self._error
            reason = "sent no frame" if self._ended else f"sent no frame within {timeout:g} seconds"
            raise InputError(f"{self._label} {reason}; check that it is on, and its address.")
        super().__init__(self._info)

    def stop(self) -> None:
        """End the reading after the current frame, as if the source ended; a signal handler may call it."""
        self._stopped = True

    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        if self._taken:
            raise InputError(f"{self._label} can be read only once; open it again.")
        self._taken = True
        return self._take(start, end, frame_step)

    def _take(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        first: _Received | None = None
        latest, count = 0, 0
        try:
            while self._wait() is not None:
                with self._condition:
                    received = self._frames.popleft()
                    self._condition.notify_all()
                first = first or received
                number, seconds = received.number - first.number, received.time - first.time
                self.dropped += max(0, number - latest - 1)
                latest = number
                if float(seconds) >= end:
                    return
                if float(seconds) >= start:
                    if count % frame_step == 0:
                        yield VideoFrame(self._convert(received.raw), number, seconds)
                    count += 1
            self.truncated = self._error is not None
        finally:
            self.stop()

    def _wait(self) -> _Received | None:
        """Wait for a frame and return it without removing it; None at the end of the source."""
        deadline = time.monotonic() + self.timeout
        with self._condition:
            while not self._frames:
                if self._ended or self._stopped:
                    return None
                if time.monotonic() > deadline:
                    self.timed_out = True
                    return None
                self._condition.wait(_POLL)
            return None if self._stopped else self._frames[0]

    def _receive(self) -> None:
        """Receive frames until the end; runs in a thread."""
        try:
            if isinstance(self._source, str) and not _is_number(self._source):
                frames = self._stream_frames(self._source)
            else:
                frames = self._camera_frames(self._source)
            for number, (seconds, raw) in enumerate(frames):
                if not self._put(_Received(number, seconds, raw)):
                    return
        except Exception as error:
            self._error = error
        finally:
            with self._condition:
                self._ended = True
                self._condition.notify_all()

    def _put(self, received: _Received) -> bool:
        """Add a frame to the newest ones; False if nobody reads any more."""
        with self._condition:
            while not self.drop and len(self._frames) >= BUFFERED_FRAMES and not self._stopped:
                self._condition.wait(_POLL)
            if len(self._frames) >= BUFFERED_FRAMES:
                self._frames.popleft()
            self._frames.append(received)
            self._condition.notify_all()
        return not self._stopped

    def _set_info(self, **fields: Any) -> None:
        """Set the properties of the source that its first frame determines."""
        finite = fields["duration"] is not None
        self.drop = not finite if self._requested_drop is None else self._requested_drop
        check_pixel_count(fields["size"][1], fields["size"][0], self._label, self.max_pixels)
        self._info = VideoInfo(paths=(), start=Fraction(0), has_audio=False, label=self._label, **fields)

    def _convert(self, raw: Any) -> ImageArray:
        """Convert a frame of the source to RGB."""
        if self._converter is None:
            code = cv2.COLOR_GRAY2RGB if raw.ndim == 2 else cv2.COLOR_BGR2RGB
            image: ImageArray = cv2.cvtColor(raw, code)
            size = image.shape[:2]
        else:
            size = (raw.height, raw.width)
        expected = self.info.size if self._converter is None else self._converter.geometry.stored
        if size != expected:
            raise InputError(
                f"{self._label} changes from {expected[1]}x{expected[0]} to {size[1]}x{size[0]} pixels; open it again."
            )
        return image if self._converter is None else self._converter.convert(raw)

    def _stream_frames(self, address: str) -> Iterator[tuple[Fraction, Any]]:
        """Yield the time, seconds, and the decoded frame of everything that a stream or a pipe sends."""
        with _open_stream(address, self._label, self.max_pixels, self.timeout) as container:
            stream = video_stream(container, self._label)
            stream.thread_type = "SLICE"  # frame threads would hold back a frame each
            time_base, latest = stream_time_base(stream), None
            for frame in PacketDecoder(container, stream, self._label).frames():
                if self._converter is None:
                    geometry = read_geometry(
                        frame, stream.sample_aspect_ratio, None, stream.codec_context.codec.canonical_name
                    )
                    self._converter = FrameConverter(geometry)
                    rate = stream.average_rate or stream.guessed_rate or DEFAULT_FPS
                    fps = rate if _FPS_RANGE[0] <= rate <= _FPS_RANGE[1] else DEFAULT_FPS
                    self._set_info(
                        size=geometry.size,
                        fps=fps,
                        time_base=time_base,
                        num_frames=stream.frames or None,
                        duration=declared_duration(container, stream),
                        codec=stream.codec_context.codec.canonical_name,
                    )
                    step = max(1, round(1 / fps / time_base)) * time_base
                seconds = None if frame.pts is None else frame.pts * time_base
                if latest is not None and (seconds is None or seconds <= latest):
                    seconds = latest + step
                latest = Fraction(0) if seconds is None else seconds
                yield latest, frame

    def _camera_frames(self, source: LiveSource) -> Iterator[tuple[Fraction, Any]]:
        """Yield the time, seconds, and the BGR image of every frame of a camera or an OpenCV capture."""
        capture = source if isinstance(source, cv2.VideoCapture) else _open_camera(int(source))
        try:
            declared, count = capture.get(cv2.CAP_PROP_FRAME_COUNT), 0
            rate = capture.get(cv2.CAP_PROP_FPS)
            fps = exact_fps(rate, self._label) if _FPS_RANGE[0] <= rate <= _FPS_RANGE[1] else DEFAULT_FPS
            finite = 0 < declared < 2**31
            while not self._stopped:
                success, image = capture.read()
                if not success:
                    return
                if self._info is None:
                    self._set_info(
                        size=image.shape[:2],
                        fps=fps,
                        time_base=1 / fps if finite else Fraction(1, 1_000_000),
                        num_frames=int(declared) if finite else None,
                        duration=int(declared) / fps if finite else None,
                        codec="camera",
                    )
                yield (count / fps if finite else Fraction(time.monotonic_ns() // 1000, 1_000_000)), image
                count += 1
        finally:
            if capture is not source:
                capture.release()


def _describe(source: LiveSource) -> str:
    """Return the name of a source in messages, without the password of an address."""
    if isinstance(source, cv2.VideoCapture):
        return "the capture"
    if isinstance(source, int) or _is_number(source):
        return f"camera {int(source)}"
    return "standard input" if source in _PIPES else re.sub(r"//[^/]*@", "//", source)


def _open_camera(index: int) -> cv2.VideoCapture:
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the error below says the same in one line
    try:
        capture = cv2.VideoCapture(index)
    finally:
        cv2.utils.logging.setLogLevel(level)
    if not capture.isOpened():
        raise InputError(f"there is no camera {index}; connect it, or give the number of another one.")
    return capture


@contextmanager
def _open_stream(address: str, label: str, max_pixels: int | None, timeout: float) -> Iterator["InputContainer"]:
    """Open an address or standard input with ffmpeg, which may use nothing but the protocol of the address."""
    av, scheme = require_av(), _scheme(address)
    formats = allowed_formats() + (",rtsp" if scheme == "rtsp" else "")
    options = {"protocol_whitelist": PROTOCOLS.get(scheme, "pipe"), "format_whitelist": formats, **_STREAM_OPTIONS}
    try:
        container = av.open(
            address if scheme else "pipe:0",
            "r",
            container_options=options,
            options={"max_pixels": str(pixel_limit(max_pixels) + CODED_BORDER)},
            metadata_errors="replace",
            timeout=(timeout, timeout + 1),  # the program itself stops waiting after `timeout`
        )
    except (av.error.ExitError, TimeoutError):
        raise InputError(f"{label} did not answer within {timeout:g} seconds; check that it is on.") from None
    except (av.error.FFmpegError, ValueError) as error:
        raise InputError(
            f"{label} cannot be opened ({system_reason(error)}); check the address, and that it sends video."
        ) from None
    try:
        yield container
    finally:
        container.close()
