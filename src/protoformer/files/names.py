"""File names: shortened to what file systems take, and compared as the strictest of them does."""

import hashlib
import os
import unicodedata
from pathlib import Path

MAX_NAME_BYTES = 200
"""Of a name that others are made from by adding a suffix; file systems take 255 in all."""


def short_name(name: str, limit: int = MAX_NAME_BYTES) -> str:
    """Shorten a file name to at most `limit` bytes.

    What is cut off is replaced by a hash of the whole name, so a name gives the same result in every run, and names
    that differ in their last characters stay different.

    Args:
        name: One component of a path, without its suffix.
        limit: The most bytes of the result, over 9.

    Returns:
        The name itself where it is short enough.
    """
    data = os.fsencode(name)
    if len(data) <= limit:
        return name
    digest = hashlib.sha256(data).hexdigest()[:8]
    return f"{data[: limit - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"


def name_key(name: str) -> str:
    """Return a key that is equal for names that some file system takes for one.

    Windows and macOS usually ignore case, and macOS ignores how accents are composed (NFC or NFD).
    """
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def leads_out(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> bool:
    """Whether the folder that holds `path` lies outside `folder` once links and '..' are followed."""
    # Path.resolve() raises at a loop of links, which realpath leaves as it is.
    return not Path(os.path.realpath(Path(path).parent)).is_relative_to(os.path.realpath(folder))
