"""What the one loop asks of a task: a network, batches, a loss, and scenes to judge by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protoformer.training.prefetch import Batch
from protoformer.training.sources import Source


@dataclass(frozen=True)
class TaskLoss:
    """Scalars: the total to minimise, and one for each of the task's metrics, in their order."""

    total: Tensor
    metrics: tuple[Tensor, ...]


@dataclass(frozen=True)
class Validated:
    """Scores of a network on something it was not trained on. name: of what. scores: by their names."""

    name: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Example:
    """What a network made of one held-out sample. sample: the task's record with N = 1. predicted: on the CPU."""

    name: str
    sample: Any
    predicted: Tensor


Validator = Callable[[nn.Module], Validated]
"""Scores a network, which is in eval mode."""
Drawing = Callable[[Example], npt.NDArray[np.uint8]]
"""An example as a picture, uint8 H x W x 3."""


class HeldOut(Protocol):
    """Samples that no step trains on, the same at every call."""

    def validate(self, network: nn.Module) -> Validated:
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

    def held_out(self, device: torch.device) -> HeldOut:
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
