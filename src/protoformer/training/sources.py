"""Where batches come from: each is decided by its number alone, whoever makes it and whatever was made before.

Batch n of B samples is divided among R processes ("ranks"): each makes B / R that follow one another, and together they
make just what one process would. So a run that goes on at batch n sees what it would have seen.
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
    """One kind of sample. render: (renderer, look) to a batch of the world. vary: one sample of a dataset, varied; None
    where only the world knows what is to be learned. relight: a rendered batch in another light, by the draws of its
    scenes; None where scenes are taken as they are.
    """

    render: Callable[[Renderer, str], Sample]
    vary: Vary[Sample] | None
    relight: Relight[Sample] | None = None


FLOW: SampleKind[FlowSample] = SampleKind(flow_sample, augment_flow_sample, relight_flow)
DEPTH: SampleKind[DepthSample] = SampleKind(depth_sample, augment_depth_sample, relight_depth)


Batch_co = TypeVar("Batch_co", covariant=True)


class Source(Protocol[Batch_co]):
    """Batches of one rank. broken: samples that could not be read so far, and were replaced."""

    @property
    def broken(self) -> BrokenSamples: ...

    def batches(self, start: int) -> Iterator[Batch_co]:
        """Batches start, start + 1, ... without end, on the device that the source was opened for."""
        ...


def open_source(
    data: DataSection,
    device: torch.device | str = "cpu",
    kind: SampleKind[Sample] = FLOW,  # type: ignore[assignment]
    *,
    rank: int = 0,
    ranks: int = 1,
    told: Callable[[str], None] | None = None,
) -> Source[Sample]:
    """Samples of one kind, by default pairs of images, from where the recipe says. The rest as in `dataset_source`."""
    if data.source != "dataset":
        world = synthetic_source(data, device, kind.render, relight=kind.relight, rank=rank, ranks=ranks)
        if data.source == "world":
            return world
    if kind.vary is None:
        raise InputError(f"data.source is {data.source}, but this task learns from scenes alone; set it to world.")
    read = dataset_source(data, device, kind.vary, rank=rank, ranks=ranks, told=told)
    return read if data.source == "dataset" else _Mixed(world, read, data.world_share)


def synthetic_source(
    data: DataSection,
    device: torch.device | str = "cpu",
    make: Callable[[Renderer, str], Batch] = flow_sample,  # type: ignore[assignment]
    *,
    relight: Relight[Batch] | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> Source[Batch]:
    """Scenes of the recipe's families. make: (renderer, look) to a batch, such as `flow_sample` or `depth_sample`.

    relight: as in `SampleKind`; without it, the recipe's light must be left as it is.
    A GPU renders the scenes itself; on a CPU the recipe's workers do.
    """
    on = torch.device(device)
    maker = SyntheticMix(data, _places(data.batch, rank, ranks), on, make, relight)
    return _Made(maker, on, workers=0 if on.type == "cuda" else data.workers)


def dataset_source(
    data: DataSection,
    device: torch.device | str = "cpu",
    vary: Vary[Sample] = augment_flow_sample,  # type: ignore[assignment]
    *,
    rank: int = 0,
    ranks: int = 1,
    told: Callable[[str], None] | None = None,
) -> Source[Sample]:
    """Varied samples of the recipe's datasets, read by its workers. vary: what makes them, by default pairs of flow.

    rank, ranks: which process this is, from 0 on, and of how many. told: called with one sentence for each sample that
    cannot be read and is replaced; one more than the recipe's `broken` is an `InputError` while batches are made.
    """
    maker = DatasetMix(data, _places(data.batch, rank, ranks), vary)
    return _Made(maker, torch.device(device), workers=data.workers, budget=data.broken, told=told)


class _Made(Generic[Batch]):
    """A source of what a maker makes, in this process or in workers."""

    def __init__(
        self,
        maker: BatchMaker[Batch],
        device: torch.device,
        *,
        workers: int,
        budget: int = 0,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self.maker, self.device, self.workers = maker, device, workers
        self.broken = BrokenSamples(budget, told)

    def batches(self, start: int) -> Iterator[Batch]:
        return prefetch(self._made(start), self.device)

    def _made(self, start: int) -> Iterator[Batch]:
        parcels = self._loaded(start) if self.workers else (self.maker.parcel(number) for number in count(start))
        try:
            for parcel in parcels:
                yield self._opened(parcel)
        finally:
            del parcels  # which ends its workers, even where an error keeps this frame alive

    def _loaded(self, start: int) -> Iterator[BatchMessage[Batch]]:
        """Parcels that workers make, in the order of their numbers."""
        return iter(
            DataLoader(
                _Parcels(self.maker),
                batch_size=None,
                sampler=count(start),
                num_workers=self.workers,
                pin_memory=self.device.type == "cuda",
                worker_init_fn=_undisturbed,
                generator=torch.Generator(),  # else it would draw from, and so change, everybody's
            )
        )

    def _opened(self, parcel: BatchMessage[Batch]) -> Batch:
        """The batch of a parcel, after its broken samples were counted."""
        self.broken.add(parcel.broken)
        self.broken.judge()
        if parcel.batch is None:
            raise self.broken.too_many()
        return parcel.batch


class _Mixed(Generic[Batch]):
    """Batches of the world and of datasets by turns.

    Both have numbers of their own: of the first n batches, floor(n share) are the world's, at any n, and they are its
    first ones.
    """

    def __init__(self, world: Source[Batch], dataset: Source[Batch], share: float) -> None:
        self.world, self.dataset, self.share = world, dataset, share

    @property
    def broken(self) -> BrokenSamples:
        return self.dataset.broken

    def batches(self, start: int) -> Iterator[Batch]:
        rendered = self._of_world(start)
        world, dataset = self.world.batches(rendered), self.dataset.batches(start - rendered)
        for number in count(start):
            yield next(world if self._of_world(number + 1) > self._of_world(number) else dataset)

    def _of_world(self, batches: int) -> int:
        """How many of the first batches are the world's."""
        return math.floor(batches * self.share)


class _Parcels(Dataset[BatchMessage[Batch]]):
    """What a worker of a DataLoader asks for parcels."""

    def __init__(self, maker: BatchMaker[Batch]) -> None:
        self.maker = maker

    def __getitem__(self, number: int) -> BatchMessage[Batch]:
        return self.maker.parcel(number)


def _undisturbed(_: int) -> None:
    """Go on when somebody stops the run, who often tells its workers too: the run ends them once its state is saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # which says who sent it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _places(batch: int, rank: int, ranks: int) -> range:
    """Which samples of a batch a rank makes."""
    if batch % ranks:
        raise InputError(
            f"a batch of {batch} cannot be divided among {ranks} processes; make data.batch a multiple of {ranks}."
        )
    each = batch // ranks
    return range(rank * each, (rank + 1) * each)
