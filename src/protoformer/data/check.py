"""Reading a whole dataset once, to know that all of it is there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protoformer.data.tree import Dataset
from protoformer.errors import InputError


@dataclass(frozen=True)
class CheckReport:
    """What a dataset on disk is worth.

    found: samples that it lists. read: those that could be read. broken: (name, sentence) of each that could not,
    because a file of it is missing or damaged.
    """

    found: int
    read: int
    broken: tuple[tuple[str, str], ...]


def check_dataset(dataset: Dataset[Any], progress: Callable[[int, int], object] | None = None) -> CheckReport:
    """Read every sample, going on after one that is broken; `progress` is called with (done, total) after each."""
    broken = []
    for index, name in enumerate(dataset.names):
        try:
            dataset[index]
        except InputError as error:
            broken.append((name, str(error)))
        if progress is not None:
            progress(index + 1, len(dataset))
    return CheckReport(len(dataset), len(dataset) - len(broken), tuple(broken))
