"""What several commands make of their arguments."""

from pathlib import Path
from typing import Any

from protoformer.errors import InputError


def made_folder(folder: Path) -> Path:
    """The folder, made with those above it if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another.") from None
    return folder


def key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Options of a dataset, given as key=value each."""
    split = [pair.partition("=") for pair in pairs or []]
    for name, equals, value in split:
        if not (name and equals):
            raise InputError(f"an option of a dataset is key=value, not {name + equals + value!r}; write it so.")
    return {name: value for name, _, value in split}
