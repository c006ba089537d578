"""Decoding of uploads in a separate process with limits on memory and time.

An upload may be crafted to crash a decoder, or to make it compute or allocate without end. Therefore the server never
decodes an upload itself: `decode_child` does, passes the pixels on in an anonymous file (images) or a pipe (clips), and
is killed at the deadline. A crash, excessive memory and excessive time each give the client one error message.
"""

import json
import os
import select
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.io.image import DecodedImage
from protoformer.video.types import ImageArray, Video, VideoFrame, VideoInfo
from protoformer.video.writer import VideoWriter
from protoformer.web.decode_child import END, HEADER_BYTES, MAX_REPORT_BYTES, STOP
from protoformer.web.limits import Deadline, Limits

DECODING_BYTES, DECODING_BYTES_PER_PIXEL = 3 * 2**28, 256
"""Memory of a decoding process: a fixed part, and a part for each pixel of `Limits.max_pixels`."""
WRITING_BYTES, WRITING_BYTES_PER_PIXEL = 2**31, 1024
"""Memory of a process that writes a clip; an encoder buffers dozens of frames."""
POLL_SECONDS = 0.05
"""Interval between two checks of the deadline."""
STALL_SECONDS = 120.0
"""Longest time that a decoder may take for a frame; without a time limit, nothing else ends one that hangs."""
TOUCH_SECONDS = 30.0
"""Interval at which an upload is marked as used."""
_CHUNK_BYTES = 2**16

Report = dict[str, Any]
"""JSON report of the child process; its numbers are checked where they are used."""


class DecodedClip(Video):
    """A clip whose frames a process decodes when they are read.

    Args:
        decoder: The process, which has opened the clip.
        open_decoder: Starts another one, for two readings at the same time.
        span: Start and end of the part to process, seconds; None: those of the clip.

    Attributes:
        has_audio: Whether the upload has audio. `info.has_audio` is False, so that nothing opens the upload to read it
            in this process.
        is_stopped: Every reading ends where this function returns True.
    """

    def __init__(
        self,
        decoder: "_ClipDecoder",
        open_decoder: "Callable[[], _ClipDecoder]",
        span: tuple[float | None, float | None],
    ) -> None:
        super().__init__(replace(decoder.info, has_audio=False))
        self.has_audio = decoder.info.has_audio
        self.is_stopped: Callable[[], bool] = lambda: False
        self._span, self._count, self._open_decoder = span, decoder.count, open_decoder
        self._idle, self._closed, self._lock = [decoder], False, threading.Lock()

    @property
    def span(self) -> dict[str, Any]:
        """The part to process, as keyword arguments `start` and `end` of predictors."""
        return dict(zip(("start", "end"), self._span, strict=True))

    def __len__(self) -> int:
        """Return the number of frames of the span; 0 if the clip declares neither frames nor a duration.

        It is exact if the number of frames is limited, and otherwise follows from the duration and the frame rate.
        """
        info, (start, end) = self.info, self._span
        if self._count is not None:
            return self._count
        if start is None and end is None and info.num_frames is not None:
            return info.num_frames
        duration = clip_seconds(info)
        if duration is None:
            return 0
        last = duration if end is None else min(end, duration)
        return max(1, round((last - (start or 0.0)) * float(info.fps)))

    def close(self) -> None:
        """Kill all decoders."""
        with self._lock:
            self._closed = True
            for decoder in self._idle:
                decoder.kill()

    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        with self._lock:
            decoder = self._idle.pop() if self._idle else None
        decoder = decoder or self._open_decoder()
        try:
            for frame in decoder.frames(start, end, frame_step):
                yield frame
                if self.is_stopped():
                    break
            decoder.stop()
            self.skipped, self.truncated = decoder.skipped, decoder.truncated
        except GeneratorExit:
            with suppress(InputError):  # it is killed
                decoder.stop()
            raise
        except BaseException:
            decoder.kill()
            raise
        finally:
            with self._lock:
                if self._closed:
                    decoder.kill()
                elif decoder.alive:
                    self._idle.append(decoder)


def clip_seconds(info: VideoInfo) -> float | None:
    """Return the duration of a clip; None if its header declares neither a duration nor a number of frames."""
    if info.duration is not None:
        return float(info.duration)
    return None if info.num_frames is None else float(info.num_frames / info.fps)


