"""Scenes that no step trains on."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Any, Generic

import torch
from torch import Tensor, nn

from protoformer.training.recipe import Recipe
from protoformer.training.sample_kind import SampleKind
from protoformer.training.sources import open_source
from protoformer.training.task import Example, Validated
from protoformer.world.sample import Sample

ANOTHER_SEED = 1_000_003
"""Added to the data's seed for scenes that are never trained on."""
TOGETHER = 4
"""Scenes that are looked at at once."""
EXAMPLES = 3


class HeldOutScenes(ABC, Generic[Sample]):
    """Scenes of the world from another seed, of a recipe's families and size.

    They are rendered when they are first asked for, and then kept on the device.
    """

    def __init__(self, recipe: Recipe, kind: SampleKind[Sample], device: torch.device) -> None:
        seed = (recipe.data.seed + ANOTHER_SEED) % 2**31
        self.data = dataclasses.replace(recipe.data, source="world", seed=seed, batch=TOGETHER, workers=0)
        self.count, self.device = recipe.run.validation_scenes, device
        self.kind: SampleKind[Sample] = kind
        self._batches: tuple[Sample, ...] = ()

    @abstractmethod
    def predicted(self, network: nn.Module, batch: Sample) -> Tensor:
        """What a network, which is in eval mode, makes of a batch: N x ... on the CPU."""

    @abstractmethod
    def scores(self, pairs: Iterable[tuple[Sample, Tensor]]) -> dict[str, float]:
        """Scores by name of batches, each on the device, and what was predicted of it."""

    @torch.no_grad()
    def validate(self, network: nn.Module) -> Validated:
        """Score a network on all scenes."""
        return Validated("world", self.scores((batch, self.predicted(network, batch)) for batch in self._rendered()))

    @torch.no_grad()
    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """The first scene of each of the first batches, which tend to be of different families."""
        found = []
        for batch in self._rendered()[:EXAMPLES]:
            one = _first(1, batch, torch.device("cpu"))
            found.append(Example(one.names[0], one, self.predicted(network, batch)[0]))
        return tuple(found)

    def _rendered(self) -> tuple[Sample, ...]:
        if not self._batches and self.count:
            wanted = -(-self.count // TOGETHER)
            source = open_source(self.data, self.device, self.kind)
            *whole, last = islice(source.batches(0), wanted)
            self._batches = (*whole, _first(self.count - TOGETHER * len(whole), last, self.device))
        return self._batches


def _first(count: int, batch: Sample, device: torch.device) -> Sample:
    """The first samples of a batch, on a device."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        part = getattr(batch, field.name)
        cut = None if part is None else part[:count]
        fields[field.name] = cut.to(device) if isinstance(cut, Tensor) else cut
    return dataclasses.replace(batch, **fields)
