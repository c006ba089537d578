"""What several commands make of their arguments."""

from typing import Any

from protoformer.errors import InputError


def key_values(pairs: list[str] | None) -> dict[str, Any]:
    """Options of a dataset, given as key=value each."""
    split = [pair.partition("=") for pair in pairs or []]
    for name, equals, value in split:
        if not (name and equals):
            raise InputError(f"an option of a dataset is key=value, not {name + equals + value!r}; write it so.")
    return {name: value for name, _, value in split}
