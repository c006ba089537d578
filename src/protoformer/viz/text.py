"""How results and models are printed: in a line of facts, not as all of their numbers."""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from protoformer.io.files import short_name
from protoformer.io.image import write_image
from protoformer.viz.images import Pixels


class SummaryRepr(ABC):
    """Prints as the name of its class and its facts."""

    @abstractmethod
    def _facts(self) -> tuple[str, ...]:
        """What is worth saying of it, each in a few words."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._facts())})"


def format_size(height: int, width: int) -> str:
    """The size of an image, as people say it."""
    return f"{width}x{height} pixels"


def format_time(number: int, time: Fraction) -> str:
    """Which frame of a clip it is."""
    return f"frame {number} at {float(time):.3f} s"


def format_training(trained: bool) -> str:
    """Whether there is a meaning to it."""
    return "trained" if trained else "not trained"


def format_count(count: int, thing: str) -> str:
    """How many things there are."""
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def predictor_summary(task: str, network: nn.Module, trained: bool, device: torch.device) -> tuple[str, ...]:
    """What a network does, whether it can, how large it is and where it runs."""
    millions = sum(each.numel() for each in network.parameters()) / 1e6
    return task, format_training(trained), f"{millions:.2f} M parameters", f"on {device}"


def score_table(title: str, caption: str, words: Iterable[str], figures: Iterable[str]) -> Table:
    """A table without rows: columns of words, which break where there is no room, then of figures, which never do."""
    table = Table(
        title=Text(title), caption=caption, caption_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for column in words:
        table.add_column(column)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


class WorstSamples:
    """Keeps pictures of the samples with the largest errors, and draws no others."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[tuple[float, int, str, Pixels]] = []
        self.seen = 0

    def offer(self, error: float, name: str, draw: Callable[[], Pixels]) -> None:
        """Draw a sample if it is among the worst so far."""
        self.seen += 1  # a number of its own for every sample decides between equal errors
        if self.count and not math.isnan(error) and (len(self.kept) < self.count or error > self.kept[0][0]):
            heapq.heappush(self.kept, (error, self.seen, name, draw()))
            if len(self.kept) > self.count:
                heapq.heappop(self.kept)

    def write(self, folder: Path) -> list[Path]:
        """Write them, the worst first, as worst-01-<name>.png and so on."""
        written = []
        ranked = sorted(self.kept, reverse=True, key=lambda each: each[:2])
        for rank, (_, _, name, pixels) in enumerate(ranked, start=1):
            path = folder / f"worst-{rank:02d}-{short_name(name.replace('/', '-'))}.png"
            write_image(path, pixels)
            written.append(path)
        return written
