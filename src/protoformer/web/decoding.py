"""Uploads decoded in a process of their own, which is stopped at its limits of memory and time.

An upload may be made to crash a decoder, or to make it work or allocate without end. So the server itself never decodes
one: `decode_child` does, hands over pixels in a file without a name, and is killed at the deadline. A crash, too much
memory or too much time is one sentence for the client.
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
from typing import Any, BinaryIO, Protocol, Self, cast

import numpy as np

from protoformer.errors import InputError
from protoformer.io.image import DecodedImage
from protoformer.video.types import ImageArray, Video, VideoFrame, VideoInfo
from protoformer.video.writer import VideoWriter
from protoformer.web.decode_child import END, REPORT_BYTES
from protoformer.web.limits import Deadline, Limits

DECODING_BYTES, DECODING_BYTES_A_PIXEL = 3 * 2**28, 256
"""Memory of a process that decodes: what all need, and what each pixel of the limit adds."""
WRITING_BYTES, WRITING_BYTES_A_PIXEL = 2**31, 1024
"""The same of one that writes a clip: an encoder holds some dozen frames."""
STEP = 0.05
"""Seconds between two looks at the deadline."""
_CHUNK = 2**16


class DecodedClip(Video):
    """A clip whose frames lie decoded in a file without a name, which goes when this is closed.

    Attributes:
        has_audio: Whether the upload has sound. `info.has_audio` is False: nothing may open the upload to read it here.
    """

    def __init__(self, info: VideoInfo, places: list[tuple[int, Fraction]], spool: BinaryIO, report: "_Report") -> None:
        """Take over the file.

        Args:
            info: Of the upload.
            places: Number and time of each frame.
            spool: The file, uint8 HxWx3 frames one after another.
            report: Of the process that wrote it.
        """
        super().__init__(replace(info, has_audio=False))
        self.has_audio = info.has_audio
        self._places, self._spool, self._report = places, spool, report
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self._places)

    def _reading(self, start: float, end: float, frame_step: int) -> Iterator[VideoFrame]:
        self.skipped, self.truncated = self._report.skipped, self._report.truncated
        inside = [index for index, (_, time) in enumerate(self._places) if start <= float(time) < end]
        for index in inside[::frame_step]:
            yield VideoFrame(self._image(index), *self._places[index])

    def _image(self, index: int) -> ImageArray:
        image = np.empty((*self.info.size, 3), np.uint8)
        with self._lock:
            self._spool.seek(index * image.nbytes)
            _fill(self._spool, image)
        return image


class _Report:
    """What a child says of its work; the numbers are checked where they are used."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def skipped(self) -> int:
        return int(self.values["skipped"])

    @property
    def truncated(self) -> bool:
        return bool(self.values["truncated"])

    def fraction(self, name: str) -> Fraction:
        return Fraction(str(self.values[name]))


