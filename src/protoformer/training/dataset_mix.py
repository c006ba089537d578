"""Batches of several datasets on disk, by their numbers."""

import bisect
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic

import numpy as np

from protoformer.data.augmentation import Augmentation, Key, augment_flow
from protoformer.data.augmentation_depth import DepthAugmentation, augment_depth
from protoformer.data.in_memory import in_memory
from protoformer.data.registry import DATASETS, open_dataset
from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.training.parcel import BrokenSample, Parcel
from protoformer.training.recipe import DataSection
from protoformer.world import DepthSample, FlowSample, join
from protoformer.world.sample import Sample

KEPT = 2 * 2**30
"""Bytes that a dataset of depth may take, decoded, to be kept in memory; pairs of flow are cut from larger images."""
Vary = Callable[[Dataset[Any], int, Any, Key], Sample]
"""From a dataset, the number of a sample in it, how samples are varied, and a key that decides how this one is."""


class DatasetMix(Generic[Sample]):
    """Makes a batch of varied samples by its number.

    An epoch shows every sample of a dataset as often as its weight says, in an order that (seed, epoch) decides; batch
    n has samples n * B, n * B + 1, ... of the epochs one after another. Each is varied by the key (seed, epoch, index),
    index being its number before the order was mixed.

    A sample that cannot be read is replaced by the next of the order, varied by the key of the one it stands for.

    places: which of the B samples of a batch this rank makes. vary: what makes them, one at a time.
    """

    def __init__(self, data: DataSection, places: range, vary: Vary[Sample]) -> None:
        self.size, self.places, self.seed, self.budget = data.batch, places, data.seed, data.broken
        self.vary: Vary[Sample] = vary
        used = {name: section for name, section in data.datasets.items() if section.weight > 0}
        self.datasets = [_opened(name, data) for name in used]
        self.varied = [section.augmented(data.crop) for section in used.values()]
        lengths = [len(each) * section.weight for each, section in zip(self.datasets, used.values(), strict=True)]
        self._ends = list(accumulate(lengths))

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self._ends[-1]

    def parcel(self, number: int) -> Parcel[Sample]:
        """Make this rank's part of batch `number`."""
        broken: dict[str, BrokenSample] = {}
        samples = []
        for place in self.places:
            sample = self._sample(number * self.size + place, broken)
            if sample is None:
                return Parcel(None, tuple(broken.values()))
            samples.append(sample)
        return Parcel(join(samples), tuple(broken.values()))

    def _sample(self, position: int, broken: dict[str, BrokenSample]) -> Sample | None:
        """The sample at a position of all epochs; None once more are broken than may be."""
        epoch, place = divmod(position, len(self))
        order = epoch_order(self.seed, epoch, len(self))
        key = (self.seed, epoch, int(order[place]))
        for further in range(len(self)):
            which, index = self._found(int(order[(place + further) % len(self)]))
            dataset = self.datasets[which]
            name = f"{dataset.name} {dataset.names[index]}"
            if name in broken:
                continue
            try:
                sample: Sample = self.vary(dataset, index, self.varied[which], key)
                return sample
            except (OSError, ValueError) as error:  # an InputError is a ValueError
                broken[name] = BrokenSample(name, str(error).removesuffix("."))
            if len(broken) > self.budget:
                break
        return None

    def _found(self, index: int) -> tuple[int, int]:
        """(number of the dataset, number of the sample in it) of a number among all samples of an epoch."""
        which = bisect.bisect_right(self._ends, index)
        first = self._ends[which - 1] if which else 0
        return which, (index - first) % len(self.datasets[which])


def varied_flow(dataset: Dataset[Any], index: int, augmentation: Augmentation, key: Key) -> FlowSample:
    """One pair of a dataset of flow, augmented."""
    sample = dataset[index]
    if not isinstance(sample, FlowSample):
        raise InputError("its motion is not known, so nothing can be learned from it.")
    return augment_flow(sample, augmentation, [key])


def varied_depth(dataset: Dataset[Any], index: int, augmentation: DepthAugmentation, key: Key) -> DepthSample:
    """One image of a dataset of depth, augmented."""
    sample = dataset[index]
    if not isinstance(sample, DepthSample) or sample.intrinsics is None:
        raise InputError("its camera is not known, so nothing can be learned from it.")
    return augment_depth(sample, augmentation, [key])


def _opened(name: str, data: DataSection) -> Dataset[Any]:
    section = data.datasets[name]
    if section.root is None:
        raise InputError(f"the recipe does not say where {name} is; set data.datasets.{name}.root to its folder.")
    if not Path(section.root).exists():
        raise InputError(
            f"data.datasets.{name}.root is {section.root}, which does not exist; set it to the place of {name}."
        )
    dataset = open_dataset(name, section.root, section.split, **section.options)
    if not len(dataset):
        raise InputError(f"the split {section.split} of {name} in {section.root} holds no samples; choose another.")
    return in_memory(dataset, KEPT) if DATASETS[name].task == "depth" else dataset


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The order of an epoch, count whole numbers. This generator's numbers are promised never to change."""
    return np.random.RandomState([seed, epoch]).permutation(count)
