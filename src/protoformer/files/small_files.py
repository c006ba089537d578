"""Reading small files that a program keeps for itself, in folders that may come from anyone."""

import os
import stat
from pathlib import Path


class UnfitFileError(OSError):
    """A file is not one that the program wrote; the message is a clause that says why."""


def read_small_file(path: Path, limit: int) -> bytes:
    """Read a whole regular file, without following a link and without waiting for a pipe or a device.

    Args:
        path: The file.
        limit: The most bytes it may have.

    Raises:
        UnfitFileError: If it is not a regular file, or longer than `limit`.
        OSError: If the system refuses to read it.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFileError("it is not a regular file")
    if status.st_size > limit:
        raise UnfitFileError(f"it is {status.st_size} bytes long, which is too much")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(limit)
