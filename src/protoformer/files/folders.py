"""Folders to write into."""

from pathlib import Path

from protoformer.errors import InputError


def made_folder(folder: Path) -> Path:
    """The folder, made with those above it if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another.") from None
    return folder