class ClipWriter(Protocol):
    """What writes a clip: `VideoWriter`, or `SoundWriter` where there is sound to be kept."""

    frames: int

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file, or leave nothing of it behind an error."""

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> None:
        """Add a frame."""


def decode_image(limits: Limits, path: Path, deadline: Deadline) -> DecodedImage:
    """Decode an uploaded image.

    Args:
        limits: Of its bytes and pixels.
        path: The upload.
        deadline: When to give up.

    Returns:
        The image as `load_image` reads it.

    Raises:
        InputError: It is no image, is over a limit, or makes its decoder crash.
    """
    limits.check_file(path)
    with _spool() as spool:
        report = _run(_request("image", limits, path, deadline, 12), spool, path, deadline)
        height, width, channels = (int(side) for side in report["shape"])
        if channels != 3 or not 0 < height * width <= limits.pixels:
            raise _crashed(path)
        pixels = np.empty((height, width, channels), np.float32)
        spool.seek(0)
        _fill(spool, pixels)
    focal = report["focal_in_35mm"]
    return DecodedImage(str(path), pixels, None if focal is None else float(focal))


def decode_first_frame(limits: Limits, path: Path, deadline: Deadline) -> ImageArray:
    """Decode the first frame of an uploaded clip; arguments and errors as in `decode_image`."""
    with decode_clip(limits, path, deadline, first_only=True) as clip:
        return next(clip.frames()).image


@contextmanager
def decode_clip(limits: Limits, path: Path, deadline: Deadline, first_only: bool = False) -> Iterator[DecodedClip]:
    """Decode an uploaded clip; its frames can be read within the `with`.

    Args:
        limits: Of its bytes, frames and pixels. The frames need up to 3 bytes a pixel of the temporary folder's disk.
        path: The upload.
        deadline: When to give up.
        first_only: Decode the first frame alone.

    Yields:
        A video with the frames and times that `open_video` gives.

    Raises:
        InputError: It is no clip, is over a limit, or makes its decoder crash.
    """
    limits.check_clip_file(path)
    with _spool() as spool:
        request = _request("clip", limits, path, deadline, 3 * (1 if first_only else limits.frames))
        report = _run(request | {"first_only": first_only}, spool, path, deadline)
        yield _clip(limits, path, spool, report)


def clip_writer(output: Path, clip: DecodedClip, limits: Limits, deadline: Deadline) -> ClipWriter:
    """A writer of a clip made from another: at its times and its rate, and with its sound.

    Args:
        output: The video to write.
        clip: What it is made from.
        limits: Those within which `clip` was decoded.
        deadline: When to give up.
    """
    if not clip.has_audio:
        return VideoWriter(output, clip, clip.info.fps)
    return SoundWriter(output, clip, limits, deadline)


class SoundWriter:
    """Writes a clip with the sound of an upload, in a process of its own, because the sound must be decoded too."""

    def __init__(self, output: Path, clip: DecodedClip, limits: Limits, deadline: Deadline) -> None:
        """Arguments as in `clip_writer`."""
        self.frames = 0
        self._path, self._limits, self._deadline = clip.info.paths[0], limits, deadline
        self._more = {"output": str(output), "fps": str(clip.info.fps)}

    def __enter__(self) -> Self:
        request = _request("write", self._limits, self._path, self._deadline, 0) | self._more
        request["memory"] = WRITING_BYTES + WRITING_BYTES_A_PIXEL * self._limits.pixels
        # No encoder makes frames larger than they are, and two of them may lie side by side.
        request["file_bytes"] += 6 * self._limits.frames * self._limits.pixels + int(1e6 * self._limits.megabytes)
        self._spool = tempfile.TemporaryFile()
        self._child = _start(request, self._spool, subprocess.PIPE)
        return self

    def write(self, image: ImageArray, time: float | Fraction | None = None) -> None:
        """Add a frame, uint8 HxWx3, shown at `time` seconds."""
        if time is None:
            raise ValueError("a frame of a clip with sound needs its time")
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
                _stop(self._child)

    def _send(self, data: bytes | memoryview) -> None:
        """Hand bytes over, watching the deadline while the child does not take them."""
        pipe = cast(BinaryIO, self._child.stdin)
        os.set_blocking(pipe.fileno(), False)
        left = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_WRITE)
            while left:
                self._deadline.check()
                if selector.select(STEP):
                    try:
                        left = left[os.write(pipe.fileno(), left[:_CHUNK]) :]
                    except BrokenPipeError:  # it has ended, and says why
                        _finish(self._child, self._spool, self._path, self._deadline)
                        raise _crashed(self._path) from None


def _request(work: str, limits: Limits, path: Path, deadline: Deadline, bytes_a_pixel: int) -> dict[str, Any]:
    return {
        "work": work,
        "path": str(path),
        "limits": asdict(limits),
        "seconds": deadline.remaining,
        "memory": DECODING_BYTES + DECODING_BYTES_A_PIXEL * limits.pixels,
        "file_bytes": bytes_a_pixel * limits.pixels + REPORT_BYTES,
    }


@contextmanager
def _spool() -> Iterator[BinaryIO]:
    """A file that has no name, so that nothing of it stays whatever happens."""
    with tempfile.TemporaryFile() as file:
        yield cast(BinaryIO, file)


def _run(request: dict[str, Any], spool: BinaryIO, path: Path, deadline: Deadline) -> _Report:
    """Run a child to its end."""
    deadline.check()
    with suppress(OSError):
        os.utime(path)  # in use: whoever deletes old uploads leaves it alone
    child = _start(request, spool, subprocess.DEVNULL)
    try:
        return _finish(child, spool, path, deadline)
    finally:
        _stop(child)


def _start(request: dict[str, Any], spool: BinaryIO, stdin: int) -> "subprocess.Popen[bytes]":
    # It imports modules from where this process did, and numpy needs one thread only.
    paths = os.pathsep.join(path or os.curdir for path in sys.path)
    environment = {name: value for name, value in os.environ.items() if name != "PROTOFORMER_AUTH"}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "protoformer.web.decode_child", json.dumps(request)],
        stdin=stdin,
        stdout=spool,
        stderr=subprocess.DEVNULL,
        env={**environment, **threads, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for the server, which then stops this
    )


def _finish(child: "subprocess.Popen[bytes]", spool: BinaryIO, path: Path, deadline: Deadline) -> _Report:
    """Wait for a child and read its report; `InputError` where it says so, crashes or takes too long."""
    while True:
        try:
            code = child.wait(STEP)
            break
        except subprocess.TimeoutExpired:
            deadline.check()
    report = _read_report(spool) if code == 0 else None
    if report is None:
        deadline.check()
        raise _crashed(path)
    if "error" in report:
        raise InputError(str(report["error"]))
    return _Report(report)


def _stop(child: "subprocess.Popen[bytes]") -> None:
    """End a child at once, if it has not ended, and what connects it."""
    if child.poll() is None:
        child.kill()
    child.wait()
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()


def _read_report(spool: BinaryIO) -> dict[str, Any] | None:
    """The JSON at the end of a file; None where there is none."""
    length = spool.seek(0, os.SEEK_END)
    if length < 8:
        return None
    spool.seek(length - 8)
    count = int.from_bytes(spool.read(8), "big")
    if count > min(REPORT_BYTES, length - 8):
        return None
    spool.seek(length - 8 - count)
    try:
        report = json.loads(spool.read(count))
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _clip(limits: Limits, path: Path, spool: BinaryIO, report: _Report) -> DecodedClip:
    height, width = (int(side) for side in report["size"])
    places = [
        (int(number), Fraction(str(time))) for number, time in zip(report["numbers"], report["times"], strict=True)
    ]
    bytes_needed = prod((len(places), height, width, 3))
    if not 0 < height * width <= limits.pixels or len(places) > limits.frames or not places:
        raise _crashed(path)
    if spool.seek(0, os.SEEK_END) < bytes_needed:
        raise _crashed(path)
    info = VideoInfo(
        paths=(path,),
        size=(height, width),
        fps=report.fraction("fps"),
        time_base=report.fraction("time_base"),
        start=report.fraction("start"),
        num_frames=report["num_frames"],
        duration=None if report["duration"] is None else report.fraction("duration"),
        has_audio=bool(report["has_audio"]),
        codec=str(report["codec"]),
    )
    return DecodedClip(info, places, spool, report)


def _fill(file: BinaryIO, array: "np.ndarray[Any, Any]") -> None:
    """Read an array from where a file stands."""
    view = array.reshape(-1).view(np.uint8).data
    if file.readinto(view) != array.nbytes:  # type: ignore[attr-defined]
        raise InputError("the decoded pixels of an upload are gone; try again.")


def _crashed(path: Path) -> InputError:
    return InputError(
        f"{path} could not be decoded: its decoder crashed or ran out of memory; save or convert it again, or make it "
        "smaller."
    )
