"""The interface between the training loop and a task: network, batches, loss and validation set."""

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
    """Loss of a batch.

    Attributes:
        total: Scalar to minimize.
        metrics: One scalar for each of the task's metrics, in their order.
    """

    total: Tensor
    metrics: tuple[Tensor, ...]


@dataclass(frozen=True)
class ValidationResult:
    """Scores of a network on data it was not trained on.

    Attributes:
        name: Name of the data.
        scores: Scores by name.
    """

    name: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Example:
    """A validation sample and its prediction.

    Attributes:
        name: Name of the sample.
        sample: The task's sample with N = 1, on the CPU.
        predicted: The prediction without batch dimension, on the CPU.
    """

    name: str
    sample: Any
    predicted: Tensor


Validator = Callable[[nn.Module], ValidationResult]
"""Scores a network in eval mode."""
Drawing = Callable[[Example], npt.NDArray[np.uint8]]
"""Draws an example as an image, uint8 H x W x 3."""


class ValidationSet(Protocol):
    """Samples that are never trained on, the same at every call."""

    def validate(self, network: nn.Module) -> ValidationResult:
        """Score a network in eval mode."""
        ...

    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """Return a few samples with the network's predictions."""
        ...


class Task(Protocol[Batch]):
    """A task that can be trained, built from a recipe.

    Attributes:
        metrics: Names of the metrics that the loss reports; the first one is shown in the progress bar.
    """

    metrics: tuple[str, ...]

    def build(self) -> nn.Module:
        """Build the network on the CPU, initialized by torch's global random generator."""
        ...

    def source(
        self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]
    ) -> Source[Batch]:
        """Open the batches of one process.

        Args:
            rank: Index of the process, from 0 on.
            num_ranks: Number of processes.
            device: Device of the batches.
            on_message: Called with one sentence for the user, such as about an unreadable sample.
        """
        ...

    def validation_set(self, device: torch.device) -> ValidationSet:
        """Build the validation set on a device."""
        ...

    def tensors(self, batch: Batch) -> dict[str, Tensor]:
        """Return the tensors of a batch that the loss needs; names and shapes are constant during a run."""
        ...

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the normalizer of the loss on the tensors' device.

        It is a scalar, such as the number of valid pixels, or one value for each loss term.
        """
        ...

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """Compute the loss of a batch: a sum over the batch divided by `weight`. Autocast may be enabled."""
        ...


VALIDATION_SEED_OFFSET = 1_000_003
"""Added to the data's seed for validation scenes."""
VALIDATION_BATCH_SIZE = 4
EXAMPLES = 3
"""Number of validation examples that are drawn."""


class ValidationScenes(ABC, Generic[Sample]):
    """Synthetic scenes of a recipe's families and crop, from another seed.

    They are rendered on first use and then kept on the device.
    """

    def __init__(self, recipe: Recipe, kind: SampleKind[Sample], device: torch.device) -> None:
        """Describe the scenes; nothing is rendered yet."""
        seed = (recipe.data.seed + VALIDATION_SEED_OFFSET) % 2**31
        self.data = dataclasses.replace(
            recipe.data, source="synthetic", seed=seed, batch_size=VALIDATION_BATCH_SIZE, num_workers=0
        )
        self.count, self.device = recipe.run.validation_scenes, device
        self.kind: SampleKind[Sample] = kind
        self._batches: tuple[Sample, ...] = ()

    @abstractmethod
    def predict(self, network: nn.Module, batch: Sample) -> Tensor:
        """Predict a batch with a network in eval mode: N x ... on the CPU."""

    @abstractmethod
    def compute_scores(self, pairs: Iterable[tuple[Sample, Tensor]]) -> dict[str, float]:
        """Compute scores by name from pairs of a batch, on the device, and its prediction, on the CPU."""

    @torch.no_grad()
    def validate(self, network: nn.Module) -> ValidationResult:
        """Score a network on all scenes."""
        return ValidationResult(
            "synthetic", self.compute_scores((batch, self.predict(network, batch)) for batch in self._render())
        )

    @torch.no_grad()
    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """Return the first scene of each of the first batches, which tend to be of different families."""
        examples = []
        for batch in self._render()[:EXAMPLES]:
            sample = _take_first(1, batch, torch.device("cpu"))
            examples.append(Example(sample.names[0], sample, self.predict(network, batch)[0]))
        return tuple(examples)

    def _render(self) -> tuple[Sample, ...]:
        """Render all batches on first use."""
        if not self._batches and self.count:
            num_batches = -(-self.count // VALIDATION_BATCH_SIZE)
            source = open_source(self.data, self.device, self.kind)
            *full, last = islice(source.batches(0), num_batches)
            num_last = self.count - VALIDATION_BATCH_SIZE * len(full)
            self._batches = (*full, _take_first(num_last, last, self.device))
        return self._batches


def _take_first(count: int, batch: Sample, device: torch.device) -> Sample:
    """Return the first samples of a batch, on a device."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        values = getattr(batch, field.name)
        part = None if values is None else values[:count]
        fields[field.name] = part.to(device) if isinstance(part, Tensor) else part
    return dataclasses.replace(batch, **fields)
