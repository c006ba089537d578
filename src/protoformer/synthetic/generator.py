"""Endless families of synthetic scenes, addressed by index, and streams of training batches."""

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
    """Scenes of one family; scene 17 of seed 3 is the same on any device, in any batch and any worker.

    Args:
        family: A name in `FAMILIES`.
        seed: Seed of the family.
        size: (height, width) of the images, pixels; the family's default if None.
        shake: Strength of the camera's hand shake, 0 for none; the family's default if None.
        bank: Textures; the procedural bank if None.
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
            close_names = get_close_matches(family, FAMILIES, n=1)
            hint = f"did you mean {close_names[0]}?" if close_names else f"there are {', '.join(FAMILIES)}."
            raise InputError(f"there is no family of scenes called {family!r}; {hint}")
        spec = FAMILIES[family]
        self.family, self.seed = family, seed
        self.size = spec.size if size is None else size
        if min(self.size) < 16:
            raise InputError(
                f"images of {self.size[0]}x{self.size[1]} are too small; make both sides at least 16 pixels."
            )
        self.shake = spec.shake if shake is None else shake
        self.bank = procedural_bank() if bank is None else bank
        if not self.bank.surfaces or not self.bank.cutouts:
            raise InputError(
                "the texture bank lacks opaque images or cutouts; add some, or include the procedural textures."
            )

    def scenes(self, indices: Sequence[int]) -> Scenes:
        """Build the scenes of these indices as a batch."""
        scenes = FAMILIES[self.family].build(SceneRandom(self.seed, indices), self.size, self.bank, self.shake)
        names = tuple(f"{self.family}-{self.seed}-{index:06d}" for index in indices)
        return dataclasses.replace(scenes, names=names)

    def renderer(self, indices: Sequence[int], device: torch.device | str = "cpu") -> Renderer:
        """Build a renderer for the scenes of these indices."""
        return Renderer(self.scenes(indices), self.bank, device)

    def on(self, device: torch.device | str) -> "SyntheticScenes":
        """Return the same scenes with their textures on a device, so that they are not copied for every batch."""
        return SyntheticScenes(self.family, self.seed, self.size, shake=self.shake, bank=self.bank.to(device))


GOLDEN = 0.6180339887498949
"""Fractional part of the golden ratio."""
SCENES_PER_DRAW = 128
"""Number of scenes that are drawn at once."""
Batch = TypeVar("Batch")
"""A `FlowSample`, `DepthSample`, `TrackClip` or `StabilityClip`."""


class SceneStream(IterableDataset[Batch]):
    """Endless stream of batches; batch n holds scenes n * batch_size, ... on every machine and worker.

    On a GPU use no DataLoader workers: rendering is faster than their inter-process transfer.

    Args:
        scenes: The scenes.
        make: Function from (renderer, pass name) to a batch.
        batch_size: Scenes per batch.
        device: Rendering device.
        final: Fraction of batches rendered in the final pass.
        start: Index of the first batch, to resume a run.
        part: (index, number of parts), to split the batches among machines; DataLoader workers split them further.
    """

    def __init__(
        self,
        scenes: SyntheticScenes,
        make: Callable[[Renderer, str], Batch],
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        final: float = 0.5,
        start: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        if batch_size < 1 or start < 0 or not 0 <= final <= 1 or not 0 <= part[0] < part[1]:
            raise InputError(
                f"invalid stream options batch_size={batch_size}, start={start}, final={final}, part={part}; "
                "batch_size must be at least 1, start at least 0, final in 0 to 1, and part (index, count)."
            )
        self.scenes, self.make, self.batch_size = scenes.on(device), make, batch_size
        self.device, self.final, self.start, self.part = torch.device(device), final, start, part
        self._cache: tuple[int, Scenes] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Yield batch after batch."""
        worker = get_worker_info()
        part_index, num_parts = self.part
        batch_index = self.start + part_index
        if worker is not None:  # interleaved, so that the order of batches does not depend on the number of workers
            batch_index, num_parts = batch_index + num_parts * worker.id, num_parts * worker.num_workers
        while True:
            yield self.at(batch_index)
            batch_index += num_parts

    @torch.no_grad()
    def at(self, batch_index: int) -> Batch:
        """Render batch `batch_index`."""
        # Multiples of the golden ratio are equidistributed in [0, 1), and so is every k-th of them: each part of the
        # batches gets the same fraction of both passes.
        render_pass = "final" if (batch_index + 1) * GOLDEN % 1 < self.final else "clean"
        return self.make(Renderer(self._scenes(batch_index), self.scenes.bank, self.device), render_pass)

    def _scenes(self, batch_index: int) -> Scenes:
        """Return the scenes of a batch; several batches are drawn at once, which takes as long as one."""
        batches_per_group = max(1, SCENES_PER_DRAW // self.batch_size)
        group, offset = divmod(batch_index, batches_per_group)
        if self._cache is None or self._cache[0] != group:
            first = group * batches_per_group * self.batch_size
            self._cache = (group, self.scenes.scenes(range(first, first + batches_per_group * self.batch_size)))
        return self._cache[1].part(offset * self.batch_size, (offset + 1) * self.batch_size)


def flow_stream(scenes: SyntheticScenes, batch_size: int, **options: Any) -> SceneStream[FlowSample]:
    """Stream image pairs and their flow. options: Keyword arguments of `SceneStream`."""
    return SceneStream(scenes, flow_sample, batch_size, **options)


def depth_stream(scenes: SyntheticScenes, batch_size: int, **options: Any) -> SceneStream[DepthSample]:
    """Stream images and their depth. options: Keyword arguments of `SceneStream`."""
    return SceneStream(scenes, depth_sample, batch_size, **options)


def track_stream(
    scenes: SyntheticScenes, batch_size: int, frames: int, step: int = 1, **options: Any
) -> SceneStream[TrackClip]:
    """Stream clips of `frames` frames and the boxes of their targets. options: Keyword arguments of `SceneStream`."""
    return SceneStream(scenes, partial(track_clip, frames=frames, step=step), batch_size, **options)


def stability_stream(
    scenes: SyntheticScenes, batch_size: int, frames: int, step: int = 1, **options: Any
) -> SceneStream[StabilityClip]:
    """Stream shaky clips of `frames` frames, their steady versions and the warps between them."""
    return SceneStream(scenes, partial(stability_clip, frames=frames, step=step), batch_size, **options)
