"""Folders to write into, and the order of what lies in one."""

import re
from pathlib import Path

from protoformer.errors import InputError


def made_folder(folder: Path) -> Path:
    """The folder, made with those above it if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another.") from None
    return folder


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts frame_2 before frame_10; names equal as numbers (1, 01) go by their letters."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), text