def decode_image(limits: Limits, path: Path, deadline: Deadline) -> DecodedImage:
    """Decode an uploaded image.

    Args:
        limits: Limits on its size.
        path: The upload.
        deadline: Time at which the decoder is killed.

    Returns:
        The image as `load_image` reads it.

    Raises:
        InputError: If it is not an image, exceeds a limit, or crashes the decoder.
    """
    limits.check_file(path)
    with tempfile.TemporaryFile() as spool:
        report = _run(_request("image", limits, path, deadline, 12), spool, path, deadline)
        height, width, channels = (int(side) for side in report["shape"])
        if channels != 3 or not 0 < height * width <= limits.max_pixels:
            raise _crash_error(path)
        pixels = np.empty((height, width, channels), np.float32)
        spool.seek(0)
        _read_array(spool, pixels)
    focal = report["focal_in_35mm"]
    return DecodedImage(str(path), pixels, None if focal is None else float(focal))


def decode_first_frame(limits: Limits, path: Path, deadline: Deadline, start: float | None = None) -> ImageArray:
    """Decode the first frame of an uploaded clip, or that at a time in seconds; errors as in `decode_image`."""
    with decode_clip(limits, path, deadline, count=False) as clip:
        for frame in clip.frames(start):
            return frame.image
        return next(clip.frames()).image  # the clip ends before


@contextmanager
def decode_clip(
    limits: Limits,
    path: Path,
    deadline: Deadline,
    span: tuple[float | None, float | None] = (None, None),
    count: bool = True,
) -> Iterator[DecodedClip]:
    """Open an uploaded clip, whose frames are decoded as they are read inside the `with` block.

    Args:
        limits: Limits on its size.
        path: The upload.
        deadline: Time at which the decoder is killed.
        span: Start and end of the part to process, seconds; None: those of the clip.
        count: Whether to count the frames of this part, if their number is limited, and to refuse too many.

    Yields:
        A video with the same frames and times as from `open_video`.

    Raises:
        InputError: If it is not a clip, exceeds a limit, or crashes the decoder.
    """
    limits.check_clip_file(path)

    def open_decoder(count: bool = False) -> _ClipDecoder:
        return _ClipDecoder(limits, path, deadline, span, count)

    clip = DecodedClip(open_decoder(count and limits.max_frames is not None), open_decoder, span)
    try:
        yield clip
    finally:
        clip.close()


