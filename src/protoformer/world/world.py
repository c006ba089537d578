"""A family of scenes without end, each known by its number."""

import dataclasses
from collections.abc import Sequence
from difflib import get_close_matches

import torch

from protoformer.errors import InputError
from protoformer.world.bank import TextureBank, procedural_bank
from protoformer.world.chance import Draws
from protoformer.world.families import FAMILIES
from protoformer.world.render import Renderer
from protoformer.world.scene import Scenes


class World:
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
        scenes = FAMILIES[self.family].build(Draws(self.seed, indices), self.size, self.bank, self.shake)
        names = tuple(f"{self.family}-{self.seed}-{index:06d}" for index in indices)
        return dataclasses.replace(scenes, names=names)

    def renderer(self, indices: Sequence[int], device: torch.device | str = "cpu") -> Renderer:
        """A renderer of the scenes of these numbers."""
        return Renderer(self.scenes(indices), self.bank, device)

    def on(self, device: torch.device | str) -> "World":
        """The same world with its textures on a device, so that they need not be moved for every batch."""
        return World(self.family, self.seed, self.size, shake=self.shake, bank=self.bank.to(device))
