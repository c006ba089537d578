"""What is remembered of one target from frame to frame, where to look next, and what to believe."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.models.runtime import Tensors
from protoformer.tracking.engine import TrackingEngine
from protoformer.tracking.result import Box

LOST, FOUND, FOUND_AFAR = 0.6, 0.7, 0.85
"""Scores: a target whose score falls below the first is lost; one that is lost is found again from the second on, and
from the third on in a window away from where it was."""
GROWTH, MOST_GROWTH = 1.08, 2.0
"""A window grows by the first from frame to frame while the target is lost, up to the second: as large as searches of
training come."""
PATIENCE = 10
"""Frames a lost target is waited for where it was; then every other frame looks elsewhere, window by window."""
APART = 2 / 3
"""From one window to the next, in their sides, at most."""
FIRMNESS = 30.0
"""Nats by which a corner is less likely that lies as far from where it was as the window is wide; it goes with the
square of the distance, so that a lookalike 0.3 of the window away must be likelier by 2.7."""
SWIFTNESS, MOST_CHANGE = 0.8, 4 / 3
"""Share of a change of size, as a logarithm, that a frame is believed; and the factor, up or down, beyond which a side
does not change in one."""
CALM = 0.05
"""Share of the usual size, as a logarithm, that a frame makes."""
LEAST_WINDOW = 0.25
"""Of the window of the first box, the share below which none falls."""
SMALLEST = 2.0
"""Pixels a side of the smallest box."""


@dataclass(frozen=True)
class Window:
    """A square to look into: its center and side, pixels; and whether it is away from where the target was."""

    x: float
    y: float
    side: float
    afar: bool = False


@dataclass(frozen=True)
class Target:
    """One target.

    box: the last that was sure, (x, y, w, h), pixels. lost_for: frames since then. first, usual: pixels, the root of
    the area of the first box, and of a slow mean of all; those of this box where nothing came before it.
    """

    box: Box
    lost_for: int = 0
    first: float = field(default=0.0, compare=False)
    usual: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first or _root_area(self.box))
        object.__setattr__(self, "usual", self.usual or _root_area(self.box))

    @property
    def lost(self) -> bool:
        """Whether it was not seen in the last frame."""
        return self.lost_for > 0

    @property
    def firmness(self) -> float:
        """How firmly it is expected where it was."""
        return 0.0 if self.lost else FIRMNESS

    def window(self, surroundings: float, size: tuple[int, int]) -> Window:
        """Where to look in the next frame, of (height, width) pixels; surroundings: sides of a box's root area."""
        x, y, width, height = self.box
        reach = max(self.usual if self.lost else _root_area(self.box), LEAST_WINDOW * self.first)
        side = surroundings * reach * math.exp(min(self.lost_for * math.log(GROWTH), math.log(MOST_GROWTH)))
        turn = self.lost_for - PATIENCE
        if turn <= 0 or turn % 2 == 0:
            return Window(x + width / 2, y + height / 2, side)
        columns, rows = (max(1, math.ceil(length / (APART * side))) for length in (size[1], size[0]))
        row, column = divmod(turn // 2 % (columns * rows), columns)
        return Window((column + 0.5) * size[1] / columns, (row + 0.5) * size[0] / rows, side, afar=True)

    def after(self, found: Box, score: float, afar: bool, size: tuple[int, int]) -> "Target":
        """The target once a window of a frame, of (height, width) pixels, was looked into. afar: as in `Window`."""
        wanted = (FOUND_AFAR if afar else FOUND) if self.lost else LOST
        believed = clip_to_frame(found if self.lost else self._calmed(found), size)
        if not score >= wanted or believed is None:
            return replace(self, lost_for=self.lost_for + 1)
        usual = self.usual * (_root_area(believed) / self.usual) ** CALM
        return Target(believed, first=self.first, usual=usual)

    def _calmed(self, found: Box) -> Box:
        """The box that was found, with a size that changed less."""
        x, y, *sides = found
        middle = (x + sides[0] / 2, y + sides[1] / 2)
        changes = ((max(now, SMALLEST) / before) ** SWIFTNESS for before, now in zip(self.box[2:], sides, strict=True))
        width, height = (
            before * min(max(change, 1 / MOST_CHANGE), MOST_CHANGE)
            for before, change in zip(self.box[2:], changes, strict=True)
        )
        return middle[0] - width / 2, middle[1] - height / 2, width, height


def _root_area(box: Box) -> float:
    return math.sqrt(box[2] * box[3])


def clip_to_frame(box: Box, size: tuple[int, int]) -> Box | None:
    """What of a box lies on a frame of (height, width) pixels; None if next to nothing does."""
    if not all(math.isfinite(value) for value in box):
        return None
    x, y, width, height = box
    left, top, right, bottom = max(0.0, x), max(0.0, y), min(size[1], x + width), min(size[0], y + height)
    if right - left < SMALLEST or bottom - top < SMALLEST:
        return None
    return left, top, right - left, bottom - top


EVERY = 5
"""Frames from one look at a target to the next."""
SURE = 0.8
"""Score from which on a frame is believed to show the target, and not what hides it."""
LATELY = 0.5
"""Share of the latest look in what is sought. The rest is always the first look, which alone is known to be right: so
what was once mistaken for the target is forgotten again."""


class TemplateMemory:
    """What is sought of each target: a mean of how it first looked and how it last did.

    template: as `TrackEngine.embed` gives it.
    """

    def __init__(self, engine: TrackingEngine, pixels: Tensor, targets: Sequence[Target]) -> None:
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
