"""Text output: short representations of results and models, tables of scores, and the worst samples."""

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
    """Base class whose `repr` is the class name with a short summary."""

    @abstractmethod
    def _facts(self) -> tuple[str, ...]:
        """Return the parts of the summary, a few words each."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._facts())})"


def format_size(height: int, width: int) -> str:
    """Format the size of an image, such as 640x480 pixels."""
    return f"{width}x{height} pixels"


def format_time(number: int, time: Fraction) -> str:
    """Format the number and the time (seconds) of a frame."""
    return f"frame {number} at {float(time):.3f} s"


def format_training(trained: bool) -> str:
    """Format whether a model is trained."""
    return "trained" if trained else "not trained"


def format_count(count: int, thing: str) -> str:
    """Format a number with a noun, in the plural if needed."""
    return f"1 {thing}" if count == 1 else f"{count} {thing}s"


def predictor_summary(task: str, network: nn.Module, trained: bool, device: torch.device) -> tuple[str, ...]:
    """Return the task, training state, number of parameters and device of a predictor."""
    millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    return task, format_training(trained), f"{millions:.2f} M parameters", f"on {device}"


def format_score(value: float | None, digits: int, missing: str = "") -> str:
    """Format a score; `missing` if it is None or NaN."""
    return missing if value is None or math.isnan(value) else f"{value:.{digits}f}"


def score_table(title: str, caption: str, words: Iterable[str], figures: Iterable[str]) -> Table:
    """Create an empty table of scores.

    Args:
        title: The title.
        caption: The text below the table.
        words: Heads of the text columns, which may wrap.
        figures: Heads of the numeric columns, which never wrap.
    """
    table = Table(
        title=Text(title), caption=caption, caption_justify="left", box=None, pad_edge=False, collapse_padding=True
    )
    for column in words:
        table.add_column(column)
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


class WorstSamples:
    """Keeps images of the samples with the largest errors, and draws only these.

    Attributes:
        count: Maximum number of samples.
        kept: A heap of (error, order, name, image).
        num_offered: Number of samples offered.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.kept: list[tuple[float, int, str, Pixels]] = []
        self.num_offered = 0

    def offer(self, error: float, name: str, draw: Callable[[], Pixels]) -> None:
        """Draw and keep a sample if it is among the worst so far.

        Args:
            error: The error of the sample; NaN is ignored.
            name: The name of the sample.
            draw: Draws the sample.
        """
        self.num_offered += 1  # breaks ties between equal errors
        if self.count and not math.isnan(error) and (len(self.kept) < self.count or error > self.kept[0][0]):
            heapq.heappush(self.kept, (error, self.num_offered, name, draw()))
            if len(self.kept) > self.count:
                heapq.heappop(self.kept)

    def write(self, folder: Path) -> list[Path]:
        """Write the images, the worst first, as worst-01-<name>.png and so on; returns the paths."""
        written = []
        ranked = sorted(self.kept, reverse=True, key=lambda sample: sample[:2])
        for rank, (_, _, name, pixels) in enumerate(ranked, start=1):
            path = folder / f"worst-{rank:02d}-{short_name(name.replace('/', '-'))}.png"
            write_image(path, pixels)
            written.append(path)
        return written
