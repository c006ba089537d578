"""Batches of several families of scenes, by their numbers."""

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Generic

import numpy as np
import torch

from protoformer.data.augmentation_light import Light
from protoformer.errors import InputError
from protoformer.training.parcel import Parcel
from protoformer.training.prefetch import Batch
from protoformer.training.recipe import DataSection
from protoformer.world import Renderer, TextureBank, World, bank_from_folder, procedural_bank
from protoformer.world.chance import Draws
from protoformer.world.scene import Scenes
from protoformer.world.stream import GOLDEN, TOGETHER
from protoformer.world.window import part_of_larger

Relight = Callable[[Batch, Light, Draws], Batch]
"""A rendered batch in another light, by the draws of its scenes."""

SILVER = math.sqrt(2)
"""Multiples of it fill a range as evenly as those of the golden ratio, and have nothing to do with them."""


class WorldMix(Generic[Batch]):
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
        self.worlds = [World(name, family_seed(data.seed, name), data.crop, bank=bank) for name in shares]
        self._edges = np.cumsum(list(shares.values()))[:-1] / sum(shares.values())
        self._counted, self._turns = 0, np.zeros(len(shares), dtype=np.int64)
        self._drawn: dict[int, tuple[int, Scenes]] = {}

    def parcel(self, number: int) -> Parcel[Batch]:
        """Make this rank's part of batch `number`."""
        with torch.no_grad(), _one_thread_for_a_gpu(self.device):
            return Parcel(self._made(number))

    def _made(self, number: int) -> Batch:
        family, turn = self.place(number)
        look = "final" if (turn + 1) * GOLDEN % 1 < self.final else "clean"
        scenes = self._scenes(family, turn)
        scenes = dataclasses.replace(scenes, rate=scenes.rate / self._pace(family, turn))
        world = self.worlds[family]
        draws = Draws(world.seed, [turn * self.size + place for place in self.places])
        zoom = self.zooms[family]
        if zoom is not None:
            times, place = draws.log_uniform("window.zoom", *zoom), draws.uniform("window.place", shape=(2,))
            scenes = part_of_larger(scenes, times, place)
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
