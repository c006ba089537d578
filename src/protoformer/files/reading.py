"""Opening files that come from outside: every failure is one sentence that names the path."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from protoformer.errors import InputError

MAX_PIXELS = 2**27
"""The most pixels (width x height) of an image or a video frame that is decoded, unless a caller sets another limit."""

# Four channels of four bytes is the widest pixel any supported format stores uncompressed.
MAX_IMAGE_BYTES = 16 * MAX_PIXELS


class PixelLimitError(InputError):
    """An image or a video has more pixels than the caller allows.

    Attributes:
        size: (height, width) in pixels as far as they are known, else None.
    """

    def __init__(self, message: str, size: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.size = size


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a folder; False, not an error, for a name that the system refuses."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises for names that are too long


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is something at a path; False, not an error, for a name that the system refuses."""
    return os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises for names that are too long


def checked_input(path: str | os.PathLike[str]) -> Path:
    """Return the path of an existing, non-empty regular file, or raise `InputError`."""
    source = Path(path)
    try:
        status = source.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{source} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read ({system_reason(error)}); check the path.") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{source} is a folder; give a file inside it.")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{source} is not a regular file; save its content to a file and give that.")
    if status.st_size == 0:
        raise InputError(f"{source} is an empty file; make or download it again.")
    return source


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a checked file for reading; a failure to open or read it becomes `InputError`."""
    source = checked_input(path)
    try:
        with source.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{source} cannot be read ({system_reason(error)}); check its permissions and the disk."
        ) from None


def read_image_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a whole image file, refusing one too large to be an image of `MAX_PIXELS`."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_IMAGE_BYTES:
            raise InputError(f"{path} is {size} bytes long, too large for an image; give a smaller one.")
        return file.read()


def read_exactly(file: BinaryIO, count: int, path: str | os.PathLike[str]) -> bytes:
    """Read the next `count` bytes, all of them; a file checked a moment ago may have shrunk since."""
    data = file.read(count)
    if len(data) != count:
        raise InputError(f"{path} became shorter while it was read; wait until it is written and try again.")
    return data


def check_dimensions(width: int, height: int, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` where a header declares a size without pixels."""
    if width < 1 or height < 1:
        raise InputError(f"{path} has a damaged header (its size is {width}x{height}); make or download it again.")


def wrong_length(
    path: str | os.PathLike[str], size: int, expected: int, dimensions: tuple[int, int] | None = None
) -> InputError:
    """Say that a file is `size` bytes long where its format, or the (width, height) of its header, needs `expected`."""
    source = "its format" if dimensions is None else "its header ({}x{})".format(*dimensions)
    return InputError(f"{path} is {size} bytes long but {source} calls for {expected}; make or download it again.")


def check_pixel_count(width: int, height: int, path: str | os.PathLike[str], max_pixels: int | None = None) -> None:
    """Raise `PixelLimitError` where a header declares more than `max_pixels` pixels (None: `MAX_PIXELS`)."""
    most = pixel_limit(max_pixels)
    if width * height > most:
        raise PixelLimitError(
            f"{path} is {width}x{height}, over the limit of {most} pixels; scale it down first.", (height, width)
        )


def pixel_limit(max_pixels: int | None) -> int:
    """The most pixels to decode: what a caller sets, but never more than `MAX_PIXELS`."""
    return MAX_PIXELS if max_pixels is None else min(max_pixels, MAX_PIXELS)


def system_reason(error: Exception) -> str:
    """Give the system's own words for an error, without the path it repeats."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
