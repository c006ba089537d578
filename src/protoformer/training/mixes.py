"""Batches of several datasets on disk, by their numbers."""

import bisect
import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch

from protoformer.datasets.augmentation.depth import DepthAugmentation, augment_depth
from protoformer.datasets.augmentation.flow import Augmentation, augment_flow
from protoformer.datasets.augmentation.light import Light
from protoformer.datasets.augmentation.photometric import Key
from protoformer.datasets.registry import DATASETS, open_dataset
from protoformer.datasets.tree import Dataset, in_memory
from protoformer.errors import InputError
from protoformer.synthetic.generator import GOLDEN, TOGETHER, SyntheticScenes
from protoformer.synthetic.layers import crop_of_larger
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample, Sample, join
from protoformer.synthetic.scene import Scenes
from protoformer.synthetic.texture_bank import TextureBank, bank_from_folder, procedural_bank
from protoformer.training.prefetch import Batch, BatchMessage, BrokenSample
from protoformer.training.recipe import DataSection

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

    def parcel(self, number: int) -> BatchMessage[Sample]:
        """Make this rank's part of batch `number`."""
        broken: dict[str, BrokenSample] = {}
        samples = []
        for place in self.places:
            sample = self._sample(number * self.size + place, broken)
            if sample is None:
                return BatchMessage(None, tuple(broken.values()))
            samples.append(sample)
        return BatchMessage(join(samples), tuple(broken.values()))

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


def augment_flow_sample(dataset: Dataset[Any], index: int, augmentation: Augmentation, key: Key) -> FlowSample:
    """One pair of a dataset of flow, augmented."""
    sample = dataset[index]
    if not isinstance(sample, FlowSample):
        raise InputError("its motion is not known, so nothing can be learned from it.")
    return augment_flow(sample, augmentation, [key])


def augment_depth_sample(dataset: Dataset[Any], index: int, augmentation: DepthAugmentation, key: Key) -> DepthSample:
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


Relight = Callable[[Batch, Light, SceneRandom], Batch]
"""A rendered batch in another light, by the draws of its scenes."""

SILVER = math.sqrt(2)
"""Multiples of it fill a range as evenly as those of the golden ratio, and have nothing to do with them."""


class SyntheticMix(Generic[Batch]):
    """Makes a batch of scenes by its number.

    A batch is of one family and one pass. Its number decides the family; the families have numbers of batches of their
    own, and batch m of a family holds its scenes m * B, m * B + 1, ..., B the size of a whole batch, at a pace of its
    own.

    places: which of the B this rank makes. make: (renderer, look) to a batch. relight: as in `SampleKind`.
    """

    def __init__(
        self,
        data: DataSection,
        places: range,
        device: torch.device,
        make: Callable[[Renderer, str], Batch],
        relight: Relight[Batch] | None = None,
    ) -> None:
        if relight is None and data.light != Light():
            raise InputError("data.light is set, but this task takes scenes in the light they have; leave it out.")
        self.light, self.relight = data.light, relight if data.light != Light() else None
        self.size, self.places, self.device, self.final, self.make = data.batch, places, device, data.final, make
        bank = _bank(data.bank, device).to(device)
        shares = {name: share for name, share in sorted(data.families.items()) if share > 0}
        self.zooms = [data.zoom.get(name) for name in shares]
        self.paces = [data.pace.get(name, (1.0, 1.0)) for name in shares]
        self.worlds = [SyntheticScenes(name, family_seed(data.seed, name), data.crop, bank=bank) for name in shares]
        self._edges = np.cumsum(list(shares.values()))[:-1] / sum(shares.values())
        self._counted, self._turns = 0, np.zeros(len(shares), dtype=np.int64)
        self._drawn: dict[int, tuple[int, Scenes]] = {}

    def parcel(self, number: int) -> BatchMessage[Batch]:
        """Make this rank's part of batch `number`."""
        with torch.no_grad(), _one_thread_for_a_gpu(self.device):
            return BatchMessage(self._made(number))

    def _made(self, number: int) -> Batch:
        family, turn = self.place(number)
        look = "final" if (turn + 1) * GOLDEN % 1 < self.final else "clean"
        scenes = self._scenes(family, turn)
        scenes = dataclasses.replace(scenes, rate=scenes.rate / self._pace(family, turn))
        world = self.worlds[family]
        draws = SceneRandom(world.seed, [turn * self.size + place for place in self.places])
        zoom = self.zooms[family]
        if zoom is not None:
            times, place = draws.log_uniform("window.zoom", *zoom), draws.uniform("window.place", shape=(2,))
            scenes = crop_of_larger(scenes, times, place)
        batch = self.make(Renderer(scenes, world.bank, self.device), look)
        if self.relight is not None:
            batch = self.relight(batch, self.light, draws)
        return batch

    def place(self, number: int) -> tuple[int, int]:
        """(index into `worlds`, number among the batches of that family) of a batch."""
        if number < self._counted:
            self._counted, self._turns = 0, np.zeros_like(self._turns)
        before = self._families(self._counted, number)
        self._turns = self._turns + np.bincount(before, minlength=len(self.worlds))
        self._counted = number
        family = int(self._families(number, number + 1)[0])
        return family, int(self._turns[family])

    def _pace(self, family: int, turn: int) -> float:
        """Of a family's batch: every part of the way from its least to its most, on a scale of ratios, comes alike."""
        least, most = self.paces[family]
        return least * math.pow(most / least, (turn + 1) * SILVER % 1)

    def _families(self, start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The families of batches start .. stop - 1: multiples of the golden ratio fill the shares evenly."""
        places = (np.arange(start, stop, dtype=np.float64) + 1) * GOLDEN % 1
        return np.searchsorted(self._edges, places, side="right").astype(np.int64)

    def _scenes(self, family: int, turn: int) -> Scenes:
        """The scenes of a batch; several batches are drawn at once, which takes no longer than one."""
        several = max(1, TOGETHER // len(self.places))
        group, place = divmod(turn, several)
        if self._drawn.get(family, (None,))[0] != group:
            turns = range(group * several, (group + 1) * several)
            indices = [each * self.size + number for each in turns for number in self.places]
            self._drawn[family] = (group, self.worlds[family].scenes(indices))
        here = place * len(self.places)
        return self._drawn[family][1].part(here, here + len(self.places))


def family_seed(seed: int, family: str) -> int:
    """The seed of a family's world: one of its own, whichever other families there are."""
    return (seed << 32) + zlib.crc32(family.encode())


@contextmanager
def _one_thread_for_a_gpu(device: torch.device) -> Iterator[None]:
    """One thread draws the scenes that a GPU renders: it is small work, for which many threads wait on each other, on a
    machine whose cores are shared for so long that the GPU has to wait too.

    Threads of Python that begin meanwhile keep it at one.
    """
    if device.type != "cuda":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=2)
def _bank(name: str, device: torch.device) -> TextureBank:
    return procedural_bank() if name == "procedural" else bank_from_folder(name, device=device)
