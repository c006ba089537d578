"""A family of scenes without end, each known by its number."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from protoformer.errors import InputError
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.ground_truth import depth_sample, flow_sample, stability_clip, track_clip
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample, StabilityClip, TrackClip
from protoformer.synthetic.scene import Scenes
from protoformer.synthetic.texture_bank import TextureBank, procedural_bank


class SyntheticScenes:
    """Scenes of one family: scene 17 of seed 3 is the same on any device, in any batch, of any worker.

    family: a name in FAMILIES. size: (height, width) of the images, pixels. shake: strength of the hand that holds the
    camera, 0 for none; by default the family's. bank: textures; by default procedural ones.
    """

    def __init__(
        self,
        family: str,
        seed: int = 0,
        size: tuple[int, int] | None = None,
        *,
        shake: float | None = None,
        bank: TextureBank | None = None,
    ) -> None:
        if family not in FAMILIES:
            near = get_close_matches(family, FAMILIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FAMILIES)}."
            raise InputError(f"there is no family of scenes called {family!r}; {hint}")
        chosen = FAMILIES[family]
        self.family, self.seed = family, seed
        self.size = chosen.size if size is None else size
        if min(self.size) < 16:
            raise InputError(
                f"images of {self.size[0]}x{self.size[1]} are too small; make both sides at least 16 pixels."
            )
        self.shake = chosen.shake if shake is None else shake
        self.bank = procedural_bank() if bank is None else bank
        if not self.bank.surfaces or not self.bank.cutouts:
            raise InputError("the textures lack opaque images or cut-outs; add some, or join the procedural ones.")

    def scenes(self, indices: Sequence[int]) -> Scenes:
        """The scenes of these numbers, as a batch."""
        scenes = FAMILIES[self.family].build(SceneRandom(self.seed, indices), self.size, self.bank, self.shake)
        names = tuple(f"{self.family}-{self.seed}-{index:06d}" for index in indices)
        return dataclasses.replace(scenes, names=names)

    def renderer(self, indices: Sequence[int], device: torch.device | str = "cpu") -> Renderer:
        """A renderer of the scenes of these numbers."""
        return Renderer(self.scenes(indices), self.bank, device)

    def on(self, device: torch.device | str) -> "SyntheticScenes":
        """The same world with its textures on a device, so that they need not be moved for every batch."""
        return SyntheticScenes(self.family, self.seed, self.size, shake=self.shake, bank=self.bank.to(device))


GOLDEN = 0.6180339887498949
TOGETHER = 128
"""Scenes that are drawn at once."""
Batch = TypeVar("Batch")
"""A FlowSample, DepthSample, TrackClip or StabilityClip."""


class SceneStream(IterableDataset[Batch]):
    """Batches of a world: batch n holds scenes n * batch, n * batch + 1, ... whoever renders it.

    make: (renderer, look) to a batch. final: the share of batches that are of the final pass. start: the first
    batch, to go on where a run stopped. part: (number, of how many), for runs on several machines; workers of a
    DataLoader divide further by themselves. On a GPU use no workers: it renders faster than they could pass it on.
    """

    def __init__(
        self,
        world: SyntheticScenes,
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


def flow_stream(world: SyntheticScenes, batch: int, **options: Any) -> SceneStream[FlowSample]:
    """Pairs of images and their motion. options: of `WorldStream`."""
    return SceneStream(world, flow_sample, batch, **options)


def depth_stream(world: SyntheticScenes, batch: int, **options: Any) -> SceneStream[DepthSample]:
    """Images and their depth."""
    return SceneStream(world, depth_sample, batch, **options)


def track_stream(
    world: SyntheticScenes, batch: int, frames: int, step: int = 1, **options: Any
) -> SceneStream[TrackClip]:
    """Clips of so many frames, and the box of their target."""
    return SceneStream(world, partial(track_clip, frames=frames, step=step), batch, **options)


def stability_stream(
    world: SyntheticScenes, batch: int, frames: int, step: int = 1, **options: Any
) -> SceneStream[StabilityClip]:
    """Shaky clips of so many frames, their steady twins and the warps."""
    return SceneStream(world, partial(stability_clip, frames=frames, step=step), batch, **options)
