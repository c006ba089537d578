"""How results and models are printed: in a line of facts, not as all of their numbers."""

from abc import ABC, abstractmethod
from fractions import Fraction

import torch
from torch import nn


class Brief(ABC):
    """Prints as the name of its class and its facts."""

    @abstractmethod
    def _facts(self) -> tuple[str, ...]:
        """What is worth saying of it, each in a few words."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._facts())})"


def size_fact(height: int, width: int) -> str:
    """The size of an image, as people say it."""
    return f"{width}x{height} pixels"


def moment_fact(number: int, time: Fraction) -> str:
    """Which frame of a clip it is."""
    return f"frame {number} at {float(time):.3f} s"


def training_fact(trained: bool) -> str:
    """Whether there is a meaning to it."""
    return "trained" if trained else "not trained"


def count_fact(count: int, thing: str) -> str:
    """How many things there are."""
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def model_facts(task: str, network: nn.Module, trained: bool, device: torch.device) -> tuple[str, ...]:
    """What a network does, whether it can, how large it is and where it runs."""
    millions = sum(each.numel() for each in network.parameters()) / 1e6
    return task, training_fact(trained), f"{millions:.2f} M parameters", f"on {device}"
