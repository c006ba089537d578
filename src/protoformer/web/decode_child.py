"""The program that decodes one upload of the page in a process of its own, within limits of memory and time.

`decoding` starts it. It writes pixels to its standard output, which is a file, and behind them a report: JSON, and the
length of the JSON in 8 bytes. What is wrong with the upload is a sentence in the report. It imports no torch.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
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
except ImportError:  # not a POSIX system: only the deadline of the parent holds
    resource = None  # type: ignore[assignment]

REPORT_BYTES = 2**24
"""Bytes that a report may have."""
SHARED_BYTES = 2**32
"""Bytes of address space beside data: code, and what is mapped but not written."""
CPUS = 4
"""CPUs that a decoder may use: its memory grows with its threads."""
END = b"end\n"
"""What comes in place of the next frame when a clip is complete."""


def main() -> None:
    """Do what the JSON in the first argument says."""
    request = json.loads(sys.argv[1])
    spool = _take_stdout()
    limits, path = Limits(**request["limits"]), Path(request["path"])
    try:
        _confine(request["memory"], request["file_bytes"], request["seconds"])
        report = _WORK[request["work"]](limits, path, request, spool)
    except PixelLimitError as error:
        report = {"error": _pixel_sentence(error, limits, path)}
    except InputError as error:
        report = {"error": str(error)}
    except MemoryError:
        report = {"error": f"{path} takes more memory to decode than this page allows; make it smaller."}
    except OSError as error:
        report = {"error": f"{path} could not be decoded ({error.strerror}); try again later."}
    text = json.dumps(report).encode()
    spool.write(text + len(text).to_bytes(8, "big"))
    spool.flush()


def _take_stdout() -> BinaryIO:
    """Standard output for pixels alone: whatever a library prints goes nowhere."""
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return os.fdopen(kept, "wb")


def _confine(memory: int, file_bytes: int, seconds: float) -> None:
    """Set the limits of this process, which nothing in it can raise again."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    if resource is None:
        return
    wanted = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_AS: memory + SHARED_BYTES,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_CPU: CPUS * ceil(seconds) + 1,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _pixel_sentence(error: PixelLimitError, limits: Limits, path: Path) -> str:
    """The page's own words for too many pixels, where the size is known."""
    if error.size is not None:
        try:
            limits.check_pixels(path, *error.size)
        except InputError as refused:
            return str(refused)
    return str(error)


def _decode_image(limits: Limits, path: Path, _: dict[str, Any], spool: BinaryIO) -> dict[str, Any]:
    """Write the float32 samples of an image."""
    limits.check_image(path)
    image = load_image(path, limits.pixels)
    spool.write(image.pixels.data)
    return {"shape": image.pixels.shape, "focal_in_35mm": image.focal_in_35mm}


def _decode_clip(limits: Limits, path: Path, request: dict[str, Any], spool: BinaryIO) -> dict[str, Any]:
    """Write the uint8 frames of a clip, or the first one alone."""
    video = _opened(limits, path)
    numbers: list[int] = []
    times: list[str] = []
    for frame in video.frames():
        limits.check_frames(len(numbers) + 1, path)
        spool.write(frame.image.data)
        numbers.append(frame.number)
        times.append(str(frame.time))
        if request["first_only"]:
            break
    info = video.info
    return {
        "size": info.size,
        "fps": str(info.fps),
        "time_base": str(info.time_base),
        "start": str(info.start),
        "num_frames": info.num_frames,
        "duration": None if info.duration is None else str(info.duration),
        "has_audio": info.has_audio,
        "codec": info.codec,
        "numbers": numbers,
        "times": times,
        "skipped": video.skipped,
        "truncated": video.truncated,
    }


def _write_clip(limits: Limits, path: Path, request: dict[str, Any], _: BinaryIO) -> dict[str, Any]:
    """Write frames from standard input as a video with the sound of the upload."""
    video = _opened(limits, path)
    with VideoWriter(request["output"], video, Fraction(request["fps"])) as writer:
        for image, time in _received(sys.stdin.buffer):
            writer.write(image, time)
    return {"frames": writer.frames}


def _opened(limits: Limits, path: Path) -> Video:
    limits.check_clip_file(path)
    video = open_video(path, max_pixels=limits.pixels)
    limits.check_clip(video, path)
    return video


def _received(stream: BinaryIO) -> Iterator[tuple["np.ndarray[Any, np.dtype[np.uint8]]", Fraction]]:
    """Frames, each behind a line of its time, height and width, until `END`."""
    while (line := stream.readline()) != END:
        time, height, width = line.decode().split()
        image = np.empty((int(height), int(width), 3), np.uint8)
        if stream.readinto(image.data.cast("B")) != image.nbytes:  # type: ignore[attr-defined]
            raise InputError("the frames of a clip ended too early; try again.")
        yield image, Fraction(time)


_WORK: dict[str, Callable[[Limits, Path, dict[str, Any], BinaryIO], dict[str, Any]]] = {
    "image": _decode_image,
    "clip": _decode_clip,
    "write": _write_clip,
}

if __name__ == "__main__":
    main()
