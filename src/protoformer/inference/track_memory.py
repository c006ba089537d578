"""How targets look: in the frame that showed them, and lately."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.inference.graphs import Tensors
from protoformer.inference.track_engine import TrackEngine
from protoformer.inference.track_target import Target

EVERY = 5
"""Frames from one look at a target to the next."""
SURE = 0.8
"""Score from which on a frame is believed to show the target, and not what hides it."""
LATELY = 0.5
"""Share of the latest look in what is sought. The rest is always the first look, which alone is known to be right: so
what was once mistaken for the target is forgotten again."""


class TrackMemory:
    """What is sought of each target: a mean of how it first looked and how it last did.

    template: as `TrackEngine.embed` gives it.
    """

    def __init__(self, engine: TrackEngine, pixels: Tensor, targets: Sequence[Target]) -> None:
        """pixels: 3 x H x W, of the frame that shows the targets."""
        self._engine = engine
        self._first = self.template = engine.embed(pixels, _boxes(targets))
        self._frames = 0

    def saw(self, pixels: Tensor, targets: Sequence[Target], scores: Sequence[float]) -> None:
        """One more frame, in which the targets were found with these scores: look at those that are surely there."""
        self._frames += 1
        if self._frames % EVERY:
            return
        there = [number for number, score in enumerate(scores) if score >= SURE and not targets[number].lost]
        if there:
            latest = self._engine.embed(pixels, _boxes([targets[number] for number in there]))
            self.template = _joined(self.template, self._first, latest, torch.tensor(there, device=latest[0].device))


def _boxes(targets: Sequence[Target]) -> Tensor:
    return torch.tensor([target.box for target in targets], dtype=torch.float32)


def _joined(before: Tensors, first: Tensors, latest: Tensors, which: Tensor) -> Tensors:
    """The template before, but for targets of these numbers, which are as they were first and are latest."""
    tokens, parts, summary = (old[which].lerp(new, LATELY) for old, new in zip(first, latest, strict=True))
    mixed = (tokens, F.normalize(parts, dim=2), summary)  # parts are unit vectors
    return tuple(old.index_copy(0, which, new) for old, new in zip(before, mixed, strict=True))
