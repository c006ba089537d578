"""Small datasets, decoded once and kept."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from protoformer.data.tree import Dataset

Sample = TypeVar("Sample")
READERS = 8
"""Samples that are decoded at once."""


class InMemory(Dataset[Sample]):
    """The samples of another dataset, decoded when it is made and the same to the last bit.

    Samples lie one after another in one tensor for each of their fields, which processes that are started later share;
    8-bit images stay 8-bit there. A sample that cannot be read, or is of another size than the first one, is left where
    it is, and asked for from the dataset each time.
    """

    def __init__(self, dataset: Dataset[Sample], first: Sample) -> None:
        super().__init__(dataset.root, dataset.split)
        self.name = dataset.name  # type: ignore[misc]
        self.dataset, self.names, self._like = dataset, dataset.names, first
        self._fields = {
            name: torch.zeros(len(dataset), *packed.shape, dtype=packed.dtype)
            for name, packed in _packed(first).items()
        }
        with ThreadPoolExecutor(READERS) as readers:
            self._here: Sequence[bool] = tuple(readers.map(self._kept, range(len(dataset))))

    def _read(self, index: int) -> Sample:
        if not self._here[index]:
            return self.dataset[index]
        fields = {name: _unpacked(stored[index]) for name, stored in self._fields.items()}
        sample: Sample = dataclasses.replace(self._like, **fields, names=(self.names[index],))  # type: ignore[type-var]
        return sample

    def _kept(self, index: int) -> bool:
        """Whether a sample could be read and laid down."""
        try:
            packed = _packed(self.dataset[index])
        except (OSError, ValueError):  # an InputError is a ValueError; whoever asks for it later is told
            return False
        layout = {name: (part.shape, part.dtype) for name, part in packed.items()}
        if layout != {name: (stored.shape[1:], stored.dtype) for name, stored in self._fields.items()}:
            return False
        for name, part in packed.items():
            self._fields[name][index] = part
        return True


def in_memory(dataset: Dataset[Sample], budget: int) -> Dataset[Sample]:
    """The dataset kept in memory, if that takes no more than so many bytes; else the dataset itself."""
    first = _first(dataset) if budget else None
    if first is None:
        return dataset
    each = sum(part.numel() * part.element_size() for part in _packed(first).values())
    return InMemory(dataset, first) if each * len(dataset) <= budget else dataset


def _first(dataset: Dataset[Sample]) -> Sample | None:
    """The first sample that can be read."""
    for index in range(len(dataset)):
        try:
            return dataset[index]
        except (OSError, ValueError):
            continue
    return None


def _packed(sample: Any) -> dict[str, Tensor]:
    """The tensors of a sample by field, images in [0, 1] as 8 bits where these hold all of them."""
    found = {}
    for field in dataclasses.fields(sample):
        value = getattr(sample, field.name)
        if isinstance(value, Tensor):
            steps = (value * 255).round().clamp(0, 255).to(torch.uint8) if field.name == "image" else value
            found[field.name] = steps if field.name != "image" or torch.equal(_unpacked(steps), value) else value
    return found


def _unpacked(stored: Tensor) -> Tensor:
    """The inverse for one field; only images are of 8 bits."""
    return stored.float() / 255 if stored.dtype == torch.uint8 else stored.clone()
