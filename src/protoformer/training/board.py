"""TensorBoard, where it is installed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protoformer.training.observer import Observer, Progress
from protoformer.training.task import Validated


class Board(Observer):
    """Curves and pictures for TensorBoard, in a folder; without TensorBoard it says so once, and does nothing.

    told: takes the one sentence.
    """

    def __init__(self, folder: Path, told: Callable[[str], None]) -> None:
        self.folder, self.told = folder, told
        self.writer: Any = None

    def started(self, step: int, steps: int | None) -> None:
        """Open the folder; what was drawn after the step is hidden, since it will happen again."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.told("TensorBoard is not installed, so there are no curves for it: pip install tensorboard adds them.")
            return
        self.writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def logged(self, progress: Progress) -> None:
        """A curve a figure."""
        if self.writer is None:
            return
        figures = dataclasses.asdict(progress)
        del figures["step"], figures["metrics"], figures["left"]
        for name, value in {**figures, **progress.metrics}.items():
            if value is not None:
                self.writer.add_scalar(f"training/{name}", value, progress.step)

    def validated(self, step: int, found: Validated) -> None:
        """A curve a score."""
        if self.writer is not None:
            for name, value in found.scores.items():
                self.writer.add_scalar(f"{found.name}/{name}", value, step)

    def pictured(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """The picture."""
        if self.writer is not None:
            self.writer.add_image(name, pixels, step, dataformats="HWC")

    def ended(self, step: int) -> None:
        """Close the folder."""
        if self.writer is not None:
            self.writer.close()
