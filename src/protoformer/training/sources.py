"""Sources of training batches, from datasets on disk and from synthetic scenes.

A batch depends on its number alone. Batch n of B samples is divided among R processes (ranks): each makes B / R
consecutive samples, and together they make the batch that one process would. A run resumed at batch n therefore sees
the same data as an uninterrupted one.
"""

import bisect
import dataclasses
import math
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, count
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from protoformer.datasets.augmentation.depth import DepthAugmentation, augment_depth
from protoformer.datasets.augmentation.flow import Augmentation, augment_flow
from protoformer.datasets.augmentation.photometric import Key, Light, relight_depth, relight_flow
from protoformer.datasets.base import Dataset, in_memory
from protoformer.datasets.registry import DATASETS, open_dataset
from protoformer.errors import InputError
from protoformer.synthetic.generator import GOLDEN, SCENES_PER_DRAW, SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample
from protoformer.synthetic.layers import crop_of_larger
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample, Sample, join
from protoformer.synthetic.scene import Scenes
from protoformer.synthetic.texture_bank import TextureBank, bank_from_folder, procedural_bank
from protoformer.training.prefetch import Batch, BatchMaker, BatchMessage, BrokenSamples, prefetch
from protoformer.training.recipe import DataSection

MAX_CACHED_BYTES = 2 * 2**30
"""Maximum decoded size of a depth dataset that is cached in memory; flow pairs are crops of larger images."""
Augment = Callable[[Dataset[Any], int, Any, Key], Sample]
"""Augments a sample, given the dataset, the sample's index, the augmentation and a key that seeds it."""


class DatasetMix(Generic[Sample]):
    """Makes batches of augmented dataset samples.

    An epoch contains every sample of a dataset as often as its weight, in an order that depends on (seed, epoch). Batch
    n has the samples n * B, n * B + 1, ... of the concatenated epochs. Each is augmented by the key (seed, epoch,
    index), where index is its number before shuffling.

    A sample that cannot be read is replaced by the next one of the order, augmented by the key of the replaced one.
    """

    def __init__(self, data: DataSection, local_indices: range, augment: Augment[Sample]) -> None:
        """Open the recipe's datasets; this rank makes the samples `local_indices` of a batch."""
        self.batch_size, self.local_indices, self.seed, self.budget = (
            data.batch_size,
            local_indices,
            data.seed,
            data.max_broken_samples,
        )
        self.augment: Augment[Sample] = augment
        sections = {name: section for name, section in data.datasets.items() if section.weight > 0}
        self.datasets = [_open_dataset(name, data) for name in sections]
        self.augmentations = [section.build_augmentation(data.crop_size) for section in sections.values()]
        lengths = [len(each) * section.weight for each, section in zip(self.datasets, sections.values(), strict=True)]
        self._ends = list(accumulate(lengths))

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return self._ends[-1]

    def make_batch(self, number: int) -> BatchMessage[Sample]:
        """Make this rank's part of batch `number`."""
        broken: dict[str, str] = {}
        samples = []
        for index in self.local_indices:
            sample = self._read_sample(number * self.batch_size + index, broken)
            if sample is None:
                return BatchMessage(None, broken)
            samples.append(sample)
        return BatchMessage(join(samples), broken)

    def _read_sample(self, position: int, broken: dict[str, str]) -> Sample | None:
        """Read the sample at a position of the concatenated epochs; None once too many are broken."""
        epoch, first = divmod(position, len(self))
        order = epoch_order(self.seed, epoch, len(self))
        key = (self.seed, epoch, int(order[first]))
        for offset in range(len(self)):
            dataset_index, index = self._locate(int(order[(first + offset) % len(self)]))
            dataset = self.datasets[dataset_index]
            name = f"{dataset.name} {dataset.names[index]}"
            if name in broken:
                continue
            try:
                sample: Sample = self.augment(dataset, index, self.augmentations[dataset_index], key)
                return sample
            except (OSError, ValueError) as error:  # an InputError is a ValueError
                broken[name] = str(error).removesuffix(".")
            if len(broken) > self.budget:
                break
        return None

    def _locate(self, index: int) -> tuple[int, int]:
        """Return (index of the dataset, index of the sample in it) of an index into an epoch."""
        dataset_index = bisect.bisect_right(self._ends, index)
        first = self._ends[dataset_index - 1] if dataset_index else 0
        return dataset_index, (index - first) % len(self.datasets[dataset_index])


