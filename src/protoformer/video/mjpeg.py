"""Videos as motion jpeg in an `.avi`: every frame is a picture of its own, of any size, that any player opens.

The container is written here and not by OpenCV, whose own writer spoils the last rows and columns of frames that are
not a multiple of 16 pixels, and whose other one cuts odd sizes.
"""

import os
import struct
from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import check_input, check_output, open_atomic
from protoformer.video.types import exact_rate

Frame = npt.NDArray[np.uint8]

QUALITY = 95
_LARGEST = 2**31 - 2**20
"""Bytes of an avi that every reader takes."""
_TICKS = 1_000_000
_HAS_INDEX, _KEY_FRAME = 0x10, 0x10
_LARGEST_NUMBER = 2**32 - 1
_HEAD = 224
"""Bytes before the first frame."""


def write_video(path: str | os.PathLike[str], frames: Iterable[Frame], rate: float) -> int:
    """Write frames, uint8 HxWx3 RGB of one size, as an `.avi` of `rate` frames a second; return how many there were.

    Frames are taken one at a time. The file appears when it is whole; on failure the old one is left as it was.
    """
    target = check_output(path)
    if target.suffix.lower() != ".avi":
        raise InputError(f"{target} does not end in .avi; choose this suffix.")
    exact = exact_rate(rate, target)
    with open_atomic(target) as file:
        return _write(file, frames, exact, target)


def read_frames(path: str | os.PathLike[str], numbers: Collection[int]) -> Iterator[Frame]:
    """Frames of a video by their numbers from 0 on, in their order in the video: uint8 HxWx3 RGB."""
    wanted, found = set(numbers), 0
    video = cv2.VideoCapture(str(check_input(path).absolute()))  # no name is taken for an address
    try:
        for number in range(max(wanted, default=-1) + 1):
            if not grab_frame(video):
                break
            if number in wanted:
                frame = _retrieved(video)
                if frame is None:
                    break
                found += 1
                yield np.ascontiguousarray(frame[..., ::-1])
    finally:
        video.release()
    if found < len(wanted):
        raise InputError(f"{path} is not a video that can be read, or is cut short; make or download it again.")


def grab_frame(video: cv2.VideoCapture) -> bool:
    """Go to the next frame of an open video; False at its end, and where OpenCV gives up on a damaged one."""
    try:
        return video.grab()
    except cv2.error:
        return False


def _retrieved(video: cv2.VideoCapture) -> Frame | None:
    """Decode the frame that was grabbed, BGR; None where it is damaged."""
    try:
        done, frame = video.retrieve()
    except cv2.error:
        return None
    return np.asarray(frame, np.uint8) if done and frame is not None and frame.ndim == 3 else None


def _write(file: BinaryIO, frames: Iterable[Frame], rate: Fraction, path: Path) -> int:
    """The container: a head, which is known at the end and written over the place kept for it, frames, and an index."""
    file.write(bytes(_HEAD))
    sizes: list[int] = []
    shape: tuple[int, ...] = ()
    for frame in frames:
        shape = shape or frame.shape
        data = _encoded(frame, shape, path)
        sizes.append(len(data))
        file.write(struct.pack("<4sI", b"00dc", len(data)) + data + bytes(len(data) % 2))
        if file.tell() > _LARGEST:
            raise InputError(f"{path} would be larger than 2 GB, the limit of its format; write fewer frames.")
    if not sizes:
        raise InputError(f"{path} would be a video without frames; give at least one.")
    movie = file.tell() - _HEAD
    file.write(struct.pack("<4sI", b"idx1", 16 * len(sizes)))
    place = 4
    for size in sizes:
        file.write(struct.pack("<4sIII", b"00dc", _KEY_FRAME, place, size))
        place += 8 + size + size % 2
    end = file.tell()
    file.seek(0)
    file.write(_head(shape[1], shape[0], rate, sizes, movie, end))
    return len(sizes)


def _encoded(frame: Frame, shape: tuple[int, ...], path: Path) -> bytes:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise InputError(
            f"a frame for {path} is {frame.dtype} of shape {frame.shape}; give uint8 HxWx3 with at least one pixel."
        )
    if frame.shape != shape:
        raise InputError(f"the frames for {path} have sizes {shape[:2]} and {frame.shape[:2]}; give them one size.")
    ordered = np.ascontiguousarray(frame[..., ::-1])
    try:
        done, data = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    except cv2.error:
        done = False
    if not done:
        raise InputError(f"frames of {shape[1]}x{shape[0]} do not fit in {path}; make them smaller.")
    return bytes(data.tobytes())


def _head(width: int, height: int, rate: Fraction, sizes: list[int], movie: int, end: int) -> bytes:
    """The lists in front of the frames. movie: bytes of all frames with their tags. end: bytes of the whole file."""
    largest, count, bits = max(sizes), len(sizes), 24
    main = struct.pack(
        "<14I",
        min(round(_TICKS / rate), _LARGEST_NUMBER),
        min(round(largest * rate), _LARGEST_NUMBER),
        0,
        _HAS_INDEX,
        count,
        0,
        1,
        largest,
        width,
        height,
        0,
        0,
        0,
        0,
    )
    stream = struct.pack(
        "<4s4sIHHIIIIIIII4H",
        *(b"vids", b"MJPG", 0, 0, 0, 0, rate.denominator, rate.numerator, 0, count, largest, 0xFFFFFFFF, 0),
        *(0, 0, width & 0xFFFF, height & 0xFFFF),
    )
    picture = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, bits, b"MJPG", 3 * width * height, 0, 0, 0, 0)
    track = b"strl" + _chunk(b"strh", stream) + _chunk(b"strf", picture)
    lists = b"hdrl" + _chunk(b"avih", main) + _chunk(b"LIST", track)
    head = struct.pack("<4sI4s", b"RIFF", end - 8, b"AVI ") + _chunk(b"LIST", lists)
    return head + struct.pack("<4sI4s", b"LIST", movie + 4, b"movi")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack("<4sI", name, len(data)) + data