class _ClipDecoder:
    """A process that decodes any span of one clip, as often as it is asked.

    Arguments as for `decode_clip`.

    Attributes:
        info: Properties of the upload.
        count: Number of frames of the span, if they were counted.
        skipped: Number of damaged frames that the latest reading skipped.
        truncated: Whether the latest reading reached the end of the file before the declared duration.
    """

    def __init__(
        self, limits: Limits, path: Path, deadline: Deadline, span: tuple[float | None, float | None], count: bool
    ) -> None:
        self.skipped, self.truncated = 0, False
        self._limits, self._path, self._deadline = limits, path, deadline
        self._reading = False
        deadline.check()
        self._touch()
        request = _request("stream", limits, path, deadline, 0) | {"span": span, "count": count}
        self._child = _start(request, subprocess.PIPE, subprocess.PIPE)
        try:
            report = self._receive_report(self._receive_header())
            self.info = _clip_info(limits, path, report)
            self.count = None if report["count"] is None else int(report["count"])
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process can be asked for frames."""
        return self._child.poll() is None and not self._reading

    def frames(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        """Decode the frames with start <= time < end, seconds."""
        count, touched, limit = 0, time.monotonic(), self._limits.max_frames
        self._send(json.dumps([start, None if end == float("inf") else end, frame_step]).encode() + b"\n")
        self._reading = True
        while (header := self._receive_header())[0] == "frame":
            image = np.empty((*self.info.size, 3), np.uint8)
            self._receive(image.reshape(-1).data)
            yield VideoFrame(image, int(header[1]), Fraction(header[2]))
            count += 1
            if limit is not None and count > limit + 1:  # a sample may begin one frame before its span
                raise _crash_error(self._path)
            if time.monotonic() - touched > TOUCH_SECONDS:
                touched = time.monotonic()
                self._touch()
        self._end(header)

    def stop(self) -> None:
        """End the latest reading, if frames of it are left."""
        try:
            if self._reading:
                self._send(STOP)
            while self._reading:
                if (header := self._receive_header())[0] == "frame":
                    self._receive(np.empty((*self.info.size, 3), np.uint8).reshape(-1).data)
                else:
                    self._end(header)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process."""
        _kill(self._child)

    def _end(self, header: list[str]) -> None:
        if header[0] == "report":
            self._receive_report(header)  # an error
        if header[0] != "end":
            raise _crash_error(self._path)
        self.skipped, self.truncated, self._reading = int(header[1]), header[2] == "1", False

    def _touch(self) -> None:
        with suppress(OSError):
            os.utime(self._path)  # in use, so that the sweeper does not delete it

    def _send(self, line: bytes) -> None:
        try:
            cast(IO[bytes], self._child.stdin).write(line)
            cast(IO[bytes], self._child.stdin).flush()
        except (BrokenPipeError, ValueError):
            raise _crash_error(self._path) from None

    def _receive_header(self) -> list[str]:
        """Receive the kind and the numbers of the next message."""
        data = bytearray(HEADER_BYTES)
        self._receive(memoryview(data))
        header = data.decode("ascii", "replace").split()
        if len(header) != {"frame": 3, "end": 3, "report": 2}.get(header[0] if header else "", 0):
            raise _crash_error(self._path)
        return header

    def _receive_report(self, header: list[str]) -> Report:
        if header[0] != "report" or int(header[1]) > MAX_REPORT_BYTES:
            raise _crash_error(self._path)
        data = bytearray(int(header[1]))
        self._receive(memoryview(data))
        report: Report = json.loads(data)
        if "error" in report:
            raise InputError(str(report["error"]))
        return report

    def _receive(self, view: memoryview) -> None:
        """Fill a buffer, checking the deadline while the process is busy."""
        pipe = cast(IO[bytes], self._child.stdout).fileno()
        latest = time.monotonic()
        while view:
            if select.select([pipe], [], [], POLL_SECONDS)[0]:
                count = os.readv(pipe, [view])
                if count == 0:  # the process has ended
                    self._deadline.check()
                    raise _crash_error(self._path)
                view, latest = view[count:], time.monotonic()
            elif time.monotonic() - latest > STALL_SECONDS:
                raise _crash_error(self._path)
            else:
                self._deadline.check()


def clip_writer(output: Path, clip: DecodedClip, limits: Limits, deadline: Deadline) -> "VideoWriter | AudioClipWriter":
    """Return a writer for a video with the frame times, frame rate and audio of a clip.

    Args:
        output: Video to write.
        clip: The decoded clip.
        limits: Limits within which the clip was decoded.
        deadline: Time at which the encoder is killed.
    """
    if not clip.has_audio:
        return VideoWriter(output, clip, clip.info.fps)
    return AudioClipWriter(output, clip, limits, deadline)


class AudioClipWriter:
    """Writes a clip with the audio of an upload in a separate process, because the audio must be decoded, too.

    Arguments as in `clip_writer`.

    Attributes:
        frames: Number of frames written so far.
    """

    def __init__(self, output: Path, clip: DecodedClip, limits: Limits, deadline: Deadline) -> None:
        self.frames = 0
        self._path, self._limits, self._deadline = clip.info.paths[0], limits, deadline
        self._options = {"output": str(output), "fps": str(clip.info.fps)}

    def __enter__(self) -> Self:
        limits = self._limits
        request = _request("write", limits, self._path, self._deadline, 0) | self._options
        request["memory"] = WRITING_BYTES + WRITING_BYTES_PER_PIXEL * limits.max_pixels
        if limits.max_frames is None:
            request["file_bytes"] = None
        else:  # encoded frames are not larger than raw ones, and two of them may be side by side
            request["file_bytes"] += 6 * limits.max_frames * limits.max_pixels + limits.file_bytes
        self._spool = tempfile.TemporaryFile()
        self._child = _start(request, self._spool, subprocess.PIPE)
        return self

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> None:
        """Add a frame, uint8 HxWx3, displayed at a time in seconds."""
        if time is None:
            raise ValueError("a frame of a clip with audio needs its time")
        height, width = image.shape[:2]
        self._send(f"{Fraction(time)} {height} {width}\n".encode())
        self._send(np.ascontiguousarray(image).data.cast("B"))
        self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._spool:
            try:
                if error is None:
                    self._send(END)
                    _finish(self._child, self._spool, self._path, self._deadline)
            finally:
                _kill(self._child)

    def _send(self, data: bytes | memoryview) -> None:
        """Send bytes to the child, checking the deadline while it does not accept them."""
        pipe = cast(IO[bytes], self._child.stdin)
        os.set_blocking(pipe.fileno(), False)
        remaining = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_WRITE)
            while remaining:
                self._deadline.check()
                if selector.select(POLL_SECONDS):
                    try:
                        remaining = remaining[os.write(pipe.fileno(), remaining[:_CHUNK_BYTES]) :]
                    except BrokenPipeError:  # the child has ended; its report contains the reason
                        _finish(self._child, self._spool, self._path, self._deadline)
                        raise _crash_error(self._path) from None


