"""Program that decodes one upload in a process with limits on memory and time; see `decoding`, which starts it.

For an image, it writes the pixels to standard output, which is a file, followed by a JSON report and the length of the
report in 8 bytes. For a clip, standard output is a pipe: a report, then the frames of every span that a line of
standard input asks for. Each message begins with a header of `HEADER_BYTES`. Errors are part of the report. The program
does not import torch.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from protoformer.errors import InputError
from protoformer.io.files import PixelLimitError
from protoformer.io.image import load_image
from protoformer.video.reader import open_video
from protoformer.video.types import Video
from protoformer.video.writer import VideoWriter
from protoformer.web.limits import Limits

try:
    import resource
except ImportError:  # not POSIX: only the deadline of the parent process applies
    resource = None  # type: ignore[assignment]

MAX_REPORT_BYTES = 2**24
SHARED_BYTES = 2**32
"""Address space besides data: code, and memory that is mapped but not written."""
MAX_CPUS = 4
"""CPUs that the decoder may use; its memory grows with the number of threads."""
END = b"end\n"
"""Marks the end of a clip in place of the next frame."""
HEADER_BYTES = 128
"""Length of the header of a message about a clip: its kind and its numbers, filled up with spaces."""
STOP = b"stop\n"
"""Line that ends a span early."""


def main() -> None:
    """Process the request, JSON in the first argument."""
    request = json.loads(sys.argv[1])
    output = _redirect_stdout()
    limits, path = Limits(**request["limits"]), Path(request["path"])
    try:
        _set_limits(request["memory"], request["file_bytes"], request["seconds"])
        report = _ACTIONS[request["action"]](limits, path, request, output)
    except PixelLimitError as error:
        report = {"error": _pixel_limit_message(error, limits, path)}
    except InputError as error:
        report = {"error": str(error)}
    except MemoryError:
        report = {"error": f"{path} takes more memory to decode than this page allows; make it smaller."}
    except OSError as error:
        report = {"error": f"{path} could not be decoded ({error.strerror}); try again later."}
    if request["action"] == "stream":
        _send_report(output, report)
        return
    text = json.dumps(report, default=str).encode()  # fractions and paths become strings
    output.write(text + len(text).to_bytes(8, "big"))
    output.flush()


def _redirect_stdout() -> BinaryIO:
    """Return standard output for pixels, and discard what libraries print."""
    output = os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
    return os.fdopen(output, "wb")


def _set_limits(memory: int, file_bytes: int | None, seconds: float | None) -> None:
    """Set resource limits that this process cannot raise again; None: no limit."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:MAX_CPUS])
    if resource is None:
        return
    limits = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_AS: memory + SHARED_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    if file_bytes is not None:
        limits[resource.RLIMIT_FSIZE] = file_bytes
    if seconds is not None:
        limits[resource.RLIMIT_CPU] = MAX_CPUS * ceil(seconds) + 1
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _pixel_limit_message(error: PixelLimitError, limits: Limits, path: Path) -> str:
    """Return the page's own message for too many pixels if the size is known."""
    if error.size is not None:
        try:
            limits.check_pixels(path, *error.size)
        except InputError as refused:
            return str(refused)
    return str(error)


def _decode_image(limits: Limits, path: Path, _: dict[str, Any], output: BinaryIO) -> dict[str, Any]:
    """Write the float32 pixels of an image."""
    limits.check_image(path)
    image = load_image(path, limits.max_pixels)
    output.write(image.pixels.data)
    return {"shape": image.pixels.shape, "focal_in_35mm": image.focal_in_35mm}


def _stream_clip(limits: Limits, path: Path, request: dict[str, Any], output: BinaryIO) -> dict[str, Any]:
    """Report the properties of a clip, then write the frames of each span that a line of standard input asks for."""
    video = _open_clip(limits, path)
    count = _count_frames(limits, path, video, *request["span"]) if request["count"] else None
    _send_report(output, asdict(video.info) | {"count": count})
    commands = os.fdopen(os.dup(0), "rb", buffering=0)
    while line := commands.readline():
        if line == STOP:  # of a span that had ended before
            continue
        with closing(video.frames(*json.loads(line))) as frames:  # type: ignore[type-var]
            for frame in frames:
                output.write(f"frame {frame.number} {frame.time}".encode().ljust(HEADER_BYTES))
                output.write(frame.image.data)
                output.flush()
                if select.select([commands], [], [], 0)[0]:
                    commands.readline()
                    break
        output.write(f"end {video.skipped} {int(video.truncated)}".encode().ljust(HEADER_BYTES))
        output.flush()
    sys.exit(0)


def _count_frames(limits: Limits, path: Path, video: Video, start: float | None, end: float | None) -> int:
    """Decode the frames of a span to count them, and refuse too many."""
    if start is None and end is None and video.info.num_frames is not None:
        limits.check_frames(video.info.num_frames, path)
    count = 0
    for count, _ in enumerate(video.frames(start, end), 1):
        limits.check_frames(count, path)
    return count


def _send_report(output: BinaryIO, report: dict[str, Any]) -> None:
    text = json.dumps(report, default=str).encode()  # fractions and paths become strings
    output.write(f"report {len(text)}".encode().ljust(HEADER_BYTES) + text)
    output.flush()


def _write_clip(limits: Limits, path: Path, request: dict[str, Any], _: BinaryIO) -> dict[str, Any]:
    """Encode frames from standard input as a video with the audio of the upload."""
    video = _open_clip(limits, path)
    with VideoWriter(request["output"], video, Fraction(request["fps"])) as writer:
        for image, time in _receive_frames(sys.stdin.buffer):
            writer.write(image, time)
    return {"frames": writer.frames}


def _open_clip(limits: Limits, path: Path) -> Video:
    limits.check_clip_file(path)
    video = open_video(path, max_pixels=limits.max_pixels)
    limits.check_pixels(path, *video.info.size)
    return video


def _receive_frames(stream: BinaryIO) -> Iterator[tuple["np.ndarray[Any, np.dtype[np.uint8]]", Fraction]]:
    """Yield frames, each preceded by a line with its time, height and width, until `END`."""
    while (line := stream.readline()) != END:
        time, height, width = line.decode().split()
        image = np.empty((int(height), int(width), 3), np.uint8)
        if stream.readinto(image.data.cast("B")) != image.nbytes:  # type: ignore[attr-defined]
            raise InputError("the frames of the clip are incomplete; try again.")
        yield image, Fraction(time)


_ACTIONS: dict[str, Callable[[Limits, Path, dict[str, Any], BinaryIO], dict[str, Any]]] = {
    "image": _decode_image,
    "stream": _stream_clip,
    "write": _write_clip,
}

if __name__ == "__main__":
    main()
