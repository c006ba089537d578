"""What the one loop asks of a task: a network, batches, a loss, and scenes to judge by."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protoformer.synthetic.samples import Sample
from protoformer.training.prefetch import Batch
from protoformer.training.recipe import Recipe
from protoformer.training.sources import SampleKind, Source, open_source


@dataclass(frozen=True)
class TaskLoss:
    """Scalars: the total to minimize, and one for each of the task's metrics, in their order."""

    total: Tensor
    metrics: tuple[Tensor, ...]


@dataclass(frozen=True)
class ValidationResult:
    """Scores of a network on something it was not trained on. name: of what. scores: by their names."""

    name: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Example:
    """What a network made of one held-out sample. sample: the task's record with N = 1. predicted: on the CPU."""

    name: str
    sample: Any
    predicted: Tensor


Validator = Callable[[nn.Module], ValidationResult]
"""Scores a network, which is in eval mode."""
Drawing = Callable[[Example], npt.NDArray[np.uint8]]
"""An example as a picture, uint8 H x W x 3."""


class ValidationSet(Protocol):
    """Samples that no step trains on, the same at every call."""

    def validate(self, network: nn.Module) -> ValidationResult:
        """Score a network, which is in eval mode."""
        ...

    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """A few samples and what the network makes of them."""
        ...


class Task(Protocol[Batch]):
    """One task, as a recipe describes it.

    metrics: names of what its loss reports beside the total; the first is the one that people watch.
    """

    metrics: tuple[str, ...]

    def build(self) -> nn.Module:
        """The network to train, on the CPU; whatever is random about it comes from torch's generator."""
        ...

    def source(self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]) -> Source[Batch]:
        """Batches of one process out of several, on the device. told: takes sentences for people."""
        ...

    def held_out(self, device: torch.device) -> ValidationSet:
        """What to judge the network by."""
        ...

    def tensors(self, batch: Batch) -> dict[str, Tensor]:
        """The tensors of a batch that the loss needs; of a whole run they have the same names and shapes."""
        ...

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """What the loss is a mean over, such as the number of valid pixels, or one number for each of several terms.

        It is on the tensors' device.
        """
        ...

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of a batch, as a sum over it divided by `weight`. The network may run under autocast."""
        ...


ANOTHER_SEED = 1_000_003
"""Added to the data's seed for scenes that are never trained on."""
TOGETHER = 4
"""Scenes that are looked at at once."""
EXAMPLES = 3


class ValidationScenes(ABC, Generic[Sample]):
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
    def validate(self, network: nn.Module) -> ValidationResult:
        """Score a network on all scenes."""
        return ValidationResult(
            "world", self.scores((batch, self.predicted(network, batch)) for batch in self._rendered())
        )

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


@dataclass(frozen=True)
class Tally:
    """Sums of several scores and the numbers of things they were summed over: N x columns, float64 and int64."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def of_rows(cls, rows: Tensor) -> "Tally":
        """One row of scores a sample, N x columns; NaN where a sample does not have that score."""
        known = ~rows.isnan()
        return cls(torch.where(known, rows, 0.0).double(), known.long())

    def total(self) -> "Tally":
        """The N rows added up: columns."""
        return Tally(self.sums.sum(dim=0), self.counts.sum(dim=0))

    def means(self) -> list[float]:
        """Each sum over its count; NaN where nothing was counted. For a total only."""
        means: list[float] = (self.sums / self.counts).tolist()
        return means
