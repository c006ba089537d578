"""Smooth curves over time, by which everything in a scene moves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Path:
    """Some numbers that change smoothly: a polynomial of time plus waves. float64, on the CPU.

    powers: B x ... x C x D, factors of 1, t, t^2, ... with t in seconds.
    amplitude, frequency, phase: B x ... x C x M each, waves amplitude sin(2 pi frequency t + phase); Hz and radians.
    """

    powers: Tensor
    amplitude: Tensor
    frequency: Tensor
    phase: Tensor

    @classmethod
    def of(cls, *powers: Tensor) -> "Path":
        """A polynomial: its value at time 0 (B x ... x C), then, if it changes, its velocity and so on."""
        powers = torch.broadcast_tensors(*powers)
        none = torch.zeros(*powers[0].shape, 0, dtype=torch.float64)
        return cls(torch.stack(powers, dim=-1).double(), none, none, none)

    def with_waves(self, amplitude: Tensor, frequency: Tensor, phase: Tensor) -> "Path":
        """The same path and more waves; each B x ... x C x M, or of a shape that expands to it."""
        shape = (*self.powers.shape[:-1], torch.broadcast_shapes(amplitude.shape, frequency.shape, phase.shape)[-1])
        return replace(
            self,
            amplitude=torch.cat((self.amplitude, amplitude.expand(shape)), dim=-1),
            frequency=torch.cat((self.frequency, frequency.expand(shape)), dim=-1),
            phase=torch.cat((self.phase, phase.expand(shape)), dim=-1),
        )

    def at(self, time: Tensor) -> Tensor:
        """Values at a time in seconds for each scene (..., B): ... x B x ... x C."""
        between = self.powers.dim() - 1  # dimensions of a scene that a time knows nothing of
        time = time.double().reshape(*time.shape, *(1,) * between)
        exponents = torch.arange(self.powers.shape[-1], dtype=torch.float64, device=time.device)
        waves = self.amplitude * torch.sin(2 * math.pi * self.frequency * time + self.phase)
        return (self.powers * time**exponents).sum(dim=-1) + waves.sum(dim=-1)


def joined(paths: Sequence[Path]) -> Path:
    """The paths of several groups of things side by side, along the second dimension; shorter ones are padded."""

    def padded(parts: list[Tensor]) -> Tensor:
        most = max(part.shape[-1] for part in parts)
        short = [most - part.shape[-1] for part in parts]
        return torch.cat(
            [F.pad(part, (0, gap)) if gap else part for part, gap in zip(parts, short, strict=True)], dim=1
        )

    return Path(
        powers=padded([path.powers for path in paths]),
        amplitude=padded([path.amplitude for path in paths]),
        frequency=padded([path.frequency for path in paths]),
        phase=padded([path.phase for path in paths]),
    )