def augment_flow_sample(dataset: Dataset[Any], index: int, augmentation: Augmentation, key: Key) -> FlowSample:
    """Read and augment one image pair of a flow dataset."""
    sample = dataset[index]
    if not isinstance(sample, FlowSample):
        raise InputError("it has no ground-truth flow, so it cannot be trained on.")
    return augment_flow(sample, augmentation, [key])


def augment_depth_sample(dataset: Dataset[Any], index: int, augmentation: DepthAugmentation, key: Key) -> DepthSample:
    """Read and augment one image of a depth dataset."""
    sample = dataset[index]
    if not isinstance(sample, DepthSample) or sample.intrinsics is None:
        raise InputError("it has no camera intrinsics, so it cannot be trained on.")
    return augment_depth(sample, augmentation, [key])


def _open_dataset(name: str, data: DataSection) -> Dataset[Any]:
    section = data.datasets[name]
    if section.root is None:
        raise InputError(f"the recipe has no folder for {name}; set data.datasets.{name}.root to it.")
    if not Path(section.root).exists():
        raise InputError(
            f"data.datasets.{name}.root is {section.root}, which does not exist; set it to the folder of {name}."
        )
    dataset = open_dataset(name, section.root, section.split, **section.options)
    if not len(dataset):
        raise InputError(f"the split {section.split} of {name} in {section.root} holds no samples; choose another.")
    return in_memory(dataset, MAX_CACHED_BYTES) if DATASETS[name].task == "depth" else dataset


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the order of an epoch, a permutation of `count`; NumPy guarantees that RandomState never changes."""
    return np.random.RandomState([seed, epoch]).permutation(count)


Relight = Callable[[Batch, Light, SceneRandom], Batch]
"""Changes the light of a rendered batch with the random numbers of its scenes."""

SQRT_2 = math.sqrt(2)
"""Its multiples modulo 1 are evenly distributed and independent of those of the golden ratio."""


class SyntheticMix(Generic[Batch]):
    """Makes batches of synthetic scenes.

    A batch is of one family, one render pass and one motion scale. Its number decides the family; each family numbers
    its own batches, and batch m of a family holds its scenes m * B, m * B + 1, ..., where B is the batch size over all
    ranks.
    """

    def __init__(
        self,
        data: DataSection,
        local_indices: range,
        device: torch.device,
        make: Callable[[Renderer, str], Batch],
        relight: Relight[Batch] | None = None,
    ) -> None:
        """Set up the recipe's families; this rank makes the samples `local_indices` of a batch."""
        if relight is None and data.relighting != Light():
            raise InputError("data.relighting is set, but this task does not relight scenes; leave it out.")
        self.light, self.relight = data.relighting, relight if data.relighting != Light() else None
        self.batch_size, self.local_indices, self.device = data.batch_size, local_indices, device
        self.final, self.make = data.final_fraction, make
        bank = _bank(data.texture_bank, device).to(device)
        weights = {name: weight for name, weight in sorted(data.families.items()) if weight > 0}
        self.zooms = [data.zoom.get(name) for name in weights]
        self.motion_scales = [data.motion_scale.get(name, (1.0, 1.0)) for name in weights]
        self.generators = [
            SyntheticScenes(name, family_seed(data.seed, name), data.crop_size, bank=bank) for name in weights
        ]
        self._edges = np.cumsum(list(weights.values()))[:-1] / sum(weights.values())
        self._counted, self._family_counts = 0, np.zeros(len(weights), dtype=np.int64)
        self._drawn: dict[int, tuple[int, Scenes]] = {}

    def make_batch(self, number: int) -> BatchMessage[Batch]:
        """Make this rank's part of batch `number`."""
        with torch.no_grad(), _single_thread_for_gpu(self.device):
            return BatchMessage(self._render(number))

    def _render(self, number: int) -> Batch:
        family, family_number = self.locate(number)
        render_pass = "final" if (family_number + 1) * GOLDEN % 1 < self.final else "clean"
        scenes = self._draw_scenes(family, family_number)
        scenes = dataclasses.replace(scenes, fps=scenes.fps / self._get_motion_scale(family, family_number))
        generator = self.generators[family]
        draws = SceneRandom(generator.seed, [family_number * self.batch_size + index for index in self.local_indices])
        zoom = self.zooms[family]
        if zoom is not None:
            factor, offset = draws.log_uniform("window.zoom", *zoom), draws.uniform("window.place", shape=(2,))
            scenes = crop_of_larger(scenes, factor, offset)
        batch = self.make(Renderer(scenes, generator.bank, self.device), render_pass)
        if self.relight is not None:
            batch = self.relight(batch, self.light, draws)
        return batch

    def locate(self, number: int) -> tuple[int, int]:
        """Return (index into `generators`, number among the batches of that family) of a batch."""
        if number < self._counted:
            self._counted, self._family_counts = 0, np.zeros_like(self._family_counts)
        before = self._get_families(self._counted, number)
        self._family_counts = self._family_counts + np.bincount(before, minlength=len(self.generators))
        self._counted = number
        family = int(self._get_families(number, number + 1)[0])
        return family, int(self._family_counts[family])

    def _get_motion_scale(self, family: int, family_number: int) -> float:
        """Return the motion scale of a family's batch, distributed log-uniformly between its minimum and maximum."""
        min_scale, max_scale = self.motion_scales[family]
        return min_scale * math.pow(max_scale / min_scale, (family_number + 1) * SQRT_2 % 1)

    def _get_families(self, start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the families of batches start .. stop - 1; multiples of the golden ratio mix them evenly."""
        positions = (np.arange(start, stop, dtype=np.float64) + 1) * GOLDEN % 1
        return np.searchsorted(self._edges, positions, side="right").astype(np.int64)

    def _draw_scenes(self, family: int, family_number: int) -> Scenes:
        """Draw the scenes of a batch; several batches are drawn at once, which takes no longer than one."""
        group_size = max(1, SCENES_PER_DRAW // len(self.local_indices))
        group, index_in_group = divmod(family_number, group_size)
        if self._drawn.get(family, (None,))[0] != group:
            numbers = range(group * group_size, (group + 1) * group_size)
            indices = [each * self.batch_size + index for each in numbers for index in self.local_indices]
            self._drawn[family] = (group, self.generators[family].scenes(indices))
        start = index_in_group * len(self.local_indices)
        return self._drawn[family][1].part(start, start + len(self.local_indices))


def family_seed(seed: int, family: str) -> int:
    """Return the seed of a family, which does not depend on the other families of a recipe."""
    return (seed << 32) + zlib.crc32(family.encode())


@contextmanager
def _single_thread_for_gpu(device: torch.device) -> Iterator[None]:
    """Use one CPU thread while scenes are drawn for a GPU.

    The work is small; with many threads on shared cores, their synchronization takes so long that the GPU waits.
    Python threads started meanwhile keep the single thread.
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


@dataclass(frozen=True)
class SampleKind(Generic[Sample]):
    """How samples of one kind are made.

    Attributes:
        render: Renders a batch of synthetic scenes from (renderer, pass), where pass is "clean" or "final".
        augment: Augments one sample of a dataset; None for tasks that train on synthetic scenes only.
        relight: Changes the light of a rendered batch; None where scenes are not relit.
    """

    render: Callable[[Renderer, str], Sample]
    augment: Augment[Sample] | None
    relight: Relight[Sample] | None = None


FLOW: SampleKind[FlowSample] = SampleKind(flow_sample, augment_flow_sample, relight_flow)
DEPTH: SampleKind[DepthSample] = SampleKind(depth_sample, augment_depth_sample, relight_depth)


Batch_co = TypeVar("Batch_co", covariant=True)


class Source(Protocol[Batch_co]):
    """Batches of one rank.

    Attributes:
        broken: Samples that could not be read so far and were replaced.
    """

    @property
    def broken(self) -> BrokenSamples: ...

    def batches(self, start: int) -> Iterator[Batch_co]:
        """Yield batches start, start + 1, ... without end, on the source's device."""
        ...


def open_source(
    data: DataSection,
    device: torch.device | str = "cpu",
    kind: SampleKind[Sample] = FLOW,  # type: ignore[assignment]
    *,
    rank: int = 0,
    num_ranks: int = 1,
    on_message: Callable[[str], None] | None = None,
) -> Source[Sample]:
    """Open the source that a recipe names: synthetic scenes, datasets, or a mix of both.

    A GPU renders synthetic scenes itself; on a CPU, and for datasets, the recipe's workers make the batches.

    Args:
        data: Data section of the recipe.
        device: Device of the batches.
        kind: Kind of sample, by default image pairs with flow.
        rank: Index of this process, from 0 on.
        num_ranks: Number of processes.
        on_message: Called with one sentence for each sample that cannot be read and is replaced. More of them than the
            recipe's `max_broken_samples` raise `InputError` while batches are made.

    Raises:
        InputError: If the task cannot train on the recipe's source, or a dataset cannot be opened.
    """
    target, indices = torch.device(device), _split_batch(data.batch_size, rank, num_ranks)
    if data.source != "dataset":
        renderer = SyntheticMix(data, indices, target, kind.render, kind.relight)
        synthetic = _MakerSource(renderer, target, num_workers=0 if target.type == "cuda" else data.num_workers)
        if data.source == "synthetic":
            return synthetic
    if kind.augment is None:
        raise InputError(
            f"data.source is {data.source}, but this task trains on synthetic scenes only; set it to synthetic."
        )
    broken = BrokenSamples(data.max_broken_samples, on_message)
    dataset = _MakerSource(DatasetMix(data, indices, kind.augment), target, data.num_workers, broken)
    return dataset if data.source == "dataset" else _MixedSource(synthetic, dataset, data.synthetic_fraction)


class _MakerSource(Generic[Batch]):
    """Source of the batches of a maker, which runs in this process or in workers."""

    def __init__(
        self,
        maker: BatchMaker[Batch],
        device: torch.device,
        num_workers: int,
        broken: BrokenSamples | None = None,
    ) -> None:
        self.maker, self.device, self.num_workers = maker, device, num_workers
        self.broken = BrokenSamples() if broken is None else broken

    def batches(self, start: int) -> Iterator[Batch]:
        return prefetch(self._make_batches(start), self.device)

    def _make_batches(self, start: int) -> Iterator[Batch]:
        messages = self._load(start) if self.num_workers else (self.maker.make_batch(number) for number in count(start))
        try:
            for message in messages:
                yield self._unpack(message)
        finally:
            del messages  # ends the workers, even where a traceback keeps this frame alive

    def _load(self, start: int) -> Iterator[BatchMessage[Batch]]:
        """Load batches from workers, in the order of their numbers."""
        return iter(
            DataLoader(
                _MakerDataset(self.maker),
                batch_size=None,
                sampler=count(start),
                num_workers=self.num_workers,
                pin_memory=self.device.type == "cuda",
                worker_init_fn=_ignore_stop_signals,
                generator=torch.Generator(),  # else it would draw from, and so change, the global generator
            )
        )

    def _unpack(self, message: BatchMessage[Batch]) -> Batch:
        """Count the broken samples of a message and return its batch."""
        self.broken.add(message.broken)
        self.broken.check()
        if message.batch is None:
            raise self.broken.error()
        return message.batch


class _MixedSource(Generic[Batch]):
    """Alternates between batches of synthetic scenes and of datasets.

    Each source numbers its own batches: of the first n batches, the first floor(n * fraction) of the synthetic source
    are used, for every n.
    """

    def __init__(self, synthetic: Source[Batch], dataset: Source[Batch], synthetic_fraction: float) -> None:
        self.synthetic, self.dataset, self.synthetic_fraction = synthetic, dataset, synthetic_fraction

    @property
    def broken(self) -> BrokenSamples:
        return self.dataset.broken

    def batches(self, start: int) -> Iterator[Batch]:
        rendered = self._num_synthetic(start)
        synthetic, dataset = self.synthetic.batches(rendered), self.dataset.batches(start - rendered)
        for number in count(start):
            is_synthetic = self._num_synthetic(number + 1) > self._num_synthetic(number)
            yield next(synthetic if is_synthetic else dataset)

    def _num_synthetic(self, num_batches: int) -> int:
        """Return how many of the first batches are synthetic."""
        return math.floor(num_batches * self.synthetic_fraction)


class _MakerDataset(TorchDataset[BatchMessage[Batch]]):
    """Presents a maker to the workers of a DataLoader."""

    def __init__(self, maker: BatchMaker[Batch]) -> None:
        self.maker = maker

    def __getitem__(self, number: int) -> BatchMessage[Batch]:
        return self.maker.make_batch(number)


def _ignore_stop_signals(_: int) -> None:
    """Ignore stop signals in a worker, which a process group often receives as a whole.

    The run saves its state first and then ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # returns the sender's process id
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_signal_of_parent, daemon=True).start()


def _exit_on_signal_of_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _split_batch(batch_size: int, rank: int, num_ranks: int) -> range:
    """Return the indices of the samples of a batch that a rank makes."""
    if batch_size % num_ranks:
        raise InputError(
            f"a batch of {batch_size} cannot be divided among {num_ranks} processes; make data.batch_size a multiple "
            f"of {num_ranks}."
        )
    per_rank = batch_size // num_ranks
    return range(rank * per_rank, (rank + 1) * per_rank)
