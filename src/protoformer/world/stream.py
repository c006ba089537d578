"""Batches without end, rendered where they are used."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from protoformer.errors import InputError
from protoformer.world.render import Renderer
from protoformer.world.sample import DepthSample, FlowSample, StabilityClip, TrackClip
from protoformer.world.scene import Scenes
from protoformer.world.tasks import depth_sample, flow_sample, stability_clip, track_clip
from protoformer.world.world import World

GOLDEN = 0.6180339887498949
TOGETHER = 128
"""Scenes that are drawn at once."""
Batch = TypeVar("Batch")
"""A FlowSample, DepthSample, TrackClip or StabilityClip."""


class WorldStream(IterableDataset[Batch]):
    """Batches of a world: batch n holds scenes n * batch, n * batch + 1, ... whoever renders it.

    make: (renderer, look) to a batch. final: the share of batches that are of the final pass. start: the first
    batch, to go on where a run stopped. part: (number, of how many), for runs on several machines; workers of a
    DataLoader divide further by themselves. On a GPU use no workers: it renders faster than they could pass it on.
    """

    def __init__(
        self,
        world: World,
        make: Callable[[Renderer, str], Batch],
        batch: int,
        *,
        device: torch.device | str = "cpu",
        final: float = 0.5,
        start: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        if batch < 1 or start < 0 or not 0 <= final <= 1 or not 0 <= part[0] < part[1]:
            raise InputError(
                f"a stream with batch={batch}, start={start}, final={final} and part={part} cannot be; "
                "batches hold 1 or more, shares are 0 to 1, and parts count from 0."
            )
        self.world, self.make, self.batch = world.on(device), make, batch
        self.device, self.final, self.start, self.part = torch.device(device), final, start, part
        self._drawn: tuple[int, Scenes] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Render batch after batch."""
        worker = get_worker_info()
        number, of = self.part
        turn = self.start + number
        if worker is not None:  # by turns, so that a part's batches come in the same order from any number of workers
            turn, of = turn + of * worker.id, of * worker.num_workers
        while True:
            yield self.at(turn)
            turn += of

    @torch.no_grad()
    def at(self, turn: int) -> Batch:
        """Batch `turn`."""
        # Multiples of the golden ratio fill 0 .. 1 evenly, and so does every second, third, ... of them: each part of
        # the batches has its share of both passes.
        look = "final" if (turn + 1) * GOLDEN % 1 < self.final else "clean"
        return self.make(Renderer(self._scenes(turn), self.world.bank, self.device), look)

    def _scenes(self, turn: int) -> Scenes:
        """The scenes of a batch. To draw one batch takes as long as to draw several, so several are drawn at once."""
        several = max(1, TOGETHER // self.batch)
        group, place = divmod(turn, several)
        if self._drawn is None or self._drawn[0] != group:
            first = group * several * self.batch
            self._drawn = (group, self.world.scenes(range(first, first + several * self.batch)))
        return self._drawn[1].part(place * self.batch, (place + 1) * self.batch)


def flow_stream(world: World, batch: int, **options: Any) -> WorldStream[FlowSample]:
    """Pairs of images and their motion. options: of `WorldStream`."""
    return WorldStream(world, flow_sample, batch, **options)


def depth_stream(world: World, batch: int, **options: Any) -> WorldStream[DepthSample]:
    """Images and their depth."""
    return WorldStream(world, depth_sample, batch, **options)


def track_stream(world: World, batch: int, frames: int, step: int = 1, **options: Any) -> WorldStream[TrackClip]:
    """Clips of so many frames, and the box of their target."""
    return WorldStream(world, partial(track_clip, frames=frames, step=step), batch, **options)


def stability_stream(
    world: World, batch: int, frames: int, step: int = 1, **options: Any
) -> WorldStream[StabilityClip]:
    """Shaky clips of so many frames, their steady twins and the warps."""
    return WorldStream(world, partial(stability_clip, frames=frames, step=step), batch, **options)
