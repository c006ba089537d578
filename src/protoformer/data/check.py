"""Reading a whole dataset once, to know that all of it is there."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protoformer.data.registry import DATASETS, open_dataset
from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.files import read_image
from protoformer.world.sample import StabilityPair, TrackSequence


@dataclass(frozen=True)
class CheckReport:
    """What a dataset on disk is worth.

    found: samples that it lists. read: those that could be read. broken: (name, sentence) of each that could not,
    because a file of it is missing or damaged.
    """

    found: int
    read: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class OpenedSplits:
    """The splits of a dataset that are on the disk, and for each of the others a sentence on what is missing."""

    there: dict[str, Dataset[Any]]
    missing: dict[str, str]


def open_splits(name: str, root: str | os.PathLike[str], split: str | None = None, /, **options: Any) -> OpenedSplits:
    """Open one split, or without a name all of them: "all" where a dataset has it. Fails where there is none."""
    if split is None and name in DATASETS:
        known = DATASETS[name].splits
        wanted: tuple[str | None, ...] = ("all",) if "all" in known else known
    else:
        wanted = (split,)
    there, missing, first = {}, {}, None
    for each in wanted:
        try:
            dataset = open_dataset(name, root, each, **options)
            there[dataset.split] = dataset
        except InputError as error:
            first = first or error
            missing[str(each)] = str(error)
    if first is not None and not there:
        raise first
    return OpenedSplits(there, missing)


def check_dataset(dataset: Dataset[Any], progress: Callable[[int, int], object] | None = None) -> CheckReport:
    """Read every sample with all its frames, going on after one that is broken.

    `progress` is called with (done, total) after each.
    """
    broken = []
    for index, name in enumerate(dataset.names):
        try:
            _read_whole(dataset, index)
        except InputError as error:
            broken.append((name, str(error)))
        if progress is not None:
            progress(index + 1, len(dataset))
    return CheckReport(len(dataset), len(dataset) - len(broken), tuple(broken))


def _read_whole(dataset: Dataset[Any], index: int) -> None:
    """Read one sample, and the images that it only names; fails at the first that is broken."""
    # Imported here, as knowing the datasets should not import those who read them.
    from protoformer.data.stability import count_frames

    sample = dataset[index]
    if isinstance(sample, TrackSequence):
        for frame in sample.frames:
            read_image(frame)
    # A length that was not taken from a header has been counted by decoding every frame.
    if isinstance(sample, StabilityPair) and getattr(dataset, "trust_headers", False):
        for video in (sample.unstable, sample.stable):
            if video is not None and (decoded := count_frames(video)) < sample.frames:
                raise InputError(
                    f"{video} has {decoded} frames that can be read, but {sample.frames} are declared; "
                    "make or download it again, or leave out trust_headers."
                )
