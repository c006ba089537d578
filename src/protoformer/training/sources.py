"""Sources of training batches.

A batch depends on its number alone. Batch n of B samples is divided among R processes (ranks): each makes B / R
consecutive samples, and together they make the batch that one process would. A run resumed at batch n therefore sees
the same data as an uninterrupted one.
"""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from protoformer.datasets.augmentation.light import relight_depth, relight_flow
from protoformer.errors import InputError
from protoformer.synthetic.ground_truth import depth_sample, flow_sample
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.samples import DepthSample, FlowSample, Sample
from protoformer.training.mixes import (
    DatasetMix,
    Relight,
    SyntheticMix,
    Vary,
    augment_depth_sample,
    augment_flow_sample,
)
from protoformer.training.prefetch import Batch, BatchMaker, BatchMessage, BrokenSamples, prefetch
from protoformer.training.recipe import DataSection


@dataclass(frozen=True)
class SampleKind(Generic[Sample]):
    """How samples of one kind are made.

    Attributes:
        render: Renders a batch of synthetic scenes from (renderer, pass), where pass is "clean" or "final".
        vary: Augments one sample of a dataset; None for tasks that train on synthetic scenes only.
        relight: Changes the light of a rendered batch; None where scenes are not relit.
    """

    render: Callable[[Renderer, str], Sample]
    vary: Vary[Sample] | None
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
    if kind.vary is None:
        raise InputError(
            f"data.source is {data.source}, but this task trains on synthetic scenes only; set it to synthetic."
        )
    broken = BrokenSamples(data.max_broken_samples, on_message)
    dataset = _MakerSource(DatasetMix(data, indices, kind.vary), target, data.num_workers, broken)
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


class _MakerDataset(Dataset[BatchMessage[Batch]]):
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