def _request(action: str, limits: Limits, path: Path, deadline: Deadline, bytes_per_pixel: int) -> dict[str, Any]:
    return {
        "action": action,
        "path": str(path),
        "limits": asdict(limits),
        "seconds": deadline.remaining,
        "memory": DECODING_BYTES + DECODING_BYTES_PER_PIXEL * limits.max_pixels,
        "file_bytes": bytes_per_pixel * limits.max_pixels + MAX_REPORT_BYTES,
    }


def _run(request: dict[str, Any], spool: IO[bytes], path: Path, deadline: Deadline) -> Report:
    """Run a child to its end."""
    deadline.check()
    with suppress(OSError):
        os.utime(path)  # in use, so that the sweeper does not delete it
    child = _start(request, spool, subprocess.DEVNULL)
    try:
        return _finish(child, spool, path, deadline)
    finally:
        _kill(child)


def _start(request: dict[str, Any], stdout: IO[bytes] | int, stdin: int) -> "subprocess.Popen[bytes]":
    # The child imports modules from the same paths as this process, and numpy needs only one thread.
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    environment = {name: value for name, value in os.environ.items() if name != "PROTOFORMER_AUTH"}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "protoformer.web.decode_child", json.dumps(request)],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env={**environment, **threads, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C goes to the server only, which then stops the child
    )


def _finish(child: "subprocess.Popen[bytes]", spool: IO[bytes], path: Path, deadline: Deadline) -> Report:
    """Wait for a child and return its report; raise `InputError` if it reports an error, crashes or takes too long."""
    while True:
        try:
            code = child.wait(POLL_SECONDS)
            break
        except subprocess.TimeoutExpired:
            deadline.check()
    report = _read_report(spool) if code == 0 else None
    if report is None:
        deadline.check()
        raise _crash_error(path)
    if "error" in report:
        raise InputError(str(report["error"]))
    return report


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child that is still running, and close its pipes."""
    if child.poll() is None:
        child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _read_report(spool: IO[bytes]) -> Report | None:
    """Read the JSON at the end of a file, if there is one."""
    length = spool.seek(0, os.SEEK_END)
    if length < 8:
        return None
    spool.seek(length - 8)
    count = int.from_bytes(spool.read(8), "big")
    if count > min(MAX_REPORT_BYTES, length - 8):
        return None
    spool.seek(length - 8 - count)
    try:
        report = json.loads(spool.read(count))
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _clip_info(limits: Limits, path: Path, report: Report) -> VideoInfo:
    height, width = (int(side) for side in report["size"])
    if not 0 < height * width <= limits.max_pixels:
        raise _crash_error(path)
    return VideoInfo(
        paths=(path,),
        size=(height, width),
        fps=Fraction(str(report["fps"])),
        time_base=Fraction(str(report["time_base"])),
        start=Fraction(str(report["start"])),
        num_frames=None if report["num_frames"] is None else int(report["num_frames"]),
        duration=None if report["duration"] is None else Fraction(str(report["duration"])),
        has_audio=bool(report["has_audio"]),
        codec=str(report["codec"]),
    )


def _read_array(file: IO[bytes], array: "np.ndarray[Any, Any]") -> None:
    """Fill an array from the current position of a file."""
    view = array.reshape(-1).view(np.uint8).data
    if file.readinto(view) != array.nbytes:  # type: ignore[attr-defined]
        raise InputError("the decoded pixels of an upload are gone; try again.")


def _crash_error(path: Path) -> InputError:
    return InputError(
        f"{path} could not be decoded: its decoder crashed or ran out of memory; save or convert it again, or make it "
        "smaller."
    )
