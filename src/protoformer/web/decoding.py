"""Decoding of uploads in a separate process with limits on memory and time.

An upload may be crafted to crash a decoder, or to make it compute or allocate without end. Therefore the server never
decodes an upload itself: `decode_child` does, passes the pixels on in an anonymous file, and is killed at the deadline.
A crash, excessive memory and excessive time each give the client one error message.
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.io.image import DecodedImage
from protoformer.video.types import ImageArray, Video, VideoFrame, VideoInfo
from protoformer.video.writer import VideoWriter
from protoformer.web.decode_child import END, MAX_REPORT_BYTES
from protoformer.web.limits import Deadline, Limits

DECODING_BYTES, DECODING_BYTES_PER_PIXEL = 3 * 2**28, 256
"""Memory of a decoding process: a fixed part, and a part for each pixel of `Limits.max_pixels`."""
WRITING_BYTES, WRITING_BYTES_PER_PIXEL = 2**31, 1024
"""Memory of a process that writes a clip; an encoder buffers dozens of frames."""
POLL_SECONDS = 0.05
"""Interval between two checks of the deadline."""
_CHUNK_BYTES = 2**16

Report = dict[str, Any]
"""JSON report of the child process; its numbers are checked where they are used."""


class DecodedClip(Video):
    """A clip whose decoded frames are in an anonymous file.

    Args:
        info: Properties of the upload.
        timestamps: Number and time, in seconds, of each frame.
        spool: The file: uint8 HxWx3 frames one after another.
        report: Report of the decoding process.

    Attributes:
        has_audio: Whether the upload has audio. `info.has_audio` is False, so that nothing opens the upload to read it
            in this process.
    """

    def __init__(
        self, info: VideoInfo, timestamps: list[tuple[int, Fraction]], spool: IO[bytes], report: Report
    ) -> None:
        super().__init__(replace(info, has_audio=False))
        self.has_audio = info.has_audio
        self._timestamps, self._spool, self._report = timestamps, spool, report
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._timestamps)

    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        self.skipped, self.truncated = int(self._report["skipped"]), bool(self._report["truncated"])
        inside = [index for index, (_, time) in enumerate(self._timestamps) if start <= float(time) < end]
        for index in inside[::frame_step]:
            yield VideoFrame(self._image(index), *self._timestamps[index])

    def _image(self, index: int) -> ImageArray:
        image = np.empty((*self.info.size, 3), np.uint8)
        with self._lock:
            self._spool.seek(index * image.nbytes)
            _read_array(self._spool, image)
        return image


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


def decode_first_frame(limits: Limits, path: Path, deadline: Deadline) -> ImageArray:
    """Decode the first frame of an uploaded clip; arguments and errors as in `decode_image`."""
    with decode_clip(limits, path, deadline, first_only=True) as clip:
        return next(clip.frames()).image


@contextmanager
def decode_clip(limits: Limits, path: Path, deadline: Deadline, first_only: bool = False) -> Iterator[DecodedClip]:
    """Decode an uploaded clip, whose frames can be read inside the `with` block.

    Args:
        limits: Limits on its size. The frames need up to 3 bytes per pixel on the disk of the temporary folder.
        path: The upload.
        deadline: Time at which the decoder is killed.
        first_only: Whether to decode only the first frame.

    Yields:
        A video with the same frames and times as from `open_video`.

    Raises:
        InputError: If it is not a clip, exceeds a limit, or crashes the decoder.
    """
    limits.check_clip_file(path)
    with tempfile.TemporaryFile() as spool:
        request = _request("clip", limits, path, deadline, 3 * (1 if first_only else limits.max_frames))
        report = _run(request | {"first_only": first_only}, spool, path, deadline)
        yield _make_clip(limits, path, spool, report)


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
        # Encoded frames are not larger than raw ones, and two of them may be side by side.
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


def _start(request: dict[str, Any], spool: IO[bytes], stdin: int) -> "subprocess.Popen[bytes]":
    # The child imports modules from the same paths as this process, and numpy needs only one thread.
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    environment = {name: value for name, value in os.environ.items() if name != "PROTOFORMER_AUTH"}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "protoformer.web.decode_child", json.dumps(request)],
        stdin=stdin,
        stdout=spool,
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
    """Kill a child that is still running, and close its pipe."""
    if child.poll() is None:
        child.kill()
    child.wait()
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()


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


def _make_clip(limits: Limits, path: Path, spool: IO[bytes], report: Report) -> DecodedClip:
    height, width = (int(side) for side in report["size"])
    timestamps = [(int(number), Fraction(str(time))) for number, time in report["timestamps"]]
    num_bytes = prod((len(timestamps), height, width, 3))
    if not 0 < height * width <= limits.max_pixels or not 0 < len(timestamps) <= limits.max_frames:
        raise _crash_error(path)
    if spool.seek(0, os.SEEK_END) < num_bytes:
        raise _crash_error(path)
    info = VideoInfo(
        paths=(path,),
        size=(height, width),
        fps=Fraction(str(report["fps"])),
        time_base=Fraction(str(report["time_base"])),
        start=Fraction(str(report["start"])),
        num_frames=report["num_frames"],
        duration=None if report["duration"] is None else Fraction(str(report["duration"])),
        has_audio=bool(report["has_audio"]),
        codec=str(report["codec"]),
    )
    return DecodedClip(info, timestamps, spool, report)


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
