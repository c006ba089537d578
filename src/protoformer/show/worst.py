"""Pictures of the worst samples of an evaluation, of which there may be very many."""

import heapq
import math
from collections.abc import Callable
from pathlib import Path

from protoformer.files import write_image
from protoformer.files.names import short_name
from protoformer.show.prototypes import Pixels


class Worst:
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
